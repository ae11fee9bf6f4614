"""What is written down of a turn: its beginning in one transaction, checkpoints, its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from sqlalchemy import CursorResult, delete, select, update
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.views import MessageStatus, ReplyStats, Role
from app.errors import Conflict, NotFound
from app.store.conversations import settings_row
from app.store.database import Database
from app.store.models import Conversation, Message, Turn
from app.store.rows import is_id, owned_conversation, owned_message, reply_stats
from app.store.turn_contexts import BUSY, is_running, resumable_turn

SWEPT = "The server stopped while this reply was being written."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A message and the reply to it, before the reply has a word."""

    turn_id: str
    conversation_id: str
    user_message_id: str
    message_id: str
    title: str | None  #: of the conversation to make; None where there is one
    parent_id: str | None  #: what the message follows
    parent_is_tip: bool  #: refuse if the conversation has moved on meanwhile
    text: str | None  #: None where the message is there already, and gets one more reply
    settings: ChatSettings
    save_settings: bool
    model: str
    omitted_messages: int = 0
    context_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn and its reply as they are stored."""

    turn_id: str
    conversation_id: str
    user_message_id: str | None
    message_id: str
    omitted_messages: int
    context_length: int | None
    has_system_prompt: bool
    text: str
    status: MessageStatus
    stats: ReplyStats | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """How a reply ended."""

    text: str
    status: MessageStatus
    stats: ReplyStats | None = None
    error: str | None = None
    token_ids: tuple[int, ...] = ()  #: that spell the text, where they are known


class TurnRecords:
    """The repository of turns.

    Args:
        owner: id of this start of the process. Turns that run under another are dead, see :meth:`sweep`.
    """

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner

    async def resume(self, user_id: str, new: NewTurn) -> None:
        """Let the turn ``new.turn_id`` run again, to write the rest of its reply.

        Raises:
            NotFound: the reply is gone.
            Conflict: a reply is being written in the conversation.
            InvalidInput: by now the reply cannot go on.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            conversation = owned_conversation(session, user_id, new.conversation_id, lock=True)
            if is_running(session, conversation.id):
                raise Conflict(BUSY)
            message = owned_message(session, user_id, new.message_id)
            turn = resumable_turn(session, message)
            message.status, message.indexed = MessageStatus.STREAMING, False
            turn.status, turn.owner, turn.heartbeat_at = "running", self._owner, now
            turn.ended_at = turn.error = turn.finish_reason = None
            turn.model, turn.params, turn.seed = new.model, settings_row(new.settings), new.settings.seed
            turn.omitted_messages, turn.context_length = new.omitted_messages, new.context_length
            conversation.tip_message_id = message.id
            conversation.updated_at = now
            if new.save_settings:
                conversation.settings = settings_row(new.settings)

        await self._database.write(work)

    async def begin(self, user_id: str, new: NewTurn) -> None:
        """Write the (conversation,) message, empty reply and running turn, or nothing.

        Raises:
            NotFound: the conversation is gone, or what the message follows.
            Conflict: a reply is being written there, or the tip is another one by now.
        """
        now = datetime.now(UTC)

        def work(session: Session) -> None:
            if new.title is not None:
                conversation = Conversation(
                    id=new.conversation_id, user_id=user_id, title=new.title, settings={}, created_at=now
                )
                session.add(conversation)
            else:
                conversation = owned_conversation(session, user_id, new.conversation_id, lock=True)
                if is_running(session, conversation.id):
                    raise Conflict(BUSY)
                if new.parent_is_tip and conversation.tip_message_id != new.parent_id:
                    raise Conflict("This conversation has gone on elsewhere. Look at it again, then send.")
            conversation.tip_message_id = new.message_id
            conversation.updated_at = now
            conversation.archived = conversation.unread = False  # who writes there is there
            if new.save_settings:
                conversation.settings = settings_row(new.settings)
            session.flush()
            if new.text is not None:
                _add_message(session, new, Role.USER, new.text, now)
            _add_message(session, new, Role.ASSISTANT, "", now)
            session.add(
                Turn(
                    id=new.turn_id,
                    conversation_id=conversation.id,
                    message_id=new.message_id,
                    status="running",
                    model=new.model,
                    params=settings_row(new.settings),
                    seed=new.settings.seed,
                    owner=self._owner,
                    created_at=now,
                    heartbeat_at=now,
                    checkpoint_offset=0,
                    omitted_messages=new.omitted_messages,
                    context_length=new.context_length,
                )
            )

        await self._database.write(work)

    async def checkpoint(self, user_id: str, turn_id: str, text: str) -> bool:
        """Write what there is of the reply. False when the turn is no longer running: deleted, or taken over."""

        def work(session: Session) -> bool:
            return self._write_reply(
                session,
                user_id,
                turn_id,
                {"content": text, "status": MessageStatus.STREAMING},
                {"heartbeat_at": datetime.now(UTC), "checkpoint_offset": len(text)},
            )

        return await self._database.write(work)

    async def finish(self, user_id: str, turn_id: str, outcome: TurnOutcome) -> bool:
        """Write the end of the reply. False when the turn is no longer running: deleted, or taken over."""
        now = datetime.now(UTC)
        values: dict[str, object] = {
            "status": outcome.status,
            "error": outcome.error,
            "heartbeat_at": now,
            "ended_at": now,
            "checkpoint_offset": len(outcome.text),
        }
        if outcome.stats is not None:
            values |= asdict(outcome.stats)

        def work(session: Session) -> bool:
            message = {"content": outcome.text, "status": outcome.status, "token_ids": outcome.token_ids}
            if not self._write_reply(session, user_id, turn_id, message, values):
                return False
            conversation_id = select(Turn.conversation_id).where(Turn.id == turn_id).scalar_subquery()
            session.execute(update(Conversation).where(Conversation.id == conversation_id).values(unread=True))
            return True

        return await self._database.write(work)

    async def get(self, user_id: str, turn_id: str) -> TurnRecord:
        """Raises:
        NotFound: the turn is missing or another user's.
        """
        missing = NotFound("There is no such reply. Its conversation may have been deleted.")
        if not is_id(turn_id):
            raise missing

        def work(session: Session) -> TurnRecord:
            row = session.execute(
                select(Turn, Message)
                .join(Message, Message.id == Turn.message_id)
                .join(Conversation, Conversation.id == Turn.conversation_id)
                .where(Turn.id == turn_id, Conversation.user_id == user_id)
            ).one_or_none()
            if row is None:
                raise missing
            turn, message = row
            return TurnRecord(
                turn_id=turn.id,
                conversation_id=turn.conversation_id,
                user_message_id=message.parent_id,
                message_id=message.id,
                omitted_messages=turn.omitted_messages or 0,
                context_length=turn.context_length,
                has_system_prompt=ChatSettings.model_validate(turn.params).has_system_prompt,
                text=message.content,
                status=MessageStatus(message.status),
                stats=reply_stats(turn),
                error=turn.error,
            )

        return await self._database.read(work)

    async def delete_conversation(self, user_id: str, conversation_id: str) -> None:
        """Delete the conversation with its messages and turns.

        Raises:
            NotFound: it is missing or another user's.
        """

        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id, lock=True)
            session.execute(delete(Conversation).where(Conversation.id == conversation_id))

        await self._database.write(work)

    async def sweep(self) -> int:
        """Mark what earlier starts of the process left running as interrupted; returns how many turns that were.

        The one method without a user: it looks at the dead process's turns, whoever asked for them.
        """

        def work(session: Session) -> int:
            dead = Turn.status == "running", Turn.owner != self._owner
            session.execute(
                update(Message)
                .where(Message.id.in_(select(Turn.message_id).where(*dead)))
                .values(status=MessageStatus.INTERRUPTED)
                .execution_options(synchronize_session=False)
            )
            swept = session.execute(
                update(Turn)
                .where(*dead)
                .values(status=MessageStatus.INTERRUPTED, ended_at=datetime.now(UTC), error=SWEPT)
                .execution_options(synchronize_session=False)
            )
            assert isinstance(swept, CursorResult)
            return swept.rowcount

        return await self._database.write(work)

    def _write_reply(
        self,
        session: Session,
        user_id: str,
        turn_id: str,
        message: Mapping[str, object],
        turn: Mapping[str, object],
    ) -> bool:
        # The turn first: its row decides who may write, and holds back a checkpoint that comes too late.
        message_id = session.scalar(
            update(Turn)
            .where(
                Turn.id == turn_id,
                Turn.status == "running",
                Turn.owner == self._owner,
                Turn.conversation_id.in_(select(Conversation.id).where(Conversation.user_id == user_id)),
            )
            .values(turn)
            .returning(Turn.message_id)
            .execution_options(synchronize_session=False)
        )
        if message_id is None:
            return False
        session.execute(
            update(Message).where(Message.id == message_id).values(message).execution_options(synchronize_session=False)
        )
        return True


def _add_message(session: Session, new: NewTurn, role: Role, content: str, now: datetime) -> None:
    """The person's message of a new turn, or the reply to it."""
    is_reply = role is Role.ASSISTANT
    parent_id = new.user_message_id if is_reply else new.parent_id
    parent = session.get(Message, parent_id) if parent_id is not None else None
    if parent_id is not None and (parent is None or parent.deletion is not None):
        raise NotFound("The message that this one follows was deleted meanwhile. Look at the conversation again.")
    session.add(
        Message(
            id=new.message_id if is_reply else new.user_message_id,
            conversation_id=new.conversation_id,
            parent_id=parent_id,
            role=role,
            status=MessageStatus.STREAMING if is_reply else MessageStatus.COMPLETE,
            content=content,
            position=parent.position + 1 if parent is not None else 0,
            created_at=now,
        )
    )
    session.flush()
