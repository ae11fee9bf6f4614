"""Several tabs at one conversation, and tabs that have slept through a crash: one wins, nothing is lost or twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from app.store.db.models import Conversation, Message, Turn
from tests.faults.conftest import Start
from tests.faults.ledger import check_tree
from tests.faults.processes import LONG_LEASE
from tests.faults.scripted_replies import make_question, whole_reply
from tests.faults.users import client, follow, read_stored, send

LONG = 20_000  # words: longer than any test


async def a_talk(http: httpx.AsyncClient) -> dict[str, Any]:
    """A conversation with one reply that is complete; returns its turn."""
    turn = await send(http, make_question(0, 3))
    assert await the_end(http, turn) == "complete"
    return turn


async def the_end(http: httpx.AsyncClient, turn: dict[str, Any]) -> str:
    """Read a reply to its end; returns how it ended."""
    events = [event async for event in follow(http, turn["turn_id"])]
    assert events[-1].name == "end"
    status: str = events[-1].data["status"]
    return status


async def stop(http: httpx.AsyncClient, turn: dict[str, Any]) -> None:
    assert (await http.post(f"/api/turns/{turn['turn_id']}/stop")).status_code == 204


def texts_in(database: Engine) -> Counter[str]:
    """What people have said; the tree must be whole."""
    with Session(database) as session:
        messages = {message.id: message for message in session.scalars(select(Message))}
        turns = {turn.message_id: turn for turn in session.scalars(select(Turn))}
        check_tree(session, {row.id: row for row in session.scalars(select(Conversation))}, messages, turns)
        return Counter(message.content for message in messages.values() if message.role == "user")


async def all_at_once(
    tabs: list[httpx.AsyncClient], requests: list[tuple[str, dict[str, Any]]]
) -> list[httpx.Response]:
    return await asyncio.gather(*[tab.post(path, json=body) for tab, (path, body) in zip(tabs, requests, strict=True)])


async def race(tabs: list[httpx.AsyncClient], database: Engine, rounds: int) -> None:
    """Send, edit and ask again in one conversation at once, from a tab each."""
    first = await send(tabs[0], make_question(0, LONG))
    await stop(tabs[0], first)
    conversation_id, question_id = first["conversation_id"], first["user_message_id"]
    expected = Counter([make_question(0, LONG)])
    for number in range(1, rounds + 1):
        texts = [make_question(10 * number + tab, LONG) for tab in range(3)]
        answers = await all_at_once(
            tabs,
            [
                ("/api/turns", {"text": texts[0], "conversation_id": conversation_id}),
                (f"/api/messages/{question_id}/edit", {"text": texts[1]}),
                (f"/api/messages/{question_id}/edit", {"text": texts[2]}),
                (f"/api/messages/{question_id}/regenerate", {}),
            ],
        )
        winners = [which for which, answer in enumerate(answers) if answer.status_code == 201]
        assert len(winners) == 1, [answer.text for answer in answers]
        for which, answer in enumerate(answers):
            if which not in winners:
                assert answer.status_code == 409, answer.text
                assert "reply is still being written" in answer.text or "changed elsewhere" in answer.text
        expected.update(texts[which] for which in winners if which < 3)
        turn = answers[winners[0]].json()
        await stop(tabs[0], turn)
        assert await the_end(tabs[-1], turn) == "stopped"
    assert texts_in(database) == expected


async def test_tabs_that_ask_at_once(start: Start, database: Engine) -> None:
    server = start()
    async with client(server.url) as one, client(server.url) as two:
        await race([one, two, one, two], database, rounds=5)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_tabs_at_two_servers(launch: Start, database: Engine) -> None:
    """One database, two processes: also a request that comes to both at once is one."""
    servers = [launch(**LONG_LEASE), launch(**LONG_LEASE)]
    for server in servers:
        server.wait_until_ready()
    async with client(servers[0].url) as one, client(servers[1].url) as two:
        await race([one, two, one, two], database, rounds=5)
        for number in range(8):
            body = {"text": make_question(1000 + number, 3), "request_id": f"request {number}"}
            answers = await all_at_once([one, two], [("/api/turns", body)] * 2)
            assert [answer.status_code for answer in answers] == [201, 201], [answer.text for answer in answers]
            assert answers[0].json() == answers[1].json()
            assert await the_end(two, answers[0].json()) == "complete"
    texts = texts_in(database)
    assert {texts[make_question(1000 + number, 3)] for number in range(8)} == {1}


async def test_edits_one_after_another_are_siblings(start: Start, database: Engine) -> None:
    server = start()
    async with client(server.url) as http:
        first = await a_talk(http)
        question_id = first["user_message_id"]
        edits = []
        for number in (1, 2):
            answer = await http.post(f"/api/messages/{question_id}/edit", json={"text": make_question(number, 3)})
            edits.append(answer.json())
            assert await the_end(http, edits[-1]) == "complete"
        question, reply = (await read_stored(http, first["conversation_id"]))["messages"]
        assert question["siblings"] == [question_id, *(edit["user_message_id"] for edit in edits)]
        assert (question["content"], reply["content"]) == (make_question(2, 3), whole_reply(make_question(2, 3)))
    assert texts_in(database) == Counter(make_question(number, 3) for number in range(3))


@pytest.mark.full
async def test_a_tab_that_slept_through_a_crash(start: Start, database: Engine) -> None:
    """It comes back with what it knew: nothing that it does overwrites what came after."""
    question = make_question(1, LONG)
    server = start(checkpoint_seconds=60, **LONG_LEASE)  # nothing is written before it is killed
    async with client(server.url) as http:
        first = await a_talk(http)
        conversation_id = first["conversation_id"]
        message = {"text": question, "conversation_id": conversation_id, "request_id": "once"}
        lost = await send(http, question, conversation_id=conversation_id, request_id="once")
        last_event_id = ""
        async for event in follow(http, lost["turn_id"]):
            last_event_id = event.id
            if int(last_event_id) > 200:
                break
        server.kill()
    if database.dialect.name == "postgresql":  # on SQLite, leases ask nobody
        with database.begin() as connection:
            connection.execute(update(Turn).values(lease_until=datetime.now(UTC) - timedelta(hours=1)))

    server = start()
    async with client(server.url) as tab, client(server.url) as other:
        # The reader that has seen more than was saved hears how much is true.
        events = [event async for event in follow(tab, lost["turn_id"], last_event_id=last_event_id)]
        assert [event.name for event in events] == ["end"]
        end = events[0].data
        assert end["status"] == "interrupted"
        stored = (await read_stored(tab, conversation_id))["messages"][-1]
        assert (stored["id"], stored["status"]) == (lost["message_id"], "interrupted")
        assert end["offset"] == len(stored["content"]) < int(last_event_id)

        # What it has sent, and sends again, is there once.
        again = await tab.post("/api/turns", json=message)
        assert (again.status_code, again.json()["turn_id"]) == (201, lost["turn_id"])
        assert again.json()["user_message_id"] == lost["user_message_id"]

        # Meanwhile somebody goes on elsewhere.
        asked = await other.post(f"/api/messages/{lost['user_message_id']}/edit", json={"text": make_question(2, 3)})
        assert await the_end(other, asked.json()) == "complete"
        truth = await read_stored(other, conversation_id)

        # It may try all it was about to do.
        late = {"text": "late", "conversation_id": conversation_id, "tip_id": lost["message_id"]}
        refused = await tab.post("/api/turns", json=late)
        assert refused.status_code == 409
        assert "changed elsewhere" in refused.json()["error"]["message"]
        await stop(tab, lost)
        await stop(tab, first)
        events = [event async for event in follow(tab, lost["turn_id"], last_event_id=last_event_id)]
        assert [event.name for event in events] == ["end"]
        assert await read_stored(other, conversation_id) == truth

        # And once it has looked again, it goes on.
        last = await send(tab, "seen", conversation_id=conversation_id, tip_id=truth["messages"][-1]["id"])
        assert await the_end(tab, last) == "complete"
    assert texts_in(database) == Counter([make_question(0, 3), question, make_question(2, 3), "seen"])
