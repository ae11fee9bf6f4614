"""Two servers on one PostgreSQL: the visitors and the agents of the same cases are at different ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from app.auth.secret_tokens import TokenMint
from app.domain.cases import CaseEventKind, CaseStatus
from app.domain.webhooks import DeliveryStatus
from app.store.accounts.login_sessions import LoginSessions
from app.store.db.case_models import CaseEvent, SupportCase, WebhookDelivery
from app.store.db.models import Message
from app.store.db.notifications import Channel
from testing.webhook_receiver import receiving
from tests.app.api.widget import Events, Visitor, visit
from tests.app.desk import SECRET
from tests.app.store.cases.support import SupportDesk, add_visitor, open_small_desk
from tests.faults.conftest import Start
from tests.faults.processes import LONG_LEASE, ServerProcess
from tests.faults.scripted_replies import make_question, visitor_question, whole_reply

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

NEVER = 3600.0
#: What one server sees of the other comes by a notification, not by a look at the database from time to time.
NO_LOOKS = {
    "app.api.cases.streams.LOOK_SECONDS": NEVER,
    "app.api.widget.events.LOOK_SECONDS": NEVER,
}
#: The opposite: a lost connection for notifications does not come back.
ONLY_LOOKS = {
    "app.api.cases.streams.LOOK_SECONDS": 0.2,
    "app.api.widget.events.LOOK_SECONDS": 0.2,
    "app.store.db.notifications.FIRST_RETRY_SECONDS": NEVER,
}
PERSON = "A person from our team will answer you here."


@dataclass
class Office:
    """The two servers, and who is signed in at them."""

    desk: SupportDesk
    servers: list[ServerProcess]
    sessions: dict[str, str]
    stack: AsyncExitStack = field(repr=False)

    async def http(self, server: int, user: str | None = None) -> httpx.AsyncClient:
        """A browser at a server; with a user, signed in."""
        headers = {"Cookie": f"deskmate_session={self.sessions[user]}"} if user is not None else {}
        opened = httpx.AsyncClient(base_url=self.servers[server].url, timeout=60, headers=headers, trust_env=False)
        return await self.stack.enter_async_context(opened)

    async def visitor(self, server: int) -> Visitor:
        return await visit(await self.http(server), {"token": self.desk.inbox.token})

    async def tab(self, visitor: Visitor, server: int) -> Events:
        """What another tab of the visitor's browser hears, which is at this server."""
        other = Visitor(await self.http(server), visitor.token, visitor.session)
        return await self.stack.enter_async_context(other.events())

    async def stream(self, server: int, user: str, path: str) -> Events:
        http = await self.http(server, user)
        response = await self.stack.enter_async_context(http.stream("GET", path))
        assert response.status_code == 200, await response.aread()
        return Events(response.aiter_lines())


async def post(http: httpx.AsyncClient, path: str, **body: object) -> dict[str, Any]:
    answer = await http.post(path, json=body)
    assert answer.is_success, answer.text
    return dict(answer.json()) if answer.content else {}


async def begin(database: Engine, visitor: Visitor, text: str) -> str:
    """The only visitor begins a case. Returns its id, which visitors are not told."""
    await visitor.write(text)
    with Session(database) as session:
        return session.scalars(select(SupportCase.id)).one()


async def listening(database: Engine, number: int) -> list[int]:
    """Waits until so many servers receive notifications; returns the ids of the processes that send them."""
    last = list(Channel)[-1].value  # of those that a server listens to, one after another
    query = text(
        f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN \"{last}\"'"
    )

    def look() -> list[int]:
        with database.connect() as connection:
            return list(connection.scalars(query))

    while len(found := await asyncio.to_thread(look)) != number:  # noqa: ASYNC110 (the database tells nobody)
        await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def office(start: Start, database: Engine, url: str, *, bot: bool = False, **given: Any) -> AsyncIterator[Office]:
    """Opens a desk at two servers."""
    desk = await open_small_desk(url, bot=bot)
    mint, sessions = TokenMint(SECRET), dict[str, str]()
    for name, user_id in (("ann", desk.ann), ("bob", desk.bob)):
        sessions[name] = mint.new()
        await LoginSessions(desk.database, 30).create(user_id, mint.hash(sessions[name]), user_agent="", address="")
    settings: dict[str, Any] = {"accounts": True, "secret_key": SECRET, "egress_allow": "127.0.0.1", **LONG_LEASE}
    servers = [start(**settings | given) for _ in range(2)]
    await listening(database, 2)
    async with AsyncExitStack() as stack:
        yield Office(desk, servers, sessions, stack)
    await desk.database.close()
    assert "Traceback" not in servers[0].log + servers[1].log


async def test_what_happens_at_one_server_is_seen_at_the_other_at_once(
    start: Start, database: Engine, database_url: str
) -> None:
    async with office(start, database, database_url, constants=NO_LOOKS) as here:
        ann, bob = await here.http(0, "ann"), await here.http(1, "bob")
        list_at_0, list_at_1 = [await here.stream(n, who, "/api/cases/events") for n, who in enumerate(("ann", "bob"))]
        await list_at_0.until("counts")
        await list_at_1.until("counts")

        # A visitor's first message is in the list at the other server, and in the visitor's tab there.
        visitor = await here.visitor(1)
        other_tab = await here.tab(visitor, 0)
        await asyncio.sleep(0.5)  # it has looked, and found no case
        case_id = await begin(database, visitor, "Where is it?")
        assert (await list_at_0.until("case", id=case_id, status="open"))["assignee"] is None
        await list_at_0.until("counts", unassigned=1)
        await other_tab.until("message", text="Where is it?")

        # Both open it: each sees the other, and whether they write.
        case_at_0, case_at_1 = [
            await here.stream(n, who, f"/api/cases/{case_id}/events") for n, who in enumerate(("ann", "bob"))
        ]
        await case_at_0.until("present", present=[])
        await case_at_1.until("present", present=[])
        await post(ann, f"/api/cases/{case_id}/presence")
        await post(bob, f"/api/cases/{case_id}/presence", typing=True)
        both = [
            {"id": here.desk.ann, "name": "Ann", "typing": False},
            {"id": here.desk.bob, "name": "Bob", "typing": True},
        ]
        await case_at_0.until("present", present=both)
        await case_at_1.until("present", present=both)
        await post(bob, f"/api/cases/{case_id}/presence", here=False)
        await case_at_0.until("present", present=both[:1])

        # Both claim it as they read it: one of them is told that the other was faster.
        epoch = (await ann.get(f"/api/cases/{case_id}")).json()["case"]["epoch"]
        answers = await asyncio.gather(
            *(
                http.post(f"/api/cases/{case_id}/assign", json={"user_id": user_id, "epoch": epoch})
                for http, user_id in ((ann, here.desk.ann), (bob, here.desk.bob))
            )
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        taken = {"id": here.desk.ann, "name": "Ann"} if answers[0].is_success else {"id": here.desk.bob, "name": "Bob"}
        for stream in (list_at_0, list_at_1, case_at_0, case_at_1):
            await stream.until("case", id=case_id, assignee=taken)

        # A reply and a note at one server; the visitor, at the other one, sees the reply.
        visitors_tab = await here.tab(visitor, 1)
        await post(ann, f"/api/cases/{case_id}/notes", text="She is a regular.")
        await case_at_1.until("message", text="She is a regular.", internal=True)
        await post(ann, f"/api/cases/{case_id}/messages", text="On its way.")
        await visitors_tab.until("message", text="On its way.")
        await case_at_1.until("message", text="On its way.")
        await post(bob, f"/api/cases/{case_id}/resolve")
        await case_at_0.until("case", status="resolved")
        await other_tab.until("case", status="resolved")
        assert all("regular" not in json.dumps(seen.seen) for seen in (visitors_tab, other_tab))


@pytest.mark.full
async def test_without_notifications_each_server_looks_from_time_to_time(
    start: Start, database: Engine, database_url: str
) -> None:
    async with office(start, database, database_url, constants=ONLY_LOOKS) as here:
        for pid in await listening(database, 2):
            with database.connect() as connection:
                connection.execute(text(f"SELECT pg_terminate_backend({pid})"))
        visitor = await here.visitor(1)
        other_tab = await here.tab(visitor, 0)
        cases = await here.stream(0, "ann", "/api/cases/events")
        await cases.until("counts")
        case_id = await begin(database, visitor, "Where is it?")
        await cases.until("case", id=case_id)
        await other_tab.until("message", text="Where is it?")
        await post(await here.http(1, "bob"), f"/api/cases/{case_id}/messages", text="On its way.")
        await other_tab.until("message", text="On its way.")
        assert await listening(database, 0) == []


@pytest.mark.full
async def test_the_bot_stops_when_a_person_writes_at_the_other_server(
    start: Start, database: Engine, database_url: str
) -> None:
    async with office(start, database, database_url, bot=True, delay=0.01, constants=NO_LOOKS) as here:
        question = visitor_question(1, 20_000)
        visitor = await here.visitor(0)
        case_id = await begin(database, visitor, question)
        tab, cases = await here.tab(visitor, 1), await here.stream(1, "bob", f"/api/cases/{case_id}/events")
        await tab.until("delta")  # the words come by the checkpoints of the other server
        await cases.until("delta")
        bob = await here.http(1, "bob")
        written = (await post(bob, f"/api/cases/{case_id}/messages", text="I am a person."))["message"]
        await tab.until("message", author__kind="bot", status="stopped")
        await tab.until("message", text="I am a person.")

        def stopped() -> tuple[str, int]:
            with Session(database) as session:
                reply = session.scalars(select(Message).where(Message.author_kind == "bot")).one()
                return reply.status, len(reply.content)

        while "the bot stopped writing" not in here.servers[0].log:  # noqa: ASYNC110 (it is another process)
            await asyncio.sleep(0.05)
        status, length = await asyncio.to_thread(stopped)
        assert status == "stopped"
        assert 0 < length < len(whole_reply(make_question(1, 20_000)))
        (reply,) = [id for id in tab.talk() if id not in (written["id"], *_written_by(tab, "contact"))]
        assert len(tab.talk()[reply]) == length  # the visitor has read as much as is kept

        # It writes in this case no more, wherever the visitor writes.
        for number, server in enumerate((0, 1), start=2):
            again = Visitor(await here.http(server), visitor.token, visitor.session)
            await again.write(visitor_question(number, 1), f"again {number}")
        await asyncio.sleep(0.5)
        whole = (await bob.get(f"/api/cases/{case_id}")).json()
        assert Counter(message["author"]["kind"] for message in whole["messages"]) == {
            "contact": 3,
            "bot": 1,
            "agent": 1,
        }


def _written_by(events: Events, kind: str) -> set[str]:
    return {data["id"] for name, data in events.seen if name == "message" and data["author"]["kind"] == kind}


async def test_a_visitor_who_writes_at_both_servers_is_answered(
    start: Start, database: Engine, database_url: str
) -> None:
    async with office(start, database, database_url, bot=True, delay=0.01, constants=NO_LOOKS) as here:
        visitor = await here.visitor(0)
        tab = await here.tab(visitor, 0)
        await visitor.write(visitor_question(1, 20_000))
        await tab.until("delta")
        other = Visitor(await here.http(1), visitor.token, visitor.session)
        await other.write(visitor_question(2, 3), "second")
        await tab.until("message", text=whole_reply(make_question(2, 3)).strip(), status="complete")
        with Session(database) as session:
            case = session.scalars(select(SupportCase)).one()
            assert case.status == CaseStatus.BOT
            replies = session.scalars(select(Message.status).where(Message.author_kind == "bot")).all()
        assert sorted(replies) == ["complete", "stopped"]


async def test_people_get_a_case_whose_bot_died_with_its_server(
    start: Start, database: Engine, database_url: str
) -> None:
    async with office(start, database, database_url, bot=True, delay=3, lease_seconds=1) as here:
        visitor = await here.visitor(0)
        tab = await here.tab(visitor, 1)
        case_id = await begin(database, visitor, "Where is it?")
        cases = await here.stream(1, "bob", "/api/cases/events")
        here.servers[0].kill()
        await cases.until("case", id=case_id, status="open")
        assert PERSON in (await tab.until("message", author__kind="system"))["text"]


@pytest.mark.full
async def test_snoozed_cases_wake_once_and_webhooks_are_told_once(
    start: Start, database: Engine, database_url: str
) -> None:
    constants = {"app.cases.sweeper.WAKE_SECONDS": 0.02, "app.cases.webhook_sender.LOOK_SECONDS": 0.02}
    async with receiving() as receiver, office(start, database, database_url, constants=constants) as here:
        cases, number = here.desk.cases, 30
        await cases.webhooks.create(here.desk.admin, url=receiver.url, inbox_id=None, events=())
        until = datetime.now(UTC) + timedelta(seconds=5)
        for _ in range(number):
            new = await add_visitor(cases, here.desk.inbox)
            _, case = await cases.contacts.write(new.contact.id, "Next week, please.")
            await cases.agents.snooze(here.desk.ann, case.id, max(until, datetime.now(UTC) + timedelta(seconds=1)))

        def is_over() -> bool:
            with Session(database) as session:
                snoozed = session.scalars(select(SupportCase.id).where(SupportCase.status == CaseStatus.SNOOZED))
                waiting = select(WebhookDelivery.id).where(WebhookDelivery.status == DeliveryStatus.PENDING)
                return not snoozed.all() and not session.scalars(waiting).all()

        while not await asyncio.to_thread(is_over):  # noqa: ASYNC110 (the database tells nobody)
            await asyncio.sleep(0.1)
        with Session(database) as session:
            woken = Counter(session.scalars(select(CaseEvent.case_id).where(CaseEvent.kind == CaseEventKind.WOKEN)))
            told = session.scalars(select(WebhookDelivery.event_id)).all()
        assert len(woken) == number
        assert set(woken.values()) == {1}
        heard = Counter(headers["webhook-id"] for headers, _ in receiver.requests)
        assert heard == Counter(told)
        assert set(heard.values()) == {1}
