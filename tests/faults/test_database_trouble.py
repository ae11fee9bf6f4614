"""The database fails under a reply: the reply goes on, the person is told, and all of it is saved in the end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.store.db.models import Conversation, Message
from app.turns.checkpoints import NOT_SAVED_YET, SAVED_AGAIN
from testing.json_events import JsonEvent
from tests.faults.conftest import Start
from tests.faults.database_faults import FileSizeLimit, SmallDisk, small_disk, stoppable_postgres
from tests.faults.processes import ServerHost
from tests.faults.scripted_replies import make_question, whole_reply
from tests.faults.users import client, follow, read_stored, send

LONG = 20_000  # words: longer than any test
IMPATIENT = {"app.store.db.database.BUSY_TIMEOUT_MS": 200, "app.turns.live.MAX_RETRY_SECONDS": 0.5}

only_sqlite = pytest.mark.parametrize("database_url", [None], ids=["sqlite"])


class Reader:
    """A tab in which a reply grows."""

    def __init__(self, http: httpx.AsyncClient, turn_id: str) -> None:
        self.text = ""
        self.notices: list[str] = []
        self.end: JsonEvent | None = None
        self._ended = False
        self._changed = asyncio.Condition()
        self._events = follow(http, turn_id)
        self._task = asyncio.create_task(self._read())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            async with asyncio.timeout(60):
                await self._changed.wait_for(lambda: condition() or self._ended)
        if self._ended:
            await self._task  # raises what ended it
        assert condition(), (self.notices, self.end)

    async def grows(self) -> None:
        before = len(self.text)
        await self.until(lambda: len(self.text) > before)

    async def hears(self, notice: str) -> None:
        await self.until(lambda: notice in self.notices)

    async def _read(self) -> None:
        try:
            async for event in self._events:
                if event.name == "text":
                    self.text += event.data["text"]
                elif event.name == "notice":
                    self.notices.append(event.data["message"])
                elif event.name == "end":
                    self.end = event
                await self._tell()
        finally:
            self._ended = True
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def stopped_and_whole(http: httpx.AsyncClient, reader: Reader, turn: dict[str, str], question: str) -> None:
    """Stop the reply: all that was shown of it is saved, and is what was said."""
    await http.post(f"/api/turns/{turn['turn_id']}/stop")
    await reader.until(lambda: reader.end is not None)
    assert reader.end is not None
    assert (reader.end.data["status"], reader.end.data["offset"]) == ("stopped", len(reader.text))
    conversation = await read_stored(http, turn["conversation_id"])
    reply = conversation["messages"][-1]
    assert (reply["status"], reply["content"]) == ("stopped", reader.text)
    assert whole_reply(question).startswith(reader.text)


async def refused(http: httpx.AsyncClient, text: str, *words: str) -> None:
    """A message that cannot be saved is refused with a sentence."""
    answer = await http.post("/api/turns", json={"text": text})
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["code"] == "storage_unavailable"
    assert error["message"].endswith(".")
    assert any(word in error["message"] for word in words), error


def messages_in(database: Engine) -> int:
    with Session(database) as session:
        return session.scalars(select(func.count(Message.id))).one()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "data") as disk:
        yield disk


@only_sqlite
@pytest.mark.parametrize("kind", ["tmpfs", pytest.param("quota", marks=pytest.mark.full)])
async def test_the_disk_is_full(start: Start, database: Engine, disk: SmallDisk, kind: str) -> None:
    if kind == "quota":
        disk = FileSizeLimit(disk.folder)
    question = make_question(1, LONG)
    server = start(constants=IMPATIENT)
    async with client(server.url) as http:
        turn = await send(http, question)
        reader = Reader(http, turn["turn_id"])
        await reader.grows()
        disk.fill(server)
        await reader.hears(NOT_SAVED_YET)
        await refused(http, "x" * 100_000, "full", "disk")
        assert messages_in(database) == 2, "nothing is half-written"
        assert (await http.get("/api/conversations")).status_code == 200, "what is there can be read"
        await reader.grows()
        disk.free(server)
        await reader.hears(SAVED_AGAIN)
        await stopped_and_whole(http, reader, turn, question)
        await send(http, "x" * 100_000)
    assert "Traceback" not in server.log


@only_sqlite
async def test_killed_and_started_on_a_full_disk(
    start: Start, launch: Start, database: Engine, disk: SmallDisk
) -> None:
    question = make_question(1, LONG)
    server = start(constants=IMPATIENT)
    async with client(server.url) as http:
        turn = await send(http, question)
        reader = Reader(http, turn["turn_id"])
        await reader.grows()
        disk.fill(server)
        await reader.hears(NOT_SAVED_YET)
        server.kill()
        with pytest.raises(httpx.TransportError):
            await reader.until(lambda: reader.end is not None)
    again = launch()
    if again.wait_for_start():  # there was just room enough
        again.kill()
    else:
        assert again.code == 2, again.log
        assert "Traceback" not in again.log
    disk.free(server)
    again = start()
    async with client(again.url) as http:
        reply = (await read_stored(http, turn["conversation_id"]))["messages"][-1]
        assert reply["status"] == "interrupted"
        assert whole_reply(question).startswith(reply["content"])


async def lock_and_let_go(start: Start, database: Engine, tmp_path: Path, seconds: float, **options: object) -> None:
    """Another program locks the reply's row (on SQLite, there is but the file) for so long, and until it is told."""
    question = make_question(1, LONG)
    server = start(**options)
    async with client(server.url) as http:
        turn = await send(http, question)
        reader = Reader(http, turn["turn_id"])
        await reader.grows()
        if database.dialect.name == "sqlite":
            with closing(sqlite3.connect(tmp_path / "data/deskmate.db", isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                await asyncio.sleep(seconds)
                await reader.hears(NOT_SAVED_YET)
                await refused(http, "too early", "locked")
                assert (await http.get("/api/conversations")).status_code == 200
                await reader.grows()
        else:
            with Session(database) as session:
                session.execute(select(Conversation).with_for_update())
                session.execute(select(Message).where(Message.id == turn["message_id"]).with_for_update())
                await asyncio.sleep(seconds)
                await reader.hears(NOT_SAVED_YET)
                await send(http, "elsewhere")
                await reader.grows()
        await reader.hears(SAVED_AGAIN)
        await stopped_and_whole(http, reader, turn, question)
        assert reader.notices == [NOT_SAVED_YET, SAVED_AGAIN]
    assert "Traceback" not in server.log


@pytest.mark.full
async def test_locked_by_another_program(start: Start, database: Engine, tmp_path: Path) -> None:
    await lock_and_let_go(start, database, tmp_path, 0, constants=IMPATIENT)


@pytest.mark.full
async def test_locked_for_ten_seconds(start: Start, database: Engine, tmp_path: Path) -> None:
    await lock_and_let_go(start, database, tmp_path, 10)


async def test_postgresql_crashes_and_comes_back(server_host: ServerHost, tmp_path: Path) -> None:
    questions = [make_question(number, LONG) for number in range(3)]
    with stoppable_postgres() as postgres:
        server = server_host.launch(tmp_path / "data", postgres.url, constants=IMPATIENT)
        server.wait_until_ready()
        async with client(server.url) as http:
            turns = [await send(http, question) for question in questions]
            readers = [Reader(http, turn["turn_id"]) for turn in turns]
            for reader in readers:
                await reader.grows()
            postgres.crash()
            for reader in readers:
                await reader.hears(NOT_SAVED_YET)
            await refused(http, "too early", "connection", "server")
            assert (await http.get("/ready")).status_code == 503
            for reader in readers:
                await reader.grows()
            postgres.start()
            for reader in readers:
                await reader.hears(SAVED_AGAIN)
            for reader, turn, question in zip(readers, turns, questions, strict=True):
                await stopped_and_whole(http, reader, turn, question)
            assert len((await http.get("/api/conversations")).json()["items"]) == len(turns)
            await send(http, "and now?")
        server.kill()
        assert "Traceback" not in server.log
