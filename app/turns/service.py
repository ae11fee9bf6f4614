"""Starts, follows and stops replies. The server owns a reply; browsers attach to it and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.prompting import PathMessage
from app.domain.views import MessageStatus, Role
from app.errors import EngineUnavailable
from app.settings import AppSettings
from app.store.chat.new_turns import NewTurn
from app.store.chat.turn_contexts import TurnContext, TurnContexts
from app.store.chat.turn_records import NotBegun, TurnRecords
from app.store.db.notifications import Notifications
from app.templates.catalog import Templates
from app.templates.files import read_sources_prompt
from app.turns.admission import Admission, UnlimitedAdmission
from app.turns.context_use import ContextUse
from app.turns.engine_requests import EngineRequests
from app.turns.events import TurnEnd, TurnEvent, TurnSnapshot
from app.turns.idempotency import IdempotentStarts, ref_of
from app.turns.lens import Lens
from app.turns.live import LiveTurn, TurnRef
from app.turns.live_turn_factory import LiveTurnFactory, reply_message
from app.turns.live_turns import LAST_WRITE_SECONDS, LiveTurns
from app.turns.readers import ChangeCallback, PrefetchingReader, TurnReader
from app.turns.recent_contexts import RecentContexts
from app.turns.sources import Sources
from app.turns.storage_quota import StorageQuota
from app.turns.stored_replies import StoredTurns
from app.turns.titles import Titles
from app.turns.tool_offers import ToolOffers
from app.turns.turn_requests import ToolDecision, TurnRequest, TurnRequests
from engine import ChatEngine

__all__ = ["TurnRef", "TurnSnapshot", "Turns"]

Result = TypeVar("Result")


class Turns:
    """The replies in flight, and access to those that have ended."""

    def __init__(
        self,
        settings: AppSettings,
        engine: ChatEngine,
        records: TurnRecords,
        contexts: TurnContexts,
        templates: Templates,
        notifications: Notifications,
        titles: Titles | None = None,
        admission: Admission | None = None,
        storage: StorageQuota | None = None,
        tool_offers: ToolOffers | None = None,
        sources: Sources | None = None,
    ) -> None:
        """``titles``: generates the title of a new conversation; None keeps the first words of its first message.

        Args:
            admission: limits on replies; None is no limit.
            storage: limits on storage; None is no limit.
            tool_offers: the tools that chats are offered; None offers none.
            sources: finds the sources of replies; None: there are no documents.
        """
        self._admission = admission or UnlimitedAdmission()
        self._storage = storage
        self._titles = titles
        self._settings = settings
        self._records = records
        poll_seconds = min(settings.checkpoint_seconds, settings.lease_seconds / 3)
        self._idempotent_starts = IdempotentStarts(records)
        sources = sources or Sources(None, engine, settings, read_sources_prompt())
        self._stored = StoredTurns(records, notifications, sources, poll_seconds)
        self._recent = RecentContexts()
        self._turn_requests = TurnRequests(contexts, self._recent, settings.max_message_chars)
        self._factory = LiveTurnFactory(
            settings,
            engine,
            records,
            templates,
            notifications,
            self._recent,
            tool_offers,
            sources,
        )
        requests = EngineRequests(engine, self._admission, accounts=settings.accounts)
        self.lens = Lens(contexts, self._factory, requests)
        self.context = ContextUse(contexts, self._factory, engine, settings.max_message_chars)
        self._live = LiveTurns()
        self._comparisons: dict[str, tuple[TurnRef, ...]] = {}  # those being written, by the id of their first turn
        self._closing = False

    async def start(
        self,
        user_id: str,
        *,
        text: str,
        conversation_id: str | None = None,
        parent_id: str | None = None,
        tip_id: str | None = None,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Saves a message and starts its reply. On return the message is in the database.

        Writes nothing if it raises. Cancelling the caller does not interrupt it half-way:
        the message is sent, or it is not.

        Args:
            conversation_id: None creates a conversation.
            parent_id: the reply that the message follows; None means the last message of the conversation.
            tip_id: what the user sees as the last message; Conflict if it no longer is.
            settings: saved on the conversation; None uses the conversation's own.
            collections: ids of the collections of documents that the conversation's replies rest on from now on; None
                leaves them as they are in the settings.
            request_id: idempotency key. A repeated request starts nothing and returns the turn of the first one,
                whatever its other arguments.

        Raises:
            InvalidInput: an empty or overlong message, or a setting out of range (named).
            ContextTooLong: the model cannot read that much.
            NotFound: the conversation or the parent is missing or another user's, or a collection is, or the user may
                not use it.
            Conflict: a reply is running in this conversation, or the conversation has moved on elsewhere.
            Overloaded: the engine's queue is full.
            EngineUnavailable: the engine or the server is stopping.
            TooManyRequests: the user has reached a limit on replies.
            LimitReached: the user or the conversation is at its storage limit.
            StorageUnavailable: the database is unavailable.
        """
        return await self._start(
            user_id,
            request_id,
            settings,
            lambda: self._turn_requests.new(
                user_id, text, conversation_id, parent_id, tip_id, uses_settings=settings is None
            ),
            collections,
            # A repeated request cannot begin its turn again, nor follow a tip that its first one has moved on.
            look_first=conversation_id is not None and tip_id is None,
            may_begin_unread=parent_id is None,
        )

    async def edit(
        self,
        user_id: str,
        message_id: str,
        *,
        text: str,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Saves ``text`` as a sibling of the message, which keeps all that followed it, and starts its reply.

        Otherwise as :meth:`start`.

        Args:
            message_id: a message of the user's.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if the message is a reply.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.edit(user_id, message_id, text), collections
        )

    async def regenerate(
        self,
        user_id: str,
        message_id: str,
        *,
        settings: ChatSettings | None = None,
        collections: Sequence[str] | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another reply to the same message, a sibling of the existing ones. Otherwise as :meth:`start`.

        Args:
            message_id: the message, or a reply to it.

        Raises:
            NotFound: the message is missing or another user's.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.regenerate(user_id, message_id), collections
        )

    async def branch_at(
        self,
        user_id: str,
        message_id: str,
        *,
        index: int,
        token_id: int,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another reply, a sibling of this one: its tokens before ``index``, then ``token_id``, then the rest.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if there are no such tokens, or the reply cannot branch there.
            NotSupported: the engine does not report the tokens of replies.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self.lens.branch(user_id, message_id, index, token_id)
        )

    async def rewrite(
        self,
        user_id: str,
        message_id: str,
        *,
        text: str,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> TurnRef:
        """Starts another version of a reply that begins with the user's text; the model goes on from its end.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if the message is no reply, or has calls of tools.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.rewrite(user_id, message_id, text)
        )

    async def resume_as_version(
        self, user_id: str, message_id: str, *, settings: ChatSettings | None = None, request_id: str | None = None
    ) -> TurnRef:
        """As :meth:`resume`, but the reply stays, with what follows it: the longer one is another version.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if it cannot be resumed.
        """

        return await self._start(
            user_id, request_id, settings, lambda: self._turn_requests.resume_as_version(user_id, message_id)
        )

    async def compare(
        self,
        user_id: str,
        variants: Sequence[ChatSettings],
        *,
        text: str,
        conversation_id: str | None = None,
        tip_id: str | None = None,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> tuple[TurnRef, ...]:
        """Saves a message and starts a reply to it for each of the variants. All are versions; the first is shown.

        Otherwise as :meth:`start`.

        Args:
            variants: the settings of the replies, which are not saved on the conversation.

        Raises:
            TooManyRequests: as :meth:`start`, if there is no room for all of them.
        """
        return await self._compare(
            user_id,
            variants,
            request_id,
            settings,
            lambda: self._turn_requests.new(user_id, text, conversation_id, None, tip_id),
        )

    async def compare_again(
        self,
        user_id: str,
        message_id: str,
        variants: Sequence[ChatSettings],
        *,
        settings: ChatSettings | None = None,
        request_id: str | None = None,
    ) -> tuple[TurnRef, ...]:
        """As :meth:`compare`, for a message that exists already, or the one that this is a reply to.

        Raises:
            NotFound: the message is missing or another user's.
        """
        return await self._compare(
            user_id, variants, request_id, settings, lambda: self._turn_requests.regenerate(user_id, message_id)
        )

    async def resume(self, user_id: str, message_id: str, *, settings: ChatSettings | None = None) -> TurnRef:
        """Resumes a reply that was stopped, interrupted, or reached its maximum length. Keeps its turn.

        Otherwise as :meth:`start`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if it cannot be resumed.
        """

        return await self._start(user_id, None, settings, lambda: self._turn_requests.resume(user_id, message_id))

    async def decide(
        self, user_id: str, message_id: str, decision: ToolDecision, *, settings: ChatSettings | None = None
    ) -> TurnRef:
        """Goes on with a reply whose calls of tools have waited for the user's decision: runs those that are allowed.

        Otherwise as :meth:`resume`.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: also if nothing waits, or the decision is not about exactly what waits.
        """

        return await self._start(
            user_id, None, settings, lambda: self._turn_requests.decide(user_id, message_id, decision)
        )

    async def events(
        self, user_id: str, turn_id: str, offset: int = 0, reasoning_offset: int = 0
    ) -> AsyncIterator[TurnEvent]:
        """Follows a reply from the offsets on; :class:`TurnEnd` comes last. Works for finished turns too.

        A slow reader gets all new text in one piece with its next event.

        Raises:
            NotFound: on the first ``anext``, if the turn is missing or another user's.
        """
        live = self._live.find(user_id, turn_id)
        if live is not None:
            events = live.buffer.follow(offset, reasoning_offset)
        else:
            events = self._stored.events(user_id, turn_id, offset, reasoning_offset)
        async for event in events:
            yield event

    def reader(
        self, user_id: str, turn_id: str, offset: int, changed: ChangeCallback, reasoning_offset: int = 0
    ) -> TurnReader:
        """As :meth:`events`, for a caller that reads many replies at once: it takes whenever ``changed`` is called."""
        live = self._live.find(user_id, turn_id)
        if live is not None:
            return live.buffer.reader(offset, changed, reasoning_offset)
        return PrefetchingReader(self._stored.events(user_id, turn_id, offset, reasoning_offset), changed)

    async def snapshot(self, user_id: str, turn_id: str) -> TurnSnapshot:
        """The current state of the turn.

        Raises:
            NotFound: it is missing or another user's.
        """
        live = self._live.find(user_id, turn_id)
        return live.snapshot() if live is not None else await self._stored.snapshot(user_id, turn_id)

    def running_turn_ids(self) -> list[str]:
        """The ids of the turns that this process is writing."""
        return list(self._live.by_id)

    def count_running(self, user_id: str) -> int:
        """How many of the user's replies this process is writing."""
        return self._live.count(user_id)

    async def stop(self, user_id: str, turn_id: str) -> None:
        """Stops the reply and keeps its text so far. A second stop, or one after the end, is no error.

        On return the reply is final and saved, so that the next message can be sent. If the database is
        unavailable, saving continues in the background.

        Raises:
            NotFound: the turn is missing or another user's.
            EngineUnavailable: another process is writing it and has not answered for some seconds; the stop request
                stays.
        """
        live = self._live.find(user_id, turn_id)
        if live is None:
            await self._stored.stop(user_id, turn_id)
            return
        live.stop(MessageStatus.STOPPED)
        await live.wait_until_saved()

    async def delete_conversation(self, user_id: str, conversation_id: str) -> None:
        """Deletes a conversation permanently, with a reply that is still in flight.

        Raises:
            NotFound: it is missing or another user's.
        """
        # Delete the rows first: if that fails, the reply is unharmed.
        await self._records.delete_conversation(user_id, conversation_id)
        self._recent.forget(user_id, conversation_id)
        for live in self._live.within({conversation_id}):
            live.discard()
            await live.wait_until_saved()

    async def leave_conversations(self, user_id: str, conversation_ids: Collection[str]) -> None:
        """Stops the replies in conversations that were deleted, and keeps their text so far: they may be restored."""
        for conversation_id in conversation_ids:
            self._recent.forget(user_id, conversation_id)
        left = self._live.within(conversation_ids)
        for live in left:
            live.stop(MessageStatus.STOPPED)
        for live in left:
            await live.wait_until_saved()

    async def close(self) -> None:
        """Starts no more replies, gives those in flight ``shutdown_seconds``, then ends them as interrupted."""
        self._closing = True
        if self._titles is not None:
            await self._titles.close()
        # A start in flight needs the task that ends its turn.
        await self._idempotent_starts.wait_for_pending(LAST_WRITE_SECONDS)
        await self._live.close(self._settings.shutdown_seconds)

    async def _start(
        self,
        user_id: str,
        request_id: str | None,
        settings: ChatSettings | None,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
        collections: Sequence[str] | None = None,
        *,
        look_first: bool = True,
        may_begin_unread: bool = False,
    ) -> TurnRef:
        """``may_begin_unread``: a message at the end of its conversation, whose checks can be left to its write."""

        async def begin_once(turn_id: str, *, is_repeated: bool) -> TurnRef:
            admitted = self._admitted(
                user_id,
                resolve_request,
                is_message=not is_repeated,  # it was counted, and has cost a generation
                may_count_later=may_begin_unread and not is_repeated,
            )
            async with admitted as (turn_request, max_running):
                return await self._begin(user_id, turn_id, settings, turn_request, collections, max_running)

        async def begin(turn_id: str) -> TurnRef:
            if (live := self._live.find(user_id, turn_id)) is not None:
                return live.ref
            try:
                return await begin_once(turn_id, is_repeated=False)
            except NotBegun:  # what is in its way is told now; the context is no longer cached
                return await begin_once(turn_id, is_repeated=True)

        return await self._idempotent_starts.start_once(user_id, request_id, begin, look_first=look_first)

    @asynccontextmanager
    async def _admitted(
        self,
        user_id: str,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
        replies: int = 1,
        *,
        is_message: bool = True,
        is_comparison: bool = False,
        may_count_later: bool = False,
    ) -> AsyncIterator[tuple[TurnRequest, int | None]]:
        """Admits a request, which is read while the user's replies are counted.

        Yields it and the most replies of the user that may be running as it begins; None: they were counted.
        """
        resolving = asyncio.create_task(self._resolve(user_id, resolve_request))
        try:
            async with self._admission.admit(
                user_id,
                replies,
                is_message=is_message,
                is_comparison=is_comparison,
                request=resolving,
                may_count_later=may_count_later and self._records.can_begin_unread,
            ) as max_running:
                yield resolving.result(), max_running
        finally:
            resolving.cancel()

    async def _resolve(self, user_id: str, resolve_request: Callable[[], Awaitable[TurnRequest]]) -> TurnRequest:
        """The request, if there is room in the storage for what it begins."""
        if self._closing:
            raise EngineUnavailable("The server is shutting down. Please send again once it is back.")
        turn_request = await resolve_request()
        if self._storage is not None:
            await self._storage.check(user_id, turn_request.conversation_id)
        return turn_request

    async def _begin(
        self,
        user_id: str,
        turn_id: str,
        settings: ChatSettings | None,
        turn_request: TurnRequest,
        collections: Sequence[str] | None,
        max_running: int | None,
    ) -> TurnRef:
        if collections is not None:
            settings = settings or turn_request.context.settings
            settings = settings.model_copy(update={"collections": tuple(collections)})
        live, new = await self._factory.make(user_id, turn_id, settings, turn_request)
        read_as_of = turn_request.context.read_as_of
        begin: Callable[[str, NewTurn], Awaitable[datetime]]
        if new.partial_reply:
            begin = self._records.resume
        elif self._records.can_begin_unread and (read_as_of is not None or max_running is not None):
            begin = partial(self._records.begin_unread, read_as_of=read_as_of, max_running=max_running)
        else:
            begin = self._records.begin
        updated_at = await self._write([live], lambda: begin(user_id, new))
        self._launch(live, new, turn_request, updated_at)
        return live.ref

    async def _compare(
        self,
        user_id: str,
        variants: Sequence[ChatSettings],
        request_id: str | None,
        settings: ChatSettings | None,
        resolve_request: Callable[[], Awaitable[TurnRequest]],
    ) -> tuple[TurnRef, ...]:
        async def begin(turn_id: str) -> TurnRef:
            admitted = self._admitted(user_id, resolve_request, len(variants), is_comparison=True)
            async with admitted as (turn_request, _):
                return await self._begin_comparison(user_id, turn_id, variants, settings, turn_request)

        first = await self._idempotent_starts.start_once(user_id, request_id, begin)
        columns = self._comparisons.get(first.turn_id)
        if columns is not None:
            return columns
        # A repeated request, after the replies have ended.
        return tuple(map(ref_of, await self._records.find_comparison(user_id, first.turn_id))) or (first,)

    async def _begin_comparison(
        self,
        user_id: str,
        comparison_id: str,
        variants: Sequence[ChatSettings],
        settings: ChatSettings | None,
        turn_request: TurnRequest,
    ) -> TurnRef:
        started: list[tuple[LiveTurn, NewTurn, TurnRequest]] = []
        found: dict[tuple[str, ...], tuple[Passage, ...]] = {}  # by collections: one search for all columns
        for column, variant in enumerate(variants):
            live, new = await self._factory.make(
                user_id,
                new_id() if column else comparison_id,
                variant,
                turn_request,
                sources=found.get(variant.collections),
            )
            found[variant.collections] = live.sources
            new = replace(
                new,
                save_settings=settings is not None,
                conversation_settings=settings,
                comparison_id=comparison_id,
                comparison_column=column,
            )
            first = started[0][0] if started else live
            if column and live.prepared.messages == first.prepared.messages:
                live.start_after(first)
            started.append((live, new, turn_request))
            ref = live.ref
            turn_request = replace(turn_request, conversation_id=ref.conversation_id, message_id=ref.user_message_id)
        lives = [live for live, _, _ in started]
        write = partial(self._records.begin_comparison, user_id, [new for _, new, _ in started])
        updated_at = await self._write(lives, write)
        refs = tuple(live.ref for live in lives)
        self._comparisons[comparison_id] = refs
        for live, new, request in started:
            self._launch(live, new, request, updated_at).add_done_callback(
                lambda _: self._comparisons.pop(comparison_id, None)
            )
        return refs[0]

    async def _write(self, lives: Sequence[LiveTurn], write: Callable[[], Awaitable[Result]]) -> Result:
        """Writes the beginning of turns of one conversation and user."""

        async def forget_and_write() -> Result:
            self._recent.forget(lives[0].user_id, lives[0].ref.conversation_id)
            return await write()

        return await self._live.begin(lives, forget_and_write)

    def _launch(
        self, live: LiveTurn, new: NewTurn, turn_request: TurnRequest, updated_at: datetime
    ) -> asyncio.Task[None]:
        """``updated_at``: of the conversation, as the start of the turn has left it."""
        task = self._live.launch(live)
        task.add_done_callback(lambda _: self._admission.record_tokens(live.user_id, live.tokens))
        if new.partial_reply is None and new.comparison_column == 0:  # of a comparison, the one that is shown
            task.add_done_callback(lambda _: self._remember(live, turn_request, new.settings, updated_at))
        if new.title is not None:
            task.add_done_callback(lambda _: self._generate_title(live, turn_request.text))
        return task

    def _remember(
        self, live: LiveTurn, turn_request: TurnRequest, settings: ChatSettings, updated_at: datetime
    ) -> None:
        """Caches what the conversation's next message starts from."""
        if live.saved is None:
            return
        context, saved = turn_request.context, live.saved
        reply = reply_message(saved.text, saved.token_ids, saved.reasoning, saved.tool_uses, live.sources)
        after = TurnContext(
            parent_id=live.ref.message_id,
            path=(*context.path, PathMessage(Role.USER, turn_request.text), reply),
            settings=settings,
            streaming=False,
            omitted_messages=live.ref.omitted_messages,
            context_length=live.ref.context_length,
            allowed_tools=context.allowed_tools,
            read_as_of=updated_at,
        )
        self._recent.keep(live.user_id, live.ref.conversation_id, after, live.prepared)

    def _generate_title(self, live: LiveTurn, message: str) -> None:
        end = live.buffer.end
        complete = isinstance(end, TurnEnd) and end.status is MessageStatus.COMPLETE
        if self._titles is not None and not self._closing and complete and live.buffer.text.strip():
            self._titles.generate(live.user_id, live.ref.conversation_id, message, live.buffer.text)
