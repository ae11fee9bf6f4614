"""Counts and deletes a user's data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Select, delete, exists, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.accounts import fold_name
from app.domain.audit import AuditAction
from app.domain.ids import LOCAL_USER_ID
from app.errors import NotFound
from app.store.chat.responses import delete_some_responses
from app.store.db.database import Database
from app.store.db.desk_models import Feedback, ReplyDraft
from app.store.db.knowledge_models import Article, Question
from app.store.db.models import Account, AuditEvent, Conversation, Folder, Message, SavedPreset, Turn
from app.store.db.response_models import StoredResponse
from app.store.db.rows import change_rows, is_id, shown_name
from app.store.db.sign_in_models import ApiKey, LoginSession
from app.store.desk.audit import add_event

BATCH = 50  # conversations per transaction: other writers wait for one batch at most


@dataclass(frozen=True, slots=True)
class DeletionPreview:
    """What a deletion would delete, in numbers. ``audit_events`` stay and keep only the deleted user's id."""

    user_id: str
    name: str
    conversations: int
    messages: int
    replies: int
    feedback: int
    responses: int
    drafts: int
    articles: int
    marked_questions: int
    api_keys: int
    sessions: int
    audit_events: int


class UserDataRecords:
    """The repository of all of a user's data, for admins who were asked to delete it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: str) -> str:
        """The id of the user who signs in with this name.

        Raises:
            NotFound: there is no such user.
        """
        query = select(Account.id).where(Account.name == fold_name(name), Account.kind == "person")
        found = await self._database.read(lambda session: session.scalar(query))
        if found is None:
            raise NotFound(f"There is no user '{name}'.")
        return found

    async def preview(self, user_id: str) -> DeletionPreview:
        """Counts a user's data.

        Raises:
            NotFound: there is no such user.
        """
        return await self._database.read(lambda session: _data(session, user_id))

    async def running_in(self, user_id: str) -> list[str]:
        """Ids of the conversations in which a reply is being written."""
        query = (
            select(Turn.conversation_id)
            .join(Conversation, Conversation.id == Turn.conversation_id)
            .where(Conversation.user_id == user_id, Conversation.deletion.is_(None), Turn.status == "running")
        )
        return list(await self._database.read(lambda session: session.scalars(query).all()))

    async def delete_conversations(self, user_id: str) -> None:
        """Deletes the conversations in which no reply is being written, in batches."""

        def work(session: Session) -> int:
            running = exists().where(Turn.conversation_id == Conversation.id, Turn.status == "running")
            some = select(Conversation.id).where(Conversation.user_id == user_id, ~running).limit(BATCH)
            return change_rows(session, delete(Conversation).where(Conversation.id.in_(session.scalars(some).all())))

        while await self._database.write(work) == BATCH:
            pass

    async def delete_responses(self, user_id: str) -> None:
        """Deletes the stored responses, in batches."""
        while await self._database.write(lambda session: delete_some_responses(session, user_id)):
            pass

    async def delete_rest(self, actor_id: str | None, before: DeletionPreview) -> None:
        """Deletes the user with all remaining data and records it in the audit log. The local user's row stays.

        Raises:
            NotFound: another admin has deleted the user meanwhile.
        """
        user_id = before.user_id
        counts = {name: number for name, number in asdict(before).items() if isinstance(number, int)}

        def work(session: Session) -> None:
            _data(session, user_id)
            if user_id == LOCAL_USER_ID:
                session.execute(delete(Conversation).where(Conversation.user_id == user_id))
                session.execute(delete(Feedback).where(Feedback.user_id == user_id))
                session.execute(delete(StoredResponse).where(StoredResponse.user_id == user_id))
                session.execute(delete(Article).where(Article.author_id == user_id))
                session.execute(delete(Question).where(Question.author_id == user_id))
                session.execute(delete(Folder).where(Folder.user_id == user_id))
                session.execute(delete(SavedPreset).where(SavedPreset.user_id == user_id))
                session.execute(update(Account).where(Account.id == user_id).values(new_chat_settings=None))
            else:
                session.execute(delete(Account).where(Account.id == user_id))
            add_event(session, actor_id, AuditAction.PERSON_DELETED, user_id, **counts)

        await self._database.write(work)


def _data(session: Session, user_id: str) -> DeletionPreview:
    name = None
    if is_id(user_id):
        is_persons = (Account.id == user_id, Account.kind == "person")
        name = session.scalar(select(shown_name(Account)).where(*is_persons))
    if name is None:
        raise NotFound("There is no such account.")

    def number(query: Select[tuple[int]]) -> int:
        return session.scalar(query) or 0

    def count_rows(column: InstrumentedAttribute[str] | InstrumentedAttribute[str | None]) -> int:
        return number(select(func.count()).select_from(column.class_).where(column == user_id))

    def count_messages(role: str) -> int:
        return number(
            select(func.count())
            .select_from(Message)
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(Conversation.user_id == user_id, Message.role == role)
        )

    drafts = (
        select(func.count())
        .select_from(ReplyDraft)
        .join(Conversation, Conversation.id == ReplyDraft.conversation_id)
        .where(Conversation.user_id == user_id)
    )
    return DeletionPreview(
        user_id=user_id,
        name=name,
        conversations=count_rows(Conversation.user_id),
        messages=count_messages("user"),
        replies=count_messages("assistant"),
        feedback=count_rows(Feedback.user_id),
        responses=count_rows(StoredResponse.user_id),
        drafts=number(drafts),
        articles=count_rows(Article.author_id),
        marked_questions=count_rows(Question.author_id),
        api_keys=count_rows(ApiKey.user_id),
        sessions=count_rows(LoginSession.user_id),
        audit_events=count_rows(AuditEvent.actor_id),
    )
