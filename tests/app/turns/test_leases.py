"""Whose a running turn is, and what becomes of it when its owner is dead, or only slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus
from app.errors import Conflict, StorageUnavailable
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat.leases import SWEPT, Leases
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_contexts import TurnContexts
from app.store.chat.turn_records import TurnRecords
from app.store.db import database as database_module
from app.store.db.database import Database
from app.store.db.models import Conversation, Turn
from app.store.db.notifications import Channel
from app.turns.events import TurnEnd, TurnText
from app.turns.sweeper import sweep_expired
from testing.databases import PostgresServer
from testing.fake_engine import FakeEngine
from testing.turns import new_turn
from testing.waiting import eventually
from tests.app.two_processes import QUICK, Process, Start, end_of, processes, until

SHORT = {"checkpoint_seconds": 0.05, "lease_seconds": 0.6}


@pytest.fixture
async def start(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Start]:
    url = postgres.migrated()
    async with processes(url, tmp_path) as start:
        yield start
    postgres.recycle(url)


async def set_turn(process: Process, turn_id: str, **values: object) -> None:
    def work(session: Session) -> None:
        turn = session.get_one(Turn, turn_id)
        for name, value in values.items():
            setattr(turn, name, value)

    await process.services.database.write(work)


class Paused:
    """A process that stands still (SIGSTOP, a laptop's lid) just before it writes; until it is let go."""

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stands = asyncio.Event()
        self.go_on = asyncio.Event()
        records = process.services.turns._records
        self._checkpoint, self._finish = records.checkpoint, records.finish
        monkeypatch.setattr(records, "checkpoint", self.checkpoint)
        monkeypatch.setattr(records, "finish", self.finish)

    async def checkpoint(self, user_id: str, turn_id: str, text: str | None, *new: Any) -> LeaseStatus:
        await self._pause()
        return await self._checkpoint(user_id, turn_id, text, *new)

    async def finish(self, user_id: str, turn_id: str, outcome: TurnOutcome) -> bool:
        await self._pause()
        return await self._finish(user_id, turn_id, outcome)

    async def _pause(self) -> None:
        self.stands.set()
        await self.go_on.wait()


async def swept_by(process: Process, turn_id: str) -> None:
    await until(lambda: is_interrupted(process, turn_id))


async def is_interrupted(process: Process, turn_id: str) -> bool:
    return (await process.turn(turn_id)).status == "interrupted"


async def test_a_live_reply_is_never_taken_and_a_dead_ones_soon(start: Start) -> None:
    """Also one that says nothing for several leases, and by a process that only starts."""
    a, b = await start(**SHORT), await start(**SHORT)
    gate = asyncio.Event()
    a.engine.say("one", " two", gates={1: gate})
    ref = await a.services.turns.start(ME, text="go")
    begun = (await b.turn(ref.turn_id)).lease_until
    assert begun is not None

    async def renewed() -> bool:
        turn = await b.turn(ref.turn_id)
        assert turn.status == "running"
        return turn.lease_until is not None and turn.lease_until > begun + timedelta(seconds=3 * 0.6)

    await until(renewed)
    await start(**SHORT)
    assert (await b.turn(ref.turn_id)).status == "running"

    reader = asyncio.create_task(b.read(ref.turn_id))
    live = a.services.turns._live.by_id[ref.turn_id]
    assert live._task is not None
    live._task.cancel()
    assert (end_of(await reader).status, end_of(await reader).error) == (MessageStatus.INTERRUPTED, SWEPT)
    b.engine.say(" and on")
    await b.services.turns.resume(ME, ref.message_id)
    assert end_of(await b.read(ref.turn_id)).status is MessageStatus.COMPLETE
    assert await a.content(ref.message_id) == "one and on"


@pytest.mark.parametrize("ends_meanwhile", [False, True])
async def test_an_owner_that_was_only_slow_overwrites_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, ends_meanwhile: bool
) -> None:
    a, b = await start(**SHORT), await start(**SHORT)
    more, never = asyncio.Event(), asyncio.Event()
    a.engine.say("saved", " of A", gates={1: more} if ends_meanwhile else {1: more, 2: never})
    ref = await a.services.turns.start(ME, text="go")
    await until(lambda: has(b, ref.message_id, "saved"))
    reader = asyncio.create_task(a.read(ref.turn_id))
    pause = Paused(a, monkeypatch)
    more.set()
    await pause.stands.wait()
    await swept_by(b, ref.turn_id)
    b.engine.say(" of B, the other")
    await b.services.turns.resume(ME, ref.message_id)
    await b.read(ref.turn_id)

    pause.go_on.set()
    events = await reader
    end = end_of(events)
    # Its readers had more than was saved, and hear how much of it is.
    assert (end.status, end.offset) == (MessageStatus.COMPLETE, len("saved of B, the other"))
    assert a.engine.running == 0
    turn = await a.turn(ref.turn_id)
    assert (turn.owner, turn.status) == (b.services.turns._records._owner, "complete")
    assert await a.content(ref.message_id) == "saved of B, the other"
    # And it may write the conversation's next one.
    following = await a.services.turns.start(ME, text="next", conversation_id=ref.conversation_id)
    assert end_of(await a.read(following.turn_id)).status is MessageStatus.COMPLETE


async def test_a_slow_owner_whose_reply_goes_on_elsewhere_leaves_it_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await start(**SHORT), await start(**SHORT)
    more, never = asyncio.Event(), asyncio.Event()
    a.engine.say("saved", " of A", gates={1: more, 2: never})
    ref = await a.services.turns.start(ME, text="go")
    await until(lambda: has(b, ref.message_id, "saved"))
    reader = asyncio.create_task(a.read(ref.turn_id))
    pause = Paused(a, monkeypatch)
    more.set()
    await pause.stands.wait()
    await swept_by(b, ref.turn_id)
    gate = asyncio.Event()
    b.engine.say(" of B", " goes on", gates={1: gate})
    await b.services.turns.resume(ME, ref.message_id)
    with pytest.raises(Conflict):  # here it is still being written, as far as this process knows
        await a.services.turns.resume(ME, ref.message_id)
    pause.go_on.set()
    end = end_of(await reader)
    assert (end.status, end.error, end.offset) == (MessageStatus.INTERRUPTED, SWEPT, len("saved"))
    assert a.engine.running == 0
    following = a.services.turns.events(ME, ref.turn_id)  # who looks again sees the other's
    gate.set()
    seen = [event async for event in following]
    assert "".join(event.text for event in seen if isinstance(event, TurnText)) == "saved of B goes on"
    assert end_of(seen).status is MessageStatus.COMPLETE


async def test_a_server_does_not_take_its_own_reply_for_dead(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody locks its rows, and so its lease ends: it is written on where it was."""
    a = await start(**SHORT)
    looks, look = 0, Leases.sweep_expired

    async def counted(leases: Leases, *given: Any) -> int:
        nonlocal looks
        looks += await is_over(a, ref.turn_id)
        return await look(leases, *given)

    more = asyncio.Event()
    a.engine.say("kept", " whole", gates={1: more})
    ref = await a.services.turns.start(ME, text="go")
    await until(lambda: has(a, ref.message_id, "kept"))
    pause = Paused(a, monkeypatch)
    monkeypatch.setattr(Leases, "sweep_expired", counted)
    await eventually(lambda: looks > 2)
    pause.go_on.set()
    more.set()
    assert end_of(await a.read(ref.turn_id)).status is MessageStatus.COMPLETE
    assert await a.content(ref.message_id) == "kept whole"


async def is_over(process: Process, turn_id: str) -> bool:
    """Whether the lease ended some looks ago."""
    lease_until = (await process.turn(turn_id)).lease_until
    assert lease_until is not None
    return datetime.now(UTC) > lease_until + timedelta(seconds=0.6)


async def has(process: Process, message_id: str, content: str) -> bool:
    return await process.content(message_id) == content


async def test_what_was_read_before_somebody_else_went_on_is_no_place_to_go_on_from(services: Services) -> None:
    """Or the shorter text would be written over the longer one."""
    records = TurnRecords(services.database, owner=new_id(), lease_seconds=60)
    turn = new_turn()
    await records.begin(ME, turn)
    await records.finish(ME, turn.turn_id, TurnOutcome(text="one two", status=MessageStatus.STOPPED))
    read = await TurnContexts(services.database).get_partial_reply(ME, turn.message_id)
    with pytest.raises(Conflict, match="changed elsewhere"):
        await records.resume(ME, replace(turn, title=None, text=None, partial_reply=replace(read, text="one")))
    await records.resume(ME, replace(turn, title=None, text=None, partial_reply=read))
    assert await records.checkpoint(ME, turn.turn_id, "one two three") is LeaseStatus.RUNNING


async def test_only_leases_that_are_over_are_swept_at_the_start(start: Start) -> None:
    a = await start(**QUICK)
    database = a.services.database
    records, leases = TurnRecords(database, new_id(), 0.01), Leases(database, new_id(), 0.01)
    now = datetime.now(UTC)
    over, null, live = turns = [new_turn() for _ in range(3)]
    for turn in turns:
        await records.begin(ME, turn)
    await set_turn(a, over.turn_id, lease_until=now - timedelta(minutes=1))
    await set_turn(a, null.turn_id, lease_until=None)
    await set_turn(a, live.turn_id, lease_until=now + timedelta(minutes=1))
    # Where the server itself came up within a lease, nobody could renew one: only what never had one is taken.
    assert await Leases(database, new_id(), seconds=1e7).sweep_at_start() == 1
    assert (await a.turn(null.turn_id)).status == "interrupted"
    await a.listening()
    with a.services.turns._stored._notifications.watch(Channel.CHANGED, over.turn_id) as changed:
        changed.clear()
        assert await leases.sweep_at_start() == 1
        await changed.wait()  # readers everywhere are told
    assert (await a.turn(over.turn_id)).status == "interrupted"
    assert (await a.turn(live.turn_id)).status == "running"
    assert await leases.sweep_expired(now) == 0
    assert await leases.sweep_expired(now + timedelta(minutes=2)) == 1


async def test_a_turn_that_is_being_written_is_not_waited_for_and_not_swept(start: Start) -> None:
    a = await start(**QUICK)
    database = a.services.database
    records = TurnRecords(database, new_id(), 60)
    turn = new_turn()
    await records.begin(ME, turn)
    await set_turn(a, turn.turn_id, lease_until=None)
    locked, go = threading.Event(), threading.Event()

    def write(session: Session) -> None:
        session.get_one(Turn, turn.turn_id).heartbeat_at = datetime.now(UTC)
        session.flush()
        locked.set()
        go.wait()

    writing = asyncio.create_task(database.write(write))
    await asyncio.to_thread(locked.wait)
    try:
        assert await Leases(database, new_id(), 60).sweep_at_start() == 0
    finally:
        go.set()
        await writing
    assert await Leases(database, new_id(), 60).sweep_at_start() == 1


async def test_a_transaction_that_stands_still_does_not_hold_up_other_processes(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.migrated()
    stopped, other = Database(url), Database(url)
    turn = new_turn()
    await TurnRecords(other, new_id(), 60).begin(ME, turn)
    with monkeypatch.context() as impatient:
        impatient.setattr(database_module, "IDLE_TRANSACTION_SECONDS", 0.2)
        await stopped.ping()  # the connection that it makes here is the one it keeps
    locked, go = threading.Event(), threading.Event()

    def stand_still(session: Session) -> None:
        # At once: what stands still before it holds anything would be ended, too.
        session.execute(update(Conversation).values(title="half"))
        locked.set()
        go.wait()

    standing = asyncio.create_task(stopped.write(stand_still))
    await asyncio.to_thread(locked.wait)
    try:
        await TurnRecords(other, new_id(), 60).delete_conversation(ME, turn.conversation_id)
    finally:
        go.set()
        with pytest.raises(StorageUnavailable):
            await standing
        await stopped.close()
        await other.close()
        postgres.recycle(url)


class FailingLeases(Leases):
    """Says what it is asked for; ``answers`` are what becomes of each look: True, False (fails) or seconds it takes."""

    def __init__(self, answers: list[bool | float]) -> None:
        self._answers = answers
        self.looks = 0
        self.trouble = 0.0  #: when the last look failed or was slow
        self.sweeps: list[tuple[float, float]] = []  #: when, and before which time leases had ended

    async def now(self) -> datetime:
        answer = self._answers[self.looks] if self.looks < len(self._answers) else True
        self.looks += 1
        if not isinstance(answer, bool):
            await asyncio.sleep(answer)
        if answer is not True:
            self.trouble = time.monotonic()
        if answer is False:
            raise StorageUnavailable("no route to the server")
        return datetime.fromtimestamp(time.monotonic(), UTC)

    async def sweep_expired(self, before: datetime, alive: Collection[str] = ()) -> int:
        self.sweeps.append((time.monotonic(), before.timestamp()))
        return 0


@pytest.mark.parametrize("trouble", [False, 0.15], ids=["fails", "slow"])
async def test_after_the_database_was_away_nothing_is_taken_for_a_lease(trouble: bool | float) -> None:
    """Every owner had as long to renew its lease; and what is taken was over a look before."""
    lease = 0.3
    leases = FailingLeases([True, True, trouble, trouble])
    sweeper = asyncio.create_task(sweep_expired(leases, lease, list))
    await eventually(lambda: leases.looks > 4 and len(leases.sweeps) > 3)
    sweeper.cancel()
    after = [(when, ended) for when, ended in leases.sweeps if when > leases.trouble]
    assert min(ended for _, ended in after) > leases.trouble + 0.99 * lease
    assert min(when - ended for when, ended in after) > 0.99 * lease / 3


async def test_on_sqlite_the_next_start_takes_everything_at_once(tmp_path: Path) -> None:
    """One process holds the file, so leases ask nobody; and nothing listens anywhere."""
    settings = AppSettings(_env_file=None, data_dir=tmp_path, lease_seconds=600)
    engine = FakeEngine()
    services = await Services.open(settings, engine)
    assert not {"notifications", "sweeper"} & {task.get_name() for task in services._background._tasks}
    turn = new_turn()
    await TurnRecords(services.database, new_id(), 600).begin(ME, turn)
    await services.close()
    services = await Services.open(settings, engine)
    try:
        events = [event async for event in services.turns.events(ME, turn.turn_id)]
        assert isinstance(events[-1], TurnEnd)
        assert events[-1].error == SWEPT
    finally:
        await services.close()
