"""A desk with an inbox, its people, and a visitor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from app.cases.cases import Cases
from app.domain.case_views import InboxView
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.services.container import Services
from app.store.cases.visitors import Visitor
from app.store.chat.search_index import SearchIndex
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database
from app.store.db.models import Account
from app.store.db.notifications import Notifications

LEASE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportDesk:
    """An inbox with two agents and a viewer; an admin; an agent of no inbox; a visitor."""

    database: Database
    cases: Cases
    turns: TurnRecords
    inbox: InboxView
    admin: str
    ann: str
    bob: str
    viewer: str
    stranger: str
    visitor: Visitor

    @property
    def contact(self) -> str:
        return self.visitor.contact.id


async def open_desk(services: Services, *, bot: bool = True) -> SupportDesk:
    """Creates the desk of a test."""
    return await _add_desk(services.database, services.cases, services.turns._records, bot)


async def open_small_desk(url: str, *, bot: bool) -> SupportDesk:
    """Creates a desk without the other services, in a database that may have others. The caller closes the database."""
    database, owner = Database(url), new_id()
    cases = Cases.create(
        database, Notifications(url), SearchIndex(database), owner, LEASE_SECONDS, max_message_chars=1000
    )
    return await _add_desk(database, cases, TurnRecords(database, owner, LEASE_SECONDS), bot)


async def _add_desk(database: Database, cases: Cases, turns: TurnRecords, bot: bool) -> SupportDesk:
    admin = await add_person(database, "admin", UserRole.ADMIN)
    ann, bob, stranger = [await add_person(database, name, UserRole.AGENT) for name in ("ann", "bob", "stranger")]
    viewer = await add_person(database, "viewer", UserRole.VIEWER)
    inboxes = cases.inboxes
    inbox = await inboxes.create(admin, name="Website", bot=bot)
    for member in (ann, bob, viewer):
        await inboxes.add_member(admin, inbox.id, member)
    return SupportDesk(
        database=database,
        cases=cases,
        turns=turns,
        inbox=inbox,
        admin=admin,
        ann=ann,
        bob=bob,
        viewer=viewer,
        stranger=stranger,
        visitor=await add_visitor(cases, inbox),
    )


async def add_visitor(cases: Cases, inbox: InboxView) -> Visitor:
    return await cases.visitors.create(inbox.id, new_id().replace("-", ""))


async def add_person(database: Database, name: str, role: UserRole) -> str:
    user_id = new_id()
    row = Account(
        id=user_id, name=f"{name} {user_id}", display_name=name.title(), role=role, created_at=datetime.now(UTC)
    )
    await database.write(lambda session: session.add(row))
    return user_id
