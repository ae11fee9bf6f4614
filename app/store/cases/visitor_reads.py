"""What every message of a visitor reads: the case with its contact and its inbox, and its messages.

Prepared statements without the ORM, which takes several times as long as the database for these. The views are those
of :mod:`app.store.cases.case_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, exists, select

from app.domain.case_views import AttachmentView, CaseMessage, CaseView, InboxView
from app.domain.cases import AuthorKind
from app.store.cases.case_rows import case_view_of, message_view
from app.store.cases.inboxes import INBOX, inbox_view
from app.store.chat.conversation_list import tags_in
from app.store.db.case_models import CaseAttachment, Contact, Inbox, SupportCase
from app.store.db.models import Account, Message
from app.store.db.prepared_statements import PlainRows, Prepared, is_among
from app.store.db.rows import shown_name


class CaseWithInbox(NamedTuple):
    """A case and the inbox that it is in."""

    case: CaseView
    inbox: InboxView


_CASE, _CONTACT = PlainRows(SupportCase), PlainRows(Contact)
_MESSAGE = PlainRows(Message, "id position author_kind author_id internal content status created_at client_id sources")
_CASES = (
    select(*_CASE.columns, *_CONTACT.columns, *INBOX.columns, shown_name(Account))
    .select_from(SupportCase)
    .join(Contact, Contact.id == SupportCase.contact_id)
    .join(Inbox, Inbox.id == SupportCase.inbox_id)
    .outerjoin(Account, Account.id == SupportCase.assignee_id)
)
_BY_ID = Prepared(_CASES.where(SupportCase.id == bindparam("case_id")))
_NEWEST = Prepared(
    _CASES.where(SupportCase.contact_id == bindparam("contact_id"), SupportCase.merged_into.is_(None))
    .order_by(SupportCase.id.desc())
    .limit(1)
)
_TALK = (
    select(
        *_MESSAGE.columns,
        Contact.name,
        shown_name(Account),
        exists().where(CaseAttachment.message_id == Message.id),
    )
    .select_from(SupportCase)
    .join(Message, Message.conversation_id == SupportCase.id)
    .outerjoin(Contact, and_(Message.author_kind == AuthorKind.CONTACT, Contact.id == Message.author_id))
    .outerjoin(Account, and_(Message.author_kind == AuthorKind.AGENT, Account.id == Message.author_id))
    .where(SupportCase.id == bindparam("case_id"), Message.deletion.is_(None), Message.internal.is_(False))
    .order_by(Message.created_at.desc(), Message.position.desc(), Message.id.desc())
    .limit(bindparam("limit"))
)
_OF_BOT = Prepared(_TALK.where(Message.position >= SupportCase.bot_from))
_OF_CONTACT = Prepared(
    _TALK.where(SupportCase.contact_id == bindparam("contact_id"), Message.position > bindparam("after"))
)
_FILES = Prepared(
    select(CaseAttachment.message_id, CaseAttachment.id, CaseAttachment.name, CaseAttachment.type, CaseAttachment.size)
    .where(is_among(CaseAttachment.message_id, "ids"))
    .order_by(CaseAttachment.id)
)


def case_with_inbox(connection: Connection, case_id: str) -> CaseWithInbox | None:
    """The case; None if it was deleted."""
    return _case(connection, _BY_ID.row(connection, {"case_id": case_id}))


def newest_case(connection: Connection, contact_id: str) -> CaseWithInbox | None:
    """The contact's newest case that is no part of another; None without one."""
    return _case(connection, _NEWEST.row(connection, {"contact_id": contact_id}))


def messages_of_bot(connection: Connection, case_id: str, limit: int) -> list[CaseMessage]:
    """The newest messages that the bot reads, oldest first: no notes, and none from before the last resolution."""
    return _messages(connection, _OF_BOT, {"case_id": case_id, "limit": limit})


def messages_of_contact(
    connection: Connection, contact_id: str, case_id: str, *, after: int, limit: int
) -> list[CaseMessage]:
    """The newest messages after a position in the contact's case, oldest first, without notes."""
    given = {"case_id": case_id, "contact_id": contact_id, "after": after, "limit": limit}
    return _messages(connection, _OF_CONTACT, given)


def _case(connection: Connection, row: Sequence[Any] | None) -> CaseWithInbox | None:
    if row is None:
        return None
    contact_at, inbox_at = len(_CASE), len(_CASE) + len(_CONTACT)
    case, contact = _CASE.read(row[:contact_at]), _CONTACT.read(row[contact_at:inbox_at])
    *inbox, assignee = row[inbox_at:]
    view = case_view_of(case, contact, assignee, tags_in(connection, case.id))
    return CaseWithInbox(view, inbox_view(INBOX.read(inbox)))


def _messages(connection: Connection, statement: Prepared, given: Mapping[str, Any]) -> list[CaseMessage]:
    rows = [
        (_MESSAGE.read(values), contact_name or agent_name, has_files)
        for *values, contact_name, agent_name, has_files in reversed(statement.rows(connection, given))
    ]
    files = _files(connection, [message.id for message, _, has_files in rows if has_files])
    return [message_view(message, given["case_id"], name, files.get(message.id, ())) for message, name, _ in rows]


def _files(connection: Connection, message_ids: Sequence[str]) -> dict[str, tuple[AttachmentView, ...]]:
    """The files of these messages, by message."""
    found: dict[str, tuple[AttachmentView, ...]] = {}
    if message_ids:
        for message_id, *values in _FILES.rows(connection, {"ids": message_ids}):
            found[message_id] = (*found.get(message_id, ()), AttachmentView(*values))
    return found
