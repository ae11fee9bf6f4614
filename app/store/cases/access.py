"""Rights to inboxes, as conditions of queries: no query of cases goes without one."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.roles import UserRole
from app.errors import NotAllowed, NotFound
from app.store.db.case_models import Inbox, InboxMember, SupportCase
from app.store.db.models import Account
from app.store.db.rows import is_id

NO_INBOX = "There is no such inbox. It may have been deleted, or you are no member of it."
NO_CASE = "There is no such case. It may have been deleted, or you are no member of its inbox."
READ_ONLY = "You can read this case but not change it. Ask an admin for the role of an agent."


def is_active_admin(user_id: str | BindParameter[str]) -> ColumnElement[bool]:
    return exists().where(
        Account.id == user_id,
        Account.kind == "person",
        Account.role == UserRole.ADMIN,
        Account.disabled_at.is_(None),
    )


def may_read(user_id: str | BindParameter[str], inbox_id: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Whether the user may read the cases of the inbox: admins all, others those of the inboxes they are members of."""
    member = exists().where(InboxMember.inbox_id == inbox_id, InboxMember.user_id == user_id)
    active = exists().where(Account.id == user_id, Account.kind == "person", Account.disabled_at.is_(None))
    return or_(is_active_admin(user_id), and_(active, member))


def may_work(user_id: str, inbox_id: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Whether the user may change the cases of the inbox: who may read them and is no viewer."""
    writes = exists().where(Account.id == user_id, Account.role != UserRole.VIEWER)
    return and_(writes, may_read(user_id, inbox_id))


def read_case(session: Session, user_id: str, case_id: str) -> SupportCase:
    """The case, if the user may read it.

    Raises:
        NotFound: it is missing, or the user may not.
    """
    query = select(SupportCase).where(SupportCase.id == case_id, may_read(user_id, SupportCase.inbox_id))
    found = session.scalars(query).one_or_none() if is_id(case_id) else None
    if found is None:
        raise NotFound(NO_CASE)
    return found


def worked_case(session: Session, user_id: str, case_id: str) -> SupportCase:
    """The case, locked against other writers, if the user may change it.

    Raises:
        NotFound: it is missing, or the user may not read it.
        NotAllowed: the user may only read it.
    """
    read_case(session, user_id, case_id)
    found = session.scalars(
        select(SupportCase)
        .where(SupportCase.id == case_id, may_work(user_id, SupportCase.inbox_id))
        .with_for_update(key_share=True, of=SupportCase)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if found is None:
        raise NotAllowed(READ_ONLY)
    return found


def administered_inbox(session: Session, user_id: str, inbox_id: str) -> Inbox:
    """The inbox, locked against other writers, if the user is an admin.

    Raises:
        NotFound: it is missing, or the user is no member.
        NotAllowed: the user is no admin.
    """
    found = None
    if is_id(inbox_id):
        query = select(Inbox).where(Inbox.id == inbox_id, may_read(user_id, Inbox.id))
        found = session.scalars(query.with_for_update(key_share=True, of=Inbox)).one_or_none()
    if found is None:
        raise NotFound(NO_INBOX)
    require_admin(session, user_id)
    return found


def require_admin(session: Session, user_id: str) -> None:
    """Refuses a user who is no admin.

    Raises:
        NotAllowed: the user is no admin.
    """
    if session.scalar(select(is_active_admin(user_id))) is not True:
        raise NotAllowed("Only admins can change inboxes.")
