"""What the bot does with cases. Every write names the epoch at which the bot read the case: once a person has acted, it
changes nothing and says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection, and_, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from app.domain import cases as rules
from app.domain.case_views import CaseMessage, CaseView, InboxView
from app.domain.cases import BOT, SYSTEM, AuthorKind, CaseStatus, HandOffReason
from app.domain.gaps import GapReason
from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.views import MessageStatus, ReplyStats
from app.store.cases.case_rows import (
    case_messages,
    case_state,
    case_views,
)
from app.store.cases.case_writes import (
    append_message,
    apply,
    end_bot_reply,
    running_turns,
    show_preview,
    touch,
)
from app.store.cases.outbox import enqueue_message
from app.store.cases.signals import CaseSignals
from app.store.cases.visitor_reads import case_with_inbox, messages_of_bot
from app.store.chat.gap_writes import write_gap
from app.store.chat.leases import lease_until
from app.store.chat.reply_writes import TurnOutcome, ended_message, ended_turn
from app.store.db.case_models import Inbox, SupportCase
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, Turn
from app.store.db.notifications import Channel, notify

Result = TypeVar("Result")

MAX_HISTORY = 200
"""Messages that the bot reads, the newest ones: what a model's context does not hold is left out anyway."""

# Built once: every message of a visitor runs these.
_LOCKED_CASE = (
    select(SupportCase)
    .where(SupportCase.id == bindparam("id"))
    .with_for_update(key_share=True)
    .execution_options(populate_existing=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BotReply:
    """A reply that the bot may write: the turn that its checkpoints and its end are stored under."""

    turn_id: str
    message: CaseMessage
    user_id: str  #: the inbox's account, as which :class:`app.store.chat.turn_records.TurnRecords` knows the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class BotCase:
    """A case that the bot has, as it reads it."""

    case: CaseView
    inbox: InboxView
    history: tuple[CaseMessage, ...]


class BotCases:
    """The commands of the bot.

    A reply is a turn, so its checkpoints and its lease are those of any reply (``TurnRecords.checkpoint``). A person's
    message ends the turn in its own transaction: what the bot still writes finds no running turn and is lost.

    Args:
        owner: id of this start of the process.
        lease_seconds: how long a reply belongs to the process after each checkpoint.
    """

    def __init__(self, database: Database, signals: CaseSignals, owner: str, lease_seconds: float) -> None:
        self._database = database
        self._signals = signals
        self._owner = owner
        self._lease_seconds = lease_seconds

    async def get(self, case_id: str) -> CaseView | None:
        """The case; None if it was deleted."""

        found = await self._database.read_rows(lambda connection: case_with_inbox(connection, case_id))
        return found.case if found is not None else None

    async def history(self, case_id: str) -> list[CaseMessage]:
        """The messages that the bot reads, oldest first: without notes, since the last resolution, and the newest
        :data:`MAX_HISTORY`."""
        return await self._database.read_rows(lambda connection: messages_of_bot(connection, case_id, MAX_HISTORY))

    async def open(self, case_id: str) -> BotCase | None:
        """The case as the bot answers it; None if it was deleted, or the bot does not have it."""

        def work(connection: Connection) -> BotCase | None:
            found = case_with_inbox(connection, case_id)
            if found is None or found.case.status is not CaseStatus.BOT:
                return None
            history = tuple(messages_of_bot(connection, case_id, MAX_HISTORY))
            return BotCase(case=found.case, inbox=found.inbox, history=history)

        return await self._database.read_rows(work)

    async def unanswered(self, *, minimum_age_s: float = 0.0, limit: int = 100) -> list[CaseView]:
        """The cases in which a contact waits for the bot, while no process writes a reply: a stop has left them.

        The last message is the contact's, or a reply that did not come to its end.

        Args:
            minimum_age_s: seconds without a change; a case that has just changed may be about to be answered.
        """
        last = (
            select(Message.id)
            .where(Message.conversation_id == SupportCase.conversation_id, Message.internal.is_(False))
            .order_by(Message.position.desc())
            .limit(1)
            .correlate(SupportCase)
            .scalar_subquery()
        )
        waits = or_(
            Message.author_kind == AuthorKind.CONTACT,
            and_(Message.author_kind == AuthorKind.BOT, Message.status != MessageStatus.COMPLETE),
        )
        running = exists().where(Turn.conversation_id == SupportCase.conversation_id, Turn.status == "running")
        query = (
            select(SupportCase)
            .join(Message, Message.id == last)
            .where(
                SupportCase.status == CaseStatus.BOT,
                SupportCase.updated_at <= datetime.now(UTC) - timedelta(seconds=minimum_age_s),
                waits,
                ~running,
            )
            .order_by(SupportCase.updated_at)
            .limit(limit)
        )
        return await self._database.read(lambda session: case_views(session, query))

    async def begin_reply(
        self, case_id: str, epoch: int, *, model: str, sources: Sequence[Passage] = ()
    ) -> BotReply | None:
        """Stores an empty reply and the turn that writes it; None if the bot may not write any more.

        An earlier reply of the bot that is still being written ends.
        """

        def work(session: Session) -> tuple[BotReply, SupportCase] | None:
            case = _bots_case(session, case_id, epoch)
            if case is None:
                return None
            now = datetime.now(UTC)
            end_bot_reply(session, case)
            streaming = MessageStatus.STREAMING
            message = append_message(session, case, BOT, "", now, status=streaming, sources=sources)
            turn_id = new_id()
            session.add(
                Turn(
                    id=turn_id,
                    conversation_id=case.conversation_id,
                    message_id=message.id,
                    status="running",
                    model=model,
                    params={},
                    owner=self._owner,
                    created_at=now,
                    heartbeat_at=now,
                    lease_until=lease_until(session, self._lease_seconds),
                    checkpoint_offset=0,
                )
            )
            touch(session, case, now)
            user_id = session.get_one(Inbox, case.inbox_id).user_id
            return BotReply(turn_id=turn_id, message=message, user_id=user_id), case

        return await self._signalled(work)

    async def write(
        self, case_id: str, epoch: int, text: str, *, sources: Sequence[Passage] = (), system: bool = False
    ) -> CaseMessage | None:
        """Stores a whole message of the bot, or of the system; None if the bot may not write any more."""

        def work(session: Session) -> tuple[CaseMessage, SupportCase] | None:
            case = _bots_case(session, case_id, epoch)
            if case is None:
                return None
            now = datetime.now(UTC)
            end_bot_reply(session, case)
            message = append_message(session, case, SYSTEM if system else BOT, text, now, sources=sources)
            touch(session, case, now)
            return message, case

        return await self._signalled(work)

    async def hand_off(
        self,
        case_id: str,
        epoch: int,
        reason: HandOffReason,
        *,
        sentence: str | None = None,
        sources: Sequence[Passage] = (),
        note: str | None = None,
    ) -> CaseView | None:
        """Gives the case to people; None if the bot does not have it any more, which is as good.

        A reply that is being written ends. One that is still empty becomes the sentence.

        Args:
            sentence: what the contact is told, in the same transaction.
            sources: what the sentence cites.
            note: a summary for the agents, likewise.
        """

        def work(session: Session) -> tuple[CaseView, SupportCase] | None:
            case = _bots_case(session, case_id, epoch)
            if case is None:
                return None
            now = datetime.now(UTC)
            begun = next((session.get_one(Message, id) for _, id in running_turns(session, case)), None)
            actor = SYSTEM if reason in (HandOffReason.FAILURE, HandOffReason.TIMEOUT) else BOT
            apply(session, case, rules.hand_off(case_state(case), actor, reason, now), now)
            if begun is not None:
                session.refresh(begun)
                _leave_gap(session, case, begun, reason)
            if sentence and begun is not None and not begun.content:
                begun.author_kind, begun.status, begun.content = SYSTEM.kind, MessageStatus.COMPLETE, sentence
                begun.sources = tuple(sources) or None
                show_preview(case, begun)
                session.flush()
                enqueue_message(session, case, case_messages(session, Message.id == begun.id)[0])
            elif sentence:
                append_message(session, case, SYSTEM, sentence, now, sources=sources)
            if note:
                append_message(session, case, BOT, note, now, internal=True)
            session.flush()
            return _view(session.connection(), case_id), case

        return await self._signalled(work)

    async def resolve(self, case_id: str, epoch: int) -> CaseView | None:
        """Ends a case that the bot answered, such as after some days of silence; None if it has it no more."""

        def work(session: Session) -> tuple[CaseView, SupportCase] | None:
            case = _bots_case(session, case_id, epoch)
            if case is None:
                return None
            now = datetime.now(UTC)
            apply(session, case, rules.resolve(case_state(case), BOT, now), now)
            session.flush()
            return _view(session.connection(), case_id), case

        return await self._signalled(work)

    async def finish(self, reply: BotReply, outcome: TurnOutcome) -> bool:
        """Stores the end of a reply, and tells the readers and the webhooks of it, in one transaction.

        Returns:
            False if the turn is no longer this process's: a person's act has ended it, or the case was deleted.
        """

        def work(session: Session) -> tuple[bool, SupportCase] | None:
            case = session.get(SupportCase, reply.message.case_id, with_for_update={"key_share": True})
            own = (Turn.id == reply.turn_id, Turn.status == "running", Turn.owner == self._owner)
            if case is None or session.scalar(select(Turn.id).where(*own).with_for_update()) is None:
                return None
            now = datetime.now(UTC)
            message_id = reply.message.id
            session.execute(update(Turn).where(Turn.id == reply.turn_id).values(ended_turn(outcome, now)))
            session.execute(update(Message).where(Message.id == message_id).values(ended_message(outcome)))
            session.execute(update(Conversation).where(Conversation.id == case.conversation_id).values(unread=True))
            if outcome.collections:
                write_gap(session.connection(), message_id, case.conversation_id, outcome.gap, outcome.collections)
            notify(session, Channel.CHANGED, reply.turn_id)
            show_preview(case, session.get_one(Message, message_id, populate_existing=True))
            touch(session, case, now)
            if outcome.text:
                enqueue_message(session, case, case_messages(session, Message.id == message_id)[0])
            return True, case

        return bool(await self._signalled(work))

    async def count_tokens(self, turn_id: str, stats: ReplyStats) -> None:
        """Stores what a reply that did not come to its end has cost. A whole one's statistics stay."""
        await self._database.write(
            lambda session: session.execute(
                update(Turn).where(Turn.id == turn_id, Turn.prompt_tokens.is_(None)).values(asdict(stats))
            )
        )

    async def _signalled(self, work: Callable[[Session], tuple[Result, SupportCase] | None]) -> Result | None:
        done = await self._database.write(work)
        if done is None:
            return None
        result, case = done
        self._signals.changed(case.id, case.inbox_id)
        return result


def _view(connection: Connection, case_id: str) -> CaseView:
    found = case_with_inbox(connection, case_id)
    assert found is not None  # this transaction holds its row
    return found.case


def _leave_gap(session: Session, case: SupportCase, reply: Message, reason: HandOffReason) -> None:
    """Counts the question among those that the collections left unanswered, if that is why people have the case."""
    collections = session.get_one(Inbox, case.inbox_id).collections
    if reason is HandOffReason.MISSING_KNOWLEDGE and collections:
        gap = GapReason.NOT_CITED if reply.sources else GapReason.NOTHING_FOUND
        write_gap(session.connection(), reply.id, case.conversation_id, gap, collections)


def _bots_case(session: Session, case_id: str, epoch: int) -> SupportCase | None:
    """The case, locked, if the bot may still write in it."""
    case = session.scalars(_LOCKED_CASE, {"id": case_id}).one_or_none()
    return case if case is not None and rules.may_bot_write(case_state(case), epoch) else None
