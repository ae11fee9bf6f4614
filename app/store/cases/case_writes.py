"""The writes of a case, within a transaction that has locked its row: its state, its events, its messages.

A row lock of the case comes first in every transaction, then the turn of the bot's reply, its message, and the
conversation: the order in which checkpoints of replies lock (:mod:`app.store.chat.reply_writes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session, make_transient_to_detached

from app.domain.case_views import CaseMessage
from app.domain.cases import MAX_CLIENT_ID_CHARS, MAX_PREVIEW_CHARS, Actor, AuthorKind, CaseStatus, Transition
from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.text import clean_text, one_line
from app.domain.views import MessageStatus, Role
from app.errors import Conflict, InvalidInput
from app.store.cases.case_rows import case_messages, new_message_view
from app.store.cases.outbox import enqueue_events, enqueue_message
from app.store.db.case_models import CaseEvent, SupportCase
from app.store.db.models import Base, Conversation, Message, Turn, table_of
from app.store.db.notifications import Channel, notify
from app.store.db.prepared_statements import Prepared, insert_into, update_of

ENDED_BY_PERSON = "A person answered."

# Built once: every message of a visitor runs these.
_LAST_SEQUENCE = Prepared(select(func.max(CaseEvent.sequence)).where(CaseEvent.case_id == bindparam("case_id")))
_LAST_POSITION = Prepared(
    select(func.max(Message.position)).where(Message.conversation_id == bindparam("conversation_id"))
)
_RUNNING = Prepared(
    select(Turn.id, Turn.message_id)
    .where(Turn.conversation_id == bindparam("conversation_id"), Turn.status == "running")
    .with_for_update()
)
_BY_CLIENT_ID = Prepared(
    select(Message.id)
    .join(SupportCase, SupportCase.conversation_id == Message.conversation_id)
    .where(
        SupportCase.contact_id == bindparam("contact_id"),
        Message.client_id == bindparam("client_id"),
        Message.deletion.is_(None),
    )
    .order_by(Message.created_at.desc())
    .limit(1)
)
_TIP = Prepared(
    select(Conversation.tip_message_id).where(Conversation.id == bindparam("id")).with_for_update(key_share=True)
)
_MOVE_TIP = update_of(table_of(Conversation), ("tip_message_id", "updated_at"))
_OF_MESSAGE = (
    "id conversation_id parent_id role status content sources position created_at author_kind author_id internal "
    "client_id"
)
_NEW_MESSAGE = insert_into(table_of(Message), _OF_MESSAGE)
_OF_EVENT = "id case_id sequence inbox_id kind reason actor_kind actor_id details at"
_OF_CASE = " ".join(table_of(SupportCase).columns.keys())
_NEW_CASE = insert_into(table_of(SupportCase), _OF_CASE)
_NEW_EVENT = insert_into(table_of(CaseEvent), _OF_EVENT)


def checked_message(
    text: str, client_id: str | None, max_chars: int, *, may_be_empty: bool = False
) -> tuple[str, str | None]:
    """The text and the client's id as they are stored.

    Args:
        may_be_empty: the message has files, which need no text.

    Raises:
        InvalidInput: the text is empty or too long, or the client's id is too long.
    """
    text = clean_text(text).strip()
    if not text and not may_be_empty:
        raise InvalidInput("A message needs at least one character.")
    if len(text) > max_chars:
        raise InvalidInput(f"This message has {len(text):,} characters; at most {max_chars:,} are allowed. Shorten it.")
    if client_id is not None and not 0 < len(client_id) <= MAX_CLIENT_ID_CHARS:
        raise InvalidInput(f"client_id needs 1 to {MAX_CLIENT_ID_CHARS} characters.")
    return text, clean_text(client_id) if client_id is not None else None


def apply(session: Session, case: SupportCase, transition: Transition, now: datetime) -> None:
    """Stores what an act makes of the case, with its events, and tells the readers. A new case is written at once."""
    state = transition.state
    if state.status is CaseStatus.BOT and case.status == CaseStatus.RESOLVED:  # its history ends at the resolution
        case.bot_from = next_position(session, case.conversation_id)
    case.status, case.epoch, case.assignee_id = state.status, state.epoch, state.assignee_id
    case.handed_off_at, case.waiting_since = state.handed_off_at, state.waiting_since
    case.snoozed_until, case.first_reply_at = state.snoozed_until, state.first_reply_at
    case.resolved_at, case.merged_into = state.resolved_at, state.merged_into
    if state.status is not CaseStatus.BOT:
        end_bot_reply(session, case)
    last = _last_sequence(session, case) if transition.events else 0
    rows = [
        CaseEvent(
            id=new_id(),
            case_id=case.id,
            sequence=sequence,
            inbox_id=case.inbox_id,
            kind=event.kind,
            reason=event.reason,
            actor_kind=event.actor.kind,
            actor_id=event.actor.id,
            details=dict(event.details),
            at=now,
        )
        for sequence, event in enumerate(transition.events, start=last + 1)
    ]
    touch(session, case, now)
    if case not in session:  # a new one, which comes before its events
        _insert(session, case)
    if rows:
        _NEW_EVENT.run_each(session.connection(), [_values(row, _OF_EVENT) for row in rows])
    enqueue_events(session, case, rows)


def _last_sequence(session: Session, case: SupportCase) -> int:
    # Without a flush: the case is written once, with what comes after this.
    row = _LAST_SEQUENCE.row(session.connection(), {"case_id": case.id})
    return (row[0] if row is not None else None) or 0


def touch(session: Session, case: SupportCase, now: datetime) -> None:
    """Marks the case as changed, and tells the readers when the transaction commits."""
    case.revision += 1
    case.updated_at = max(now, case.updated_at)
    notify(session, Channel.CASE_CHANGED, case.id)
    notify(session, Channel.CASE_CHANGED, case.inbox_id)


def find_message(session: Session, contact_id: str, client_id: str | None) -> CaseMessage | None:
    """The message that the contact's cases have with this id of a client."""
    if client_id is None:
        return None
    found = _BY_CLIENT_ID.row(session.connection(), {"contact_id": contact_id, "client_id": client_id})
    return case_messages(session, Message.id == found[0])[0] if found is not None else None


def require_same(found: CaseMessage, actor: Actor, text: str, *, internal: bool = False) -> None:
    """Refuses a client's id that another message has already.

    Raises:
        Conflict: the stored message has another author or another text.
    """
    if (found.author, found.author_id, found.text, found.internal) != (actor.kind, actor.id, text, internal):
        raise Conflict("Another message has this client_id. Send this one with a new one.")


def next_position(session: Session, conversation_id: str) -> int:
    ((last,),) = _LAST_POSITION.rows(session.connection(), {"conversation_id": conversation_id})
    return 0 if last is None else last + 1


def append_message(
    session: Session,
    case: SupportCase,
    actor: Actor,
    text: str,
    now: datetime,
    *,
    client_id: str | None = None,
    internal: bool = False,
    message_id: str | None = None,
    status: MessageStatus = MessageStatus.COMPLETE,
    sources: Sequence[Passage] = (),
    is_first: bool = False,
) -> CaseMessage:
    """Adds a message at the end of the case's conversation.

    Args:
        is_first: this transaction has created the conversation, which has no messages.
    """
    connection = session.connection()
    parent_id, position = None, 0
    if not is_first:
        ((parent_id,),) = _TIP.rows(connection, {"id": case.conversation_id})
        position = next_position(session, case.conversation_id)
    message = Message(
        id=message_id or new_id(),
        conversation_id=case.conversation_id,
        parent_id=parent_id,
        role=Role.USER if actor.kind is AuthorKind.CONTACT else Role.ASSISTANT,
        status=status,
        content=text,
        sources=tuple(sources) or None,
        position=position,
        created_at=now,
        author_kind=actor.kind,
        author_id=actor.id,
        internal=internal,
        client_id=client_id,
    )
    # Without the ORM, and without a flush: the case is written once, at the end.
    _NEW_MESSAGE.run(connection, _values(message, _OF_MESSAGE))
    _MOVE_TIP.run(connection, {"key": case.conversation_id, "tip_message_id": message.id, "updated_at": now})
    show_preview(case, message)
    stored = new_message_view(session, message, case.id)
    if status is MessageStatus.COMPLETE and not internal:
        enqueue_message(session, case, stored)
    return stored


def running_turns(session: Session, case: SupportCase) -> list[tuple[Any, ...]]:
    """The ids of the case's turn that writes, if there is one, and of its message; the turn is locked."""
    return _RUNNING.rows(session.connection(), {"conversation_id": case.conversation_id})


def _insert(session: Session, case: SupportCase) -> None:
    """Writes a new case without the ORM; its later changes are the session's."""
    _NEW_CASE.run(session.connection(), _values(case, _OF_CASE))
    make_transient_to_detached(case)
    session.add(case)


def _values(row: Base, names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names.split()}


def show_preview(case: SupportCase, message: Message) -> None:
    """Shows the beginning of a message in the list of cases. Notes and empty replies leave what is there."""
    if message.content and not message.internal:
        case.preview = preview_of(message.content)


def preview_of(text: str) -> str:
    """The beginning of a message, as the list of cases shows it."""
    return one_line(text[: 4 * MAX_PREVIEW_CHARS])[:MAX_PREVIEW_CHARS]


def end_bot_reply(session: Session, case: SupportCase) -> None:
    """Ends the reply that the bot is writing, marks it, and tells the webhooks what there is of it.

    Its writer can store nothing more of it.
    """
    with session.no_autoflush:  # the case is written once, with what comes after this
        for turn_id, message_id in running_turns(session, case):
            ended: dict[str, Any] = {"status": MessageStatus.STOPPED}
            session.execute(update(Message).where(Message.id == message_id).values(ended))
            now = datetime.now(UTC)
            session.execute(
                update(Turn).where(Turn.id == turn_id).values(ended | {"ended_at": now, "error": ENDED_BY_PERSON})
            )
            notify(session, Channel.CHANGED, turn_id)
            notify(session, Channel.STOP_REQUESTED, turn_id)
            if session.get_one(Message, message_id, populate_existing=True).content:  # an empty one was never shown
                enqueue_message(session, case, case_messages(session, Message.id == message_id)[0])
