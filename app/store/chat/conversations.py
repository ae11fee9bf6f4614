"""The user's conversations: list, search, open, rename. Every query takes the user's id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.citations import withhold
from app.domain.ids import new_id
from app.domain.storage import StorageLimits, StorageUse
from app.domain.text import MAX_TITLE_CHARS, branch_title, clean_text, one_line
from app.domain.views import ConversationSummary, ConversationView, MessageStatus, MessageView, Page, VersionView
from app.errors import Conflict, InvalidInput, NotFound
from app.store.chat.conversation_list import ListFilter, PageCursor, list_page, tags_of
from app.store.chat.feedback import feedback_of
from app.store.chat.folders import lock_folders, owned_folder
from app.store.chat.reply_versions import comparison_of, differences_on_path, end_comparison, versions_of
from app.store.chat.search import Query
from app.store.chat.search_index import SearchIndex
from app.store.chat.search_queue import SearchQueue
from app.store.chat.storage_use import storage_use
from app.store.chat.tree import copy_path, latest_below, path_to, siblings_of
from app.store.db.database import Database
from app.store.db.models import Conversation, ConversationTag, Message, Turn
from app.store.db.rows import change_rows, message_view, owned_conversation, owned_message
from app.store.db.statement_timeout import TooSlowError, time_limit

MAX_PAGE = 500
CONTEXT_ABOVE = 10  # messages shown above a search hit
MAX_SEARCH_SECONDS = 5.0
MAX_TAGS = 20
MAX_TAG_CHARS = 50
_LONG_PROMPT_CHARS = 10_000  # a shorter system prompt is too small to matter for the storage quota

ClosedDocuments = Callable[[str, Collection[str]], Awaitable[Set[str]]]
"""Takes a user and ids of documents; returns those that exist, and that the user may not use."""


class Conversations:
    """The repository of conversations. To delete one, see :meth:`app.turns.service.Turns.delete_conversation`."""

    def __init__(
        self, database: Database, closed_documents: ClosedDocuments, limits: StorageLimits | None = None
    ) -> None:
        """``limits``: storage limits per user; None is no limit."""
        self._database = database
        self._closed_documents = closed_documents
        self._limits = limits or StorageLimits()
        self.index = SearchIndex(database)
        self._searches = SearchQueue()

    async def list(
        self,
        user_id: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        query: str | None = None,
        tag: str | None = None,
        archived: bool = False,
        folder: str | None = None,
    ) -> Page[ConversationSummary]:
        """The user's conversations, pinned ones first, then by latest activity.

        Args:
            cursor: the previous page's ``next_cursor``.
            query: only conversations with these words in the title or a message, archived or not, by latest activity;
                ``message_id`` and ``snippet`` describe the message that matched.
            tag: only conversations with this tag.
            archived: list archived conversations instead of the others.
            folder: only conversations in the folder with this id, or in none for :data:`NO_FOLDER_ID`.

        Raises:
            InvalidInput: the limit or the cursor is not valid, or the search takes too long.
            TooManyRequests: too many of the user's searches are waiting.
        """
        _check_limit(limit)
        after = PageCursor.decode(cursor) if cursor else None
        wanted = clean_text(query).strip() if query else ""
        filters = ListFilter(tag=tag, archived=archived, folder=folder)
        if not wanted:
            return await self._database.read(lambda session: list_page(session, user_id, limit, after, None, filters))

        def search(session: Session) -> Page[ConversationSummary]:
            with time_limit(session, MAX_SEARCH_SECONDS):
                return list_page(session, user_id, limit, after, Query(user_id, wanted), filters)

        async with self._searches.slot(user_id):
            await self.index.catch_up()  # finds new messages; does not wait for a long backlog
            try:
                return await self._database.read(search)
            except TooSlowError:
                raise InvalidInput(
                    f"This search took longer than {MAX_SEARCH_SECONDS:g} seconds and was stopped. Search for fewer or "
                    "longer words."
                ) from None

    async def tags(self, user_id: str) -> dict[str, int]:
        """The user's tags in alphabetical order, with the number of conversations per tag."""

        def work(session: Session) -> dict[str, int]:
            rows = session.execute(
                select(ConversationTag.tag, func.count())
                .join(Conversation, Conversation.id == ConversationTag.conversation_id)
                .where(Conversation.user_id == user_id, Conversation.deletion.is_(None))
                .group_by(ConversationTag.tag)
            )
            return dict(sorted(((tag, count) for tag, count in rows), key=lambda row: row[0].casefold()))

        return await self._database.read(work)

    async def get(
        self,
        user_id: str,
        conversation_id: str,
        *,
        limit: int = 100,
        before: str | None = None,
        at: str | None = None,
    ) -> ConversationView:
        """The conversation with its last messages.

        Args:
            limit: number of messages.
            before: return the messages above this one instead.
            at: return as many messages as needed to start a little above this one.

        Raises:
            NotFound: the conversation, or the message in it, is missing or another user's.
            InvalidInput: the limit is out of range, or ``at`` is not on the branch that is shown.
        """
        _check_limit(limit)

        def work(session: Session) -> ConversationView:
            conversation = owned_conversation(session, user_id, conversation_id)
            last = conversation.tip_message_id
            if before is not None:
                message = owned_message(session, user_id, before)
                if message.conversation_id != conversation.id:
                    raise NotFound("There is no such message in this conversation.")
                last = message.parent_id
            shown = limit
            if at is not None and last is not None:
                shown = max(limit, _distance(session, user_id, conversation, at, last) + CONTEXT_ABOVE)
            rows = path_to(session, last, shown)
            if at is not None and all(message.id != at for message, _turn in rows):
                raise InvalidInput("This message is on another branch. Switch to that branch first.")
            siblings = siblings_of(session, [message for message, _turn in rows])
            feedback = feedback_of(session, user_id, [message.id for message, _turn in rows])
            differences = differences_on_path(session, rows, siblings)
            messages = tuple(
                replace(
                    message_view(message, turn, siblings[message.id], feedback.get(message.id)),
                    differences=differences.get(message.id, ()),
                )
                for message, turn in rows
            )
            return ConversationView(
                id=conversation.id,
                title=conversation.title,
                settings=ChatSettings.model_validate(conversation.settings),
                pinned=conversation.pinned,
                archived=conversation.archived,
                tags=tags_of(session, [conversation.id]).get(conversation.id, ()),
                folder_id=conversation.folder_id,
                messages=messages,
                has_earlier=bool(messages) and messages[0].parent_id is not None,
                active_turn_id=session.scalar(
                    select(Turn.id)
                    .where(Turn.conversation_id == conversation.id, Turn.status == "running")
                    .order_by(Turn.comparison_column)
                    .limit(1)
                ),
                comparison=comparison_of(session, user_id, rows[-1]) if rows and before is None else (),
            )

        view = await self._database.read(work)
        messages = await self._readable(user_id, (*view.messages, *(one.message for one in view.comparison)))
        shown = len(view.messages)
        comparison = tuple(map(_with_message, view.comparison, messages[shown:]))
        return replace(view, messages=messages[:shown], comparison=comparison)

    async def get_message(self, user_id: str, message_id: str) -> MessageView:
        """Returns one message.

        Raises:
            NotFound: the message is missing or another user's.
        """

        def work(session: Session) -> MessageView:
            message = owned_message(session, user_id, message_id)
            turn = session.scalars(select(Turn).where(Turn.message_id == message.id)).one_or_none()
            feedback = feedback_of(session, user_id, [message.id]).get(message.id)
            return message_view(message, turn, siblings_of(session, [message])[message.id], feedback)

        (message,) = await self._readable(user_id, [await self._database.read(work)])
        return message

    async def versions(self, user_id: str, message_id: str, ids: Sequence[str] = ()) -> tuple[VersionView, ...]:
        """Versions of a reply, with the settings that they were written with, oldest first.

        Args:
            ids: of which; empty: only this one.

        Raises:
            NotFound: the message, or one of the versions, is missing or another user's.
            InvalidInput: it is no reply.
        """
        versions = await self._database.read(lambda session: versions_of(session, user_id, message_id, ids))
        messages = await self._readable(user_id, [version.message for version in versions])
        return tuple(map(_with_message, versions, messages))

    async def show(self, user_id: str, message_id: str) -> None:
        """Shows the branch of ``message_id``, down to its latest message.

        Raises:
            NotFound: the message is missing or another user's.
        """

        def work(session: Session) -> None:
            message = owned_message(session, user_id, message_id)
            conversation = owned_conversation(session, user_id, message.conversation_id, lock=True)
            conversation.tip_message_id = latest_below(session, message.id)
            end_comparison(session, message)

        await self._database.write(work)

    async def branch(self, user_id: str, message_id: str) -> str:
        """Copies a conversation up to a message into a new conversation and returns the new id.

        Raises:
            NotFound: the message is missing or another user's.
            Conflict: the message is still being written.
            LimitReached: the copy does not fit the storage quota.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> str:
            last = owned_message(session, user_id, message_id)
            if last.status == MessageStatus.STREAMING:
                raise Conflict("This reply is still being written. Wait for it or stop it, then branch.")
            origin = owned_conversation(session, user_id, last.conversation_id)
            copied = Conversation(
                id=new_id(),
                user_id=user_id,
                title=branch_title(origin.title),
                settings=origin.settings,
                created_at=now,
                updated_at=now,
            )
            before = self._use(session, user_id)
            session.add(copied)
            session.flush()
            copied.tip_message_id = copy_path(session, path_to(session, last.id, token_ids=True), copied.id)
            self._require_kept(session, user_id, before)
            return copied.id

        return await self._database.write(work)

    async def create(self, user_id: str, title: str, settings: ChatSettings) -> str:
        """Creates a conversation without messages; returns its id.

        Raises:
            LimitReached: the user is at a storage limit.
        """
        conversation_id, now = new_id(), datetime.now(UTC)

        def work(session: Session) -> None:
            if self._limits != StorageLimits():
                self._limits.require_room(storage_use(session, user_id), conversations=1)
            session.add(
                Conversation(
                    id=conversation_id,
                    user_id=user_id,
                    title=title[:MAX_TITLE_CHARS],
                    settings=settings_row(settings),
                    created_at=now,
                    updated_at=now,
                )
            )

        await self._database.write(work)
        return conversation_id

    async def rename(self, user_id: str, conversation_id: str, title: str) -> None:
        """Renames a conversation.

        Raises:
            InvalidInput: the title is empty or longer than 200 characters.
            NotFound: the conversation is missing or another user's.
        """
        title = one_line(clean_text(title))
        if not title:
            raise InvalidInput("A title needs at least one character.")
        if len(title) > MAX_TITLE_CHARS:
            raise InvalidInput(f"This title is {len(title)} characters long; at most {MAX_TITLE_CHARS} are allowed.")
        await self._change(user_id, conversation_id, title=title, title_by="person", indexed=False)

    async def set_generated_title(self, user_id: str, conversation_id: str, title: str) -> bool:
        """Replaces the default title, the first message's words, by a model's; False if it has another title by now."""
        titled = (
            update(Conversation)
            .where(
                Conversation.id == conversation_id,
                Conversation.user_id == user_id,
                Conversation.title_by == "message",
            )
            .values(title=title[:MAX_TITLE_CHARS], title_by="model", indexed=False)
        )
        return await self._database.write(lambda session: change_rows(session, titled) > 0)

    async def mark(
        self,
        user_id: str,
        conversation_id: str,
        *,
        pinned: bool | None = None,
        archived: bool | None = None,
        unread: bool | None = None,
    ) -> None:
        """Sets the pinned, archived and unread marks; None leaves a mark as it is. Does not count as activity.

        Raises:
            NotFound: the conversation is missing or another user's.
        """
        marks = {"pinned": pinned, "archived": archived, "unread": unread}
        await self._change(user_id, conversation_id, **{name: mark for name, mark in marks.items() if mark is not None})

    async def set_tags(self, user_id: str, conversation_id: str, tags: Sequence[str]) -> None:
        """Replaces the conversation's tags.

        Raises:
            InvalidInput: too many tags, or one that is empty or too long.
            NotFound: the conversation is missing or another user's.
        """
        wanted = clean_tags(tags)

        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id, lock=True)
            before = self._use(session, user_id)
            session.execute(delete(ConversationTag).where(ConversationTag.conversation_id == conversation_id))
            session.add_all(ConversationTag(conversation_id=conversation_id, tag=tag) for tag in wanted)
            self._require_kept(session, user_id, before)

        await self._database.write(work)

    async def move(self, user_id: str, conversation_id: str, folder_id: str | None) -> None:
        """Moves a conversation into a folder, or out of its folder with None.

        Raises:
            NotFound: the conversation or the folder is missing or another user's.
        """

        def work(session: Session) -> None:
            if folder_id is not None:
                lock_folders(session, user_id)  # the folder is not deleted meanwhile
                owned_folder(session, user_id, folder_id)
            owned_conversation(session, user_id, conversation_id, lock=True).folder_id = folder_id

        await self._database.write(work)

    async def save_settings(self, user_id: str, conversation_id: str, settings: ChatSettings) -> None:
        """Saves the conversation's settings.

        Raises:
            InvalidInput: a value is out of range.
            NotFound: the conversation is missing or another user's.
        """
        settings.sampling_params()
        is_long = len(settings.system_prompt) > _LONG_PROMPT_CHARS
        await self._change(user_id, conversation_id, counted=is_long, settings=settings_row(settings))

    async def settings_of(self, user_id: str, conversation_id: str) -> ChatSettings:
        """Returns the conversation's settings.

        Raises:
            NotFound: the conversation is missing or another user's.
        """
        return await self._database.read(
            lambda session: ChatSettings.model_validate(owned_conversation(session, user_id, conversation_id).settings)
        )

    async def _readable(self, user_id: str, messages: Sequence[MessageView]) -> tuple[MessageView, ...]:
        """Returns the messages without the words of citations that the user may no longer read."""
        cited = {citation.document_id for message in messages for citation in message.citations}
        closed = await self._closed_documents(user_id, cited) if cited else ()
        if not closed:
            return tuple(messages)
        return tuple(replace(message, citations=withhold(message.citations, closed)) for message in messages)

    async def _change(self, user_id: str, conversation_id: str, *, counted: bool = False, **values: object) -> None:
        """``counted``: the new values may be large, so check the storage quota before the commit."""

        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id, lock=True)
            before = self._use(session, user_id) if counted else None
            if values:
                session.execute(update(Conversation).where(Conversation.id == conversation_id).values(**values))
            self._require_kept(session, user_id, before)

        await self._database.write(work)

    def _use(self, session: Session, user_id: str) -> StorageUse | None:
        """What the user has stored; None if there is no limit."""
        return None if self._limits == StorageLimits() else storage_use(session, user_id)

    def _require_kept(self, session: Session, user_id: str, before: StorageUse | None) -> None:
        """Checks the storage quota after this transaction's changes. ``before``: use before them; None skips this."""
        if before is not None:
            session.flush()
            self._limits.require_kept(storage_use(session, user_id), before)


def _with_message(version: VersionView, message: MessageView) -> VersionView:
    return replace(version, message=message)


def settings_row(settings: ChatSettings) -> dict[str, object]:
    """Settings in stored form: without defaults."""
    return settings.model_dump(mode="json", exclude_defaults=True)


def clean_tags(tags: Sequence[str]) -> list[str]:
    """Normalises tags: one line each, no duplicates.

    Raises:
        InvalidInput: too many tags, or one that is empty or too long.
    """
    wanted = list(dict.fromkeys(one_line(clean_text(tag)) for tag in tags))
    if len(wanted) > MAX_TAGS:
        raise InvalidInput(f"A conversation can have at most {MAX_TAGS} tags; these are {len(wanted)}.")
    for tag in wanted:
        if not tag:
            raise InvalidInput("A tag needs at least one character.")
        if len(tag) > MAX_TAG_CHARS:
            raise InvalidInput(
                f"The tag '{tag[:20]}…' is {len(tag)} characters long; at most {MAX_TAG_CHARS} are allowed."
            )
    return wanted


def _distance(session: Session, user_id: str, conversation: Conversation, message_id: str, last: str) -> int:
    """Number of messages on the path from ``message_id`` to ``last``, both included, if there is one."""
    message = owned_message(session, user_id, message_id)
    if message.conversation_id != conversation.id:
        raise NotFound("There is no such message in this conversation.")
    return session.get_one(Message, last).position - message.position + 1


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit is {limit}; it must be between 1 and {MAX_PAGE}.")
