"""Two processes on one PostgreSQL: each sees, stops and respects what the other writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import func, select

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.views import MessageStatus
from app.errors import Conflict, EngineUnavailable, NotFound, TooManyRequests
from app.store.db import notifications
from app.store.db.models import Message, Turn
from app.turns import stored_replies
from app.turns.events import TurnText
from app.turns.service import TurnRef
from testing.databases import PostgresServer
from testing.waiting import eventually
from tests.app.conftest import add_user
from tests.app.desk import SECRET
from tests.app.two_processes import QUICK, SLOW, Process, Start, end_of, processes, text_of, until

pytestmark = pytest.mark.timeout(50)  # less than SLOW


@pytest.fixture
async def start(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Start]:
    url = postgres.migrated()
    async with processes(url, tmp_path) as start:
        yield start
    postgres.recycle(url)


async def begun(owner: Process, *gates: asyncio.Event) -> TurnRef:
    """A reply of the owner's that says 'one', and waits for each gate before it says ' two', ' three' and ends."""
    words = ["one", " two", " three"][: len(gates)]
    owner.engine.say(*words, gates={number + 1: gate for number, gate in enumerate(gates)})
    return await owner.services.turns.start(ME, text="go")


async def test_a_reader_elsewhere_sees_the_reply_grow_and_end_when_it_does(start: Start) -> None:
    a, b = await start(**QUICK), await start(**SLOW)
    await b.listening()
    more, done = asyncio.Event(), asyncio.Event()
    ref = await begun(a, more, done)
    events = b.services.turns.events(ME, ref.turn_id)
    assert await anext(events) == TurnText("one", 3)
    more.set()
    assert await anext(events) == TurnText(" two", 7)
    done.set()
    end = end_of([event async for event in events])
    assert (end.status, end.offset) == (MessageStatus.COMPLETE, 7)
    assert end.stats is not None
    assert b.engine.calls == []


async def test_a_reader_elsewhere_looks_by_itself_where_no_notification_comes(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifications, "FIRST_RETRY_SECONDS", 600)
    a, b = await start(), await start()
    await b.end_listening()
    more = asyncio.Event()
    ref = await begun(a, more, more)
    events = b.services.turns.events(ME, ref.turn_id)
    assert await anext(events) == TurnText("one", 3)
    more.set()
    seen = [event async for event in events]
    assert text_of(seen) == " two"
    assert end_of(seen).status is MessageStatus.COMPLETE
    warnings = [record for record in caplog.records if record.name == notifications.__name__]
    assert [record.levelno for record in warnings] == [logging.WARNING]


async def test_the_listening_connection_comes_back_and_what_was_missed_is_looked_at(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, notifications.__name__)
    monkeypatch.setattr(notifications, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(notifications, "MAX_RETRY_SECONDS", 0.01)
    a, b = await start(**QUICK), await start(**SLOW)
    listener = b.services.turns._stored._notifications
    connect, refused = listener._connect, 0

    async def refuse() -> psycopg.AsyncConnection[object]:
        nonlocal refused
        refused += 1
        raise psycopg.OperationalError("no route to the server")

    more, done = asyncio.Event(), asyncio.Event()
    ref = await begun(a, more, done)
    events = b.services.turns.events(ME, ref.turn_id)
    await anext(events)
    following = asyncio.ensure_future(anext(events))
    monkeypatch.setattr(listener, "_connect", refuse)
    await b.end_listening()
    more.set()
    await until(lambda: written(a, ref, "one two"))
    while refused < 3:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.01)
    assert not following.done()
    monkeypatch.setattr(listener, "_connect", connect)
    assert await following == TurnText(" two", 7)
    done.set()
    assert end_of([event async for event in events]).status is MessageStatus.COMPLETE
    said = [record.levelno for record in caplog.records if record.name == notifications.__name__]
    assert said == [logging.WARNING, logging.INFO]  # however often it was tried


async def written(process: Process, ref: TurnRef, content: str) -> bool:
    return await process.content(ref.message_id) == content


async def test_a_stop_elsewhere_ends_the_reply_at_once_and_keeps_what_it_has(start: Start) -> None:
    a, b = await start(**SLOW), await start(**SLOW)
    await a.listening()
    await b.listening()
    ref = await begun(a, asyncio.Event())
    reader = asyncio.create_task(a.read(ref.turn_id))
    await a.engine.started.wait()
    await asyncio.sleep(0)
    await b.services.turns.stop(ME, ref.turn_id)
    assert a.engine.running == 0
    reply = await b.services.conversations.get_message(ME, ref.message_id)
    assert (reply.status, reply.content) == (MessageStatus.STOPPED, "one")
    assert end_of(await reader).status is MessageStatus.STOPPED
    await b.services.turns.stop(ME, ref.turn_id)  # too late is no error
    # It goes on there, and the old request to stop is not for the new run.
    b.engine.say(" and on")
    await b.services.turns.resume(ME, ref.message_id)
    assert (await b.turn(ref.turn_id)).stop_requested_at is None
    assert end_of(await b.read(ref.turn_id)).status is MessageStatus.COMPLETE
    assert await a.content(ref.message_id) == "one and on"


async def test_a_stop_elsewhere_is_seen_on_the_clock_where_no_notification_comes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a reply that says nothing: it looks when it renews its lease."""
    monkeypatch.setattr(notifications, "FIRST_RETRY_SECONDS", 600)
    a, b = await start(lease_seconds=3.0), await start(lease_seconds=3.0)
    await a.end_listening()
    await b.end_listening()
    ref = await begun(a, asyncio.Event())
    await until(lambda: written(b, ref, "one"))
    await b.services.turns.stop(ME, ref.turn_id)
    assert a.engine.running == 0
    assert (await b.services.conversations.get_message(ME, ref.message_id)).status is MessageStatus.STOPPED


async def test_a_stop_that_nobody_answers_says_so_and_stays(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_replies, "STOP_SECONDS", 0.2)
    a, b = await start(), await start()
    ref = await begun(a, asyncio.Event())
    await until(lambda: written(b, ref, "one"))
    await die(a, ref)
    stranger = await add_user(b.services.database)
    with pytest.raises(NotFound):
        await b.services.turns.stop(stranger, ref.turn_id)
    await b.services.turns._records.request_stop(stranger, ref.turn_id)
    assert (await b.turn(ref.turn_id)).stop_requested_at is None
    with pytest.raises(EngineUnavailable, match="does not answer"):
        await b.services.turns.stop(ME, ref.turn_id)
    turn = await b.turn(ref.turn_id)
    assert turn.status == "running"
    assert turn.stop_requested_at is not None


async def die(process: Process, ref: TurnRef) -> None:
    """Let the process write no more of a reply, as if it were dead."""
    live = process.services.turns._live.by_id[ref.turn_id]
    assert live._task is not None
    live._task.cancel()
    with suppress(asyncio.CancelledError):
        await live._task


async def test_a_conversation_deleted_elsewhere_is_gone_for_every_reader(start: Start) -> None:
    a, b = await start(**SLOW), await start(**SLOW)
    await a.listening()
    await b.listening()
    ref = await begun(a, asyncio.Event())
    readers = [asyncio.create_task(process.read(ref.turn_id)) for process in (a, b)]
    await a.engine.started.wait()
    await b.services.turns.delete_conversation(ME, ref.conversation_id)
    for reader in readers:
        with pytest.raises(NotFound):
            await reader
    assert (a.engine.running, a.engine.aborted) == (0, 1)


async def test_of_sends_to_both_at_once_one_wins_and_the_other_writes_nothing(start: Start) -> None:
    a, b = await start(), await start()
    first = await a.services.turns.start(ME, text="hi")
    await a.read(first.turn_id)
    tip = first.message_id
    for rounds in range(1, 6):
        # All answer the same reply: one that came when the first one's reply is there already is refused, too.
        sends = [
            process.services.turns.start(ME, text=f"{rounds}", conversation_id=first.conversation_id, tip_id=tip)
            for process in (a, b, a, b)
        ]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        won = [answer for answer in answers if isinstance(answer, TurnRef)]
        lost = [answer for answer in answers if isinstance(answer, Conflict)]
        assert (len(won), len(lost)) == (1, 3), answers
        tip = won[0].message_id
        await b.read(won[0].turn_id)
        count = await a.services.database.read(lambda session: session.scalar(select(func.count(Message.id))))
        assert count == 2 * (rounds + 1)


async def test_of_versions_that_both_begin_at_once_one_is_written(start: Start) -> None:
    """None follows the last message, so only one reply at a time may be the check."""
    a, b = await start(), await start()
    first = await a.services.turns.start(ME, text="hi")
    await a.read(first.turn_id)
    end = asyncio.Event()
    for process in (a, b, a, b):  # each that is sent begins to be generated, whichever may be written
        process.engine.say("one", " two", gates={1: end})
    sends = [process.services.turns.regenerate(ME, first.message_id) for process in (a, b, a, b)]
    answers = await asyncio.gather(*sends, return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, TurnRef)]
    lost = [answer for answer in answers if isinstance(answer, Conflict)]
    assert (len(won), len(lost)) == (1, 3), answers
    end.set()
    await b.read(won[0].turn_id)
    count = await a.services.database.read(lambda session: session.scalar(select(func.count(Message.id))))
    assert count == 3


@pytest.mark.parametrize("new", [True, False])
async def test_one_request_that_comes_to_both_is_one_message(start: Start, new: bool) -> None:
    """A proxy may repeat it to the other process while the first one still works on it."""
    a, b = await start(), await start()
    first = await a.services.turns.start(ME, text="hi")
    await a.read(first.turn_id)
    where = None if new else first.conversation_id
    for number in range(5):
        sends = [
            process.services.turns.start(ME, text="once", conversation_id=where, request_id=f"r{number}")
            for process in (a, b)
        ]
        one, other = await asyncio.gather(*sends)
        assert one == other
        await b.read(one.turn_id)
    turns = await a.services.database.read(lambda session: session.scalar(select(func.count(Turn.id))))
    assert turns == 6


async def test_a_reply_that_went_on_elsewhere_is_followed_as_it_is_now(start: Start) -> None:
    """The process that wrote its first half knows the conversation from then."""
    a, b = await start(), await start()
    await a.listening()
    ref = await begun(a, asyncio.Event())
    await a.engine.started.wait()
    await until(lambda: written(b, ref, "one"))
    await a.services.turns.stop(ME, ref.turn_id)
    b.engine.say(" whole")
    await b.read((await b.services.turns.resume(ME, ref.message_id)).turn_id)
    assert await asked(a, ref) == ["go", "one whole"]


async def test_a_reply_further_up_that_went_on_elsewhere_is_read_as_it_is_now(start: Start) -> None:
    """The last message is the same again, and its own turn is as it was."""
    a, b = await start(), await start()
    await a.listening()
    first = await begun(a, asyncio.Event())
    await a.engine.started.wait()
    await until(lambda: written(b, first, "one"))
    await a.services.turns.stop(ME, first.turn_id)
    second = await follow(a, first, "more")
    await a.read(second.turn_id)
    deletion = await b.services.deletions.delete(ME, second.user_message_id)
    b.engine.say(" whole")
    await b.read((await b.services.turns.resume(ME, first.message_id)).turn_id)
    await b.services.deletions.undo(ME, deletion.deletion_id)
    assert await asked(a, second) == ["go", "one whole", "more", "Hello, world."]


async def follow(process: Process, last: TurnRef, text: str, **given: object) -> TurnRef:
    """Sends as the page does, which knows the last message and has settings."""
    where = {"conversation_id": last.conversation_id, "tip_id": last.message_id}
    return await process.services.turns.start(ME, text=text, settings=ChatSettings(), **where, **given)  # type: ignore[arg-type]


async def asked(process: Process, last: TurnRef) -> list[str]:
    """What the model reads before the next message."""
    await process.read((await follow(process, last, "next")).turn_id)
    (*before, message) = process.engine.calls[-1][0]
    assert message["content"] == "next"
    return [one["content"] for one in before]


ACCOUNTS = {"accounts": True, "secret_key": SECRET}


async def test_replies_that_another_process_writes_count_and_what_is_refused_for_them_is_a_message(
    start: Start,
) -> None:
    """It has cost a generation, which the limit of messages bounds."""
    limits = ACCOUNTS | {"concurrent_replies": 1, "messages_per_minute": 8}
    a, b = await start(**limits), await start(**limits)
    known = await a.services.turns.start(ME, text="hi")
    await a.read(known.turn_id)
    end = asyncio.Event()
    running = await begun(b, end)
    for number in range(3):
        with pytest.raises(TooManyRequests, match="1 reply in progress"):
            await a.services.turns.start(ME, text="hi", request_id=f"new {number}")
        with pytest.raises(TooManyRequests, match="1 reply in progress"):
            await follow(a, known, "more", request_id=f"known {number}")
    await until_idle(a)
    count = await a.services.database.read(lambda session: session.scalar(select(func.count(Message.id))))
    assert count == 4
    end.set()
    await b.read(running.turn_id)
    last = await follow(a, known, "more")
    await a.read(last.turn_id)
    with pytest.raises(TooManyRequests, match="too many messages in a minute"):
        await follow(a, last, "too many")


async def test_a_repeated_request_is_not_refused_for_its_own_reply_elsewhere(start: Start) -> None:
    limits = ACCOUNTS | {"concurrent_replies": 1, "messages_per_minute": 1}
    a, b = await start(**limits), await start(**limits)
    end = asyncio.Event()
    b.engine.say("one", " two", gates={1: end})
    first = await b.services.turns.start(ME, text="hi", request_id="r")
    assert await a.services.turns.start(ME, text="hi", request_id="r") == first
    assert await b.services.turns.start(ME, text="hi", request_id="r") == first
    end.set()
    await b.read(first.turn_id)
    assert await a.services.turns.start(ME, text="hi", request_id="r") == first
    await until_idle(a)


async def until_idle(process: Process) -> None:
    """Until nothing is generated in vain."""
    await eventually(lambda: not process.engine.running and not process.services.turns.running_turn_ids())
