"""Converts rows of cases to views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, select
from sqlalchemy.orm import Session, aliased

from app.domain.case_views import AttachmentView, CaseEventView, CaseMessage, CaseView, ContactView, NamedUser
from app.domain.cases import Actor, AuthorKind, CaseEventKind, CasePriority, CaseState, CaseStatus, HandOffReason
from app.domain.citations import citations_of
from app.store.chat.conversation_list import tags_of
from app.store.db.case_models import CaseAttachment, CaseEvent, Contact, SupportCase
from app.store.db.models import Account, Message
from app.store.db.rows import shown_name

# Built once: every message of a visitor runs these.
_CONTACT_NAMES = select(Contact.id, Contact.name).where(Contact.id.in_(bindparam("ids", expanding=True)))
_ATTACHMENTS = (
    select(CaseAttachment)
    .where(CaseAttachment.message_id.in_(bindparam("message_ids", expanding=True)))
    .order_by(CaseAttachment.id)
)


def case_state(row: SupportCase) -> CaseState:
    """What the rules of :mod:`app.domain.cases` need of a case."""
    return CaseState(
        status=CaseStatus(row.status),
        epoch=row.epoch,
        created_at=row.created_at,
        assignee_id=row.assignee_id,
        handed_off_at=row.handed_off_at,
        waiting_since=row.waiting_since,
        snoozed_until=row.snoozed_until,
        first_reply_at=row.first_reply_at,
        resolved_at=row.resolved_at,
        merged_into=row.merged_into,
    )


def contact_view(row: Contact) -> ContactView:
    return ContactView(
        id=row.id,
        inbox_id=row.inbox_id,
        name=row.name,
        email=row.email,
        verified=row.verified,
        external_id=row.external_id,
        language=row.language,
        time_zone=row.time_zone,
    )


def case_views(session: Session, query: Select[Any]) -> list[CaseView]:
    """The views of the cases that ``query``, a selection of :class:`SupportCase`, finds, in its order."""
    assignee = aliased(Account)
    rows: Sequence[Row[Any]] = session.execute(
        query.join(Contact, Contact.id == SupportCase.contact_id)
        .outerjoin(assignee, assignee.id == SupportCase.assignee_id)
        .add_columns(Contact, shown_name(assignee))
    ).all()
    tags = tags_of(session, [row[0].conversation_id for row in rows])
    return [case_view_of(case, contact, name, tags.get(case.conversation_id, ())) for case, contact, name in rows]


def case_view(session: Session, case_id: str) -> CaseView:
    """The view of one case, which exists."""
    return case_views(session, select(SupportCase).where(SupportCase.id == case_id))[0]


def view_of(session: Session, case: SupportCase) -> CaseView:
    """The view of a case that this transaction has read or written: its contact is likely to be there, too."""
    contact = session.get_one(Contact, case.contact_id)
    name = None
    if case.assignee_id is not None:
        name = session.scalar(select(shown_name(Account)).where(Account.id == case.assignee_id))
    tags = tags_of(session, [case.conversation_id])
    return case_view_of(case, contact, name, tags.get(case.conversation_id, ()))


def case_view_of(case: SupportCase, contact: Contact, assignee: str | None, tags: tuple[str, ...]) -> CaseView:
    """The view of a case. ``assignee``: the name of the user to whom it is assigned."""
    return CaseView(
        id=case.id,
        conversation_id=case.id,
        inbox_id=case.inbox_id,
        contact=contact_view(contact),
        status=CaseStatus(case.status),
        priority=CasePriority(case.priority),
        assignee=NamedUser(case.assignee_id, assignee or "") if case.assignee_id is not None else None,
        subject=case.subject,
        preview=case.preview,
        tags=tags,
        epoch=case.epoch,
        revision=case.revision,
        bot_from=case.bot_from,
        waiting_since=case.waiting_since,
        snoozed_until=case.snoozed_until,
        first_reply_at=case.first_reply_at,
        resolved_at=case.resolved_at,
        merged_into=case.merged_into,
        created_at=case.created_at,
        updated_at=case.updated_at,
    )


def case_messages(session: Session, *which: ColumnElement[bool], limit: int | None = None) -> list[CaseMessage]:
    """The messages of cases that satisfy all conditions, oldest first; with a limit, the newest of them."""
    query = (
        select(Message, SupportCase.id)
        .join(SupportCase, SupportCase.conversation_id == Message.conversation_id)
        .where(Message.deletion.is_(None), *which)
        .order_by(Message.created_at.desc(), Message.position.desc(), Message.id.desc())
        .limit(limit)
    )
    rows = session.execute(query).all()[::-1]
    names = actor_names(session, ((message.author_kind, message.author_id) for message, _ in rows))
    files = attachments_of(session, [message.id for message, _ in rows])
    return [
        message_view(message, case_id, names.get(message.author_id or ""), files.get(message.id, ()))
        for message, case_id in rows
    ]


def new_message_view(session: Session, message: Message, case_id: str) -> CaseMessage:
    """The view of a message that this transaction has just stored. It has no files yet."""
    name = None
    if message.author_kind == AuthorKind.CONTACT and message.author_id is not None:
        contact = session.get(Contact, message.author_id)  # its row is locked, so it is in the session
        name = contact.name if contact is not None else None
    else:
        name = actor_names(session, [(message.author_kind, message.author_id)]).get(message.author_id or "")
    return message_view(message, case_id, name, ())


def message_view(
    message: Message, case_id: str, author_name: str | None, attachments: tuple[AttachmentView, ...]
) -> CaseMessage:
    """The view of a message."""
    return CaseMessage(
        id=message.id,
        case_id=case_id,
        position=message.position,
        author=AuthorKind(message.author_kind or AuthorKind.SYSTEM),
        author_id=message.author_id,
        author_name=author_name,
        internal=message.internal,
        text=message.content,
        status=message.status,
        created_at=message.created_at,
        client_id=message.client_id,
        citations=citations_of(message.content, message.sources or ()),
        sources=message.sources or (),
        attachments=attachments,
    )


def case_events(session: Session, *which: ColumnElement[bool], limit: int | None = None) -> list[CaseEventView]:
    """The events that satisfy all conditions, oldest first; with a limit, the newest of them."""
    query = select(CaseEvent).where(*which).order_by(CaseEvent.at.desc(), CaseEvent.sequence.desc())
    rows = session.scalars(query if limit is None else query.limit(limit)).all()[::-1]
    ids = [(row.actor_kind, row.actor_id) for row in rows]
    ids += [(AuthorKind.AGENT, row.details.get("user_id")) for row in rows]
    names = actor_names(session, ids)
    return [
        CaseEventView(
            id=row.id,
            case_id=row.case_id,
            sequence=row.sequence,
            kind=CaseEventKind(row.kind),
            reason=HandOffReason(row.reason) if row.reason is not None else None,
            actor=Actor(AuthorKind(row.actor_kind), row.actor_id),
            actor_name=names.get(row.actor_id or ""),
            at=row.at,
            details=row.details
            | ({"user_name": names.get(row.details["user_id"])} if row.details.get("user_id") else {}),
        )
        for row in rows
    ]


def actor_names(session: Session, actors: Iterable[tuple[str | None, str | None]]) -> dict[str, str | None]:
    """The names of agents and contacts by id. Those that are deleted are missing."""
    agents, contacts = set[str](), set[str]()
    for kind, id in actors:
        if id is not None and kind == AuthorKind.AGENT:
            agents.add(id)
        elif id is not None and kind == AuthorKind.CONTACT:
            contacts.add(id)
    names: dict[str, str | None] = {}
    if agents:
        names |= dict(
            session.execute(select(Account.id, shown_name(Account)).where(Account.id.in_(agents))).tuples().all()
        )
    if contacts:
        names |= dict(session.execute(_CONTACT_NAMES, {"ids": list(contacts)}).tuples().all())
    return names


def attachments_of(session: Session, message_ids: Sequence[str]) -> dict[str, tuple[AttachmentView, ...]]:
    """Attachments by message id; messages without any are missing."""
    found: dict[str, tuple[AttachmentView, ...]] = {}
    for row in session.scalars(_ATTACHMENTS, {"message_ids": message_ids}) if message_ids else ():
        assert row.message_id is not None
        view = AttachmentView(row.id, row.name, row.type, row.size)
        found[row.message_id] = (*found.get(row.message_id, ()), view)
    return found
