"""SIGTERM while people chat: what is being written is finished or marked, and everybody is told, within ten seconds.

A server of mail that hangs holds up no end, and the mail is sent after the next start.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from app.settings import AppSettings
from app.store.cases.agent_cases import AgentCases
from app.store.db.case_models import Contact
from testing.databases import create_migrated_file
from testing.mail_servers import PASSWORD, USER, smtp_server
from testing.waiting import eventually
from tests.app.desk import SECRET
from tests.app.store.cases.support import open_small_desk
from tests.faults.conftest import Start
from tests.faults.ledger import Ledger, PendingRequest
from tests.faults.scripted_replies import make_question, whole_reply
from tests.faults.users import SimulatedUser, client, follow, send

IN_TIME = 10  # seconds


async def chat_until_sigterm(start: Start, database: Engine, ledger: Ledger, dice: random.Random) -> list[str | None]:
    """Four people chat, and a reply is written that has no end in sight. Returns what the readers of all were told."""
    people = [SimulatedUser(ledger, random.Random(dice.random())) for _ in range(4)]
    server = start(page=True, shutdown_seconds=dice.choice([0, 0.1]))
    async with client(server.url) as http:
        request = PendingRequest("new", "/api/turns", {}, make_question(dice.randrange(10**9), 20_000))
        ledger.unanswered.append(request)
        endless = ledger.acknowledged(request, await send(http, request.question))
        reader = asyncio.create_task(people[0].read(http, endless))
        await ledger.wait_until_streamed(1)
        tasks = [asyncio.create_task(person.live(http)) for person in people]
        heard = asyncio.create_task(ledger.wait_until_streamed(dice.randint(1, 2500)))
        await asyncio.wait([heard, reader, *tasks], return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        being_read = [reply for reply in ledger.in_flight() if reply.reading]
        server.terminate()
        assert await server.ended(IN_TIME) == 0, server.log
        await asyncio.gather(reader, *tasks)
    assert "Traceback" not in server.log
    assert endless.status == "interrupted"
    with Session(database) as session:
        ledger.check(session)  # nobody had to sweep
    return [reply.status for reply in being_read]


async def test_replies_that_take_too_long_are_marked(start: Start, database: Engine) -> None:
    told = await chat_until_sigterm(start, database, Ledger(), random.Random(1))
    assert None not in told, "whoever reads is told the end"


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_twenty_shutdowns(start: Start, database: Engine) -> None:
    dice, ledger = random.Random(2), Ledger()
    for _ in range(20):
        assert None not in await chat_until_sigterm(start, database, ledger, dice), "whoever reads is told the end"


async def test_replies_that_end_in_time_are_complete(start: Start, database: Engine) -> None:
    server = start(page=True, shutdown_seconds=60)
    questions = [make_question(number, 150) for number in range(4)]
    async with client(server.url) as http:
        turns = [await send(http, question) for question in questions]
        streams = [follow(http, turn["turn_id"]) for turn in turns]
        for stream in streams:
            await anext(stream)
        server.terminate()
        ending = asyncio.create_task(server.ended(IN_TIME))
        for stream, question in zip(streams, questions, strict=True):
            events = [event async for event in stream]
            assert (events[-1].name, events[-1].data["status"]) == ("end", "complete")
            assert events[-1].data["offset"] == len(whole_reply(question))
        assert await ending == 0, server.log


@pytest.mark.full
async def test_in_time_with_the_settings_as_they_come(start: Start) -> None:
    server = start(page=True, shutdown_seconds=None)
    async with client(server.url) as http:
        turn = await send(http, make_question(1, 10**6))
        stream = follow(http, turn["turn_id"])
        await anext(stream)
        server.terminate()
        ending = asyncio.create_task(server.ended(IN_TIME))
        events = [event async for event in stream]
        assert await ending == 0, server.log
    assert (events[-1].name, events[-1].data["status"]) == ("end", "interrupted")


async def make_due_mail(url: str) -> None:
    """Adds a reply to a visitor who has gone, which is to be mailed now."""
    desk = await open_small_desk(url, bot=False)
    address = update(Contact).where(Contact.id == desk.contact).values(email="eva@example.org")
    await desk.database.write(lambda session: session.execute(address))
    _, case = await desk.cases.contacts.write(desk.contact, "Where is it?")
    agents = AgentCases(desk.database, desk.cases.signals, max_message_chars=1000, mail_delay=timedelta())
    await agents.reply(desk.ann, case.id, "It comes on Friday.")
    await desk.database.close()


@pytest.mark.full
async def test_a_server_of_mail_that_hangs_holds_up_no_end_and_gets_the_mail_after_the_next_start(
    start: Start, database_url: str | None, tmp_path: Path
) -> None:
    if database_url is None:
        create_migrated_file(tmp_path / "data" / "deskmate.db")
    settings = AppSettings(_env_file=None, data_dir=tmp_path / "data", database_url=database_url)
    await make_due_mail(settings.resolved_database_url)
    async with smtp_server() as smtp:
        given: dict[str, Any] = {
            "accounts": True,
            "secret_key": SECRET,
            "mail_host": "127.0.0.1",
            "mail_port": smtp.port,
            "mail_tls": "none",
            "mail_from": USER,
            "mail_user": USER,
            "mail_password": PASSWORD,
            "constants": {"app.cases.mail_sender.TIMEOUT_SECONDS": 3600, "app.cases.mail_sender.LOOK_SECONDS": 0.05},
        }
        smtp.hangs = True
        server = start(**given)
        await eventually(lambda: smtp.num_connections == 1)
        server.terminate()
        assert await server.ended(IN_TIME) == 0, server.log
        assert "Traceback" not in server.log
        smtp.hangs = False
        start(**given)
        await eventually(lambda: len(smtp.raw) == 1)
        assert "It comes on Friday." in smtp.mails[0].get_content()
