"""What befalls a server while it reads documents: nothing is lost, half a version is never searched, and it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.domain.knowledge import Passage
from app.store.db.knowledge_models import Chunk, Document, WordCount
from app.store.db.models import Message
from app.store.maintenance.integrity import broken_rules
from tests.faults.conftest import Start
from tests.faults.database_faults import SmallDisk, small_disk
from tests.faults.users import client, read_stored

pytestmark = pytest.mark.full

QUICK = {
    "app.store.db.database.BUSY_TIMEOUT_MS": 200,
    "app.store.knowledge.reading.LEASE_SECONDS": 2.0,
    "app.knowledge.ingest.RENEW_SECONDS": 0.2,
    "app.knowledge.ingest.RETRY_SECONDS": 0.2,
    "app.knowledge.ingest.POLL_SECONDS": 0.05,
}
DOCUMENTS, COLLECTIONS = "/api/kb/documents", "/api/kb/collections"
LONG = 20_000  # paragraphs: seconds of reading


def about(bird: str, paragraphs: int = 1) -> bytes:
    return "\n\n".join(f"The {bird} number {n} flies south in autumn." for n in range(paragraphs)).encode()


async def upload(http: httpx.AsyncClient, text: bytes, **fields: str) -> str:
    added = await http.post(DOCUMENTS, files={"file": ("birds.txt", text)}, data=fields)
    assert added.status_code == 202, added.text
    id: str = added.json()["id"]
    return id


async def until(http: httpx.AsyncClient, id: str, state: str) -> dict[str, Any]:
    for _ in range(4000):
        view: dict[str, Any] = (await http.get(f"{DOCUMENTS}/{id}")).json()
        if view["state"] == state:
            return view
        await asyncio.sleep(0.02)
    raise AssertionError(view)


async def found(http: httpx.AsyncClient, bird: str) -> bool:
    answer = await http.get("/api/kb/search", params={"q": bird})
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["passages"])


def sources_of(database: Engine, message_id: str) -> tuple[Passage, ...]:
    with Session(database) as session:
        return session.get_one(Message, message_id).sources or ()


def is_whole(database: Engine) -> bool:
    with database.connect() as connection:
        return broken_rules(connection) == []


async def test_killed_while_a_new_version_is_read(start: Start, database: Engine) -> None:
    server = start(constants=QUICK)
    async with client(server.url) as http:
        id = await upload(http, about("sparrow"))
        await until(http, id, "ready")
        assert await upload(http, about("heron", LONG)) == id
    for _ in range(2):
        async with client(server.url) as http:
            await until(http, id, "reading")
            server.kill()
        assert is_whole(database)
        server = start(constants=QUICK)
        async with client(server.url) as http:
            assert (await found(http, "sparrow"), await found(http, "heron")) == (True, False)
    async with client(server.url) as http:
        view = await until(http, id, "ready")
        assert (view["version"], view["newest"], view["error"]) == (2, 2, None)
        assert (await found(http, "sparrow"), await found(http, "heron")) == (False, True)
        old = await http.get(f"{DOCUMENTS}/{id}/text", params={"version": 1})
        assert old.json()["text"].strip() == about("sparrow").decode()
    assert is_whole(database)
    assert "Traceback" not in server.log


async def test_a_collection_in_use_is_deleted_while_its_document_is_read(start: Start, database: Engine) -> None:
    server = start(constants=QUICK)
    async with client(server.url) as http:
        made = (await http.post(COLLECTIONS, json={"name": "Birds"})).json()["id"]
        await until(http, await upload(http, about("sparrow"), collection=made), "ready")
        turn = (await http.post("/api/turns", json={"text": "Sparrow?", "collections": [made]})).json()
        async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as events:
            await events.aread()
        (source,) = sources_of(database, turn["message_id"])
        assert "sparrow number 0" in source.text
        id = await upload(http, about("heron", LONG), collection=made)
        await until(http, id, "reading")
        assert (await http.delete(f"{COLLECTIONS}/{made}")).status_code == 204
        assert (await http.get(f"{DOCUMENTS}/{id}")).status_code == 404
        assert sources_of(database, turn["message_id"]) == (source,)
        assert (await read_stored(http, turn["conversation_id"]))["messages"][-1]["status"] == "complete"
        again = await http.post("/api/turns", json={"text": "Heron?", "conversation_id": turn["conversation_id"]})
        assert again.status_code == 404
        await until(http, await upload(http, about("gull")), "ready")  # the queue goes on
        assert (await found(http, "gull"), await found(http, "sparrow"), await found(http, "heron")) == (
            True,
            False,
            False,
        )
    with Session(database) as session:
        for table in (Document, Chunk):
            left = select(func.count()).select_from(table).where(table.collection_id == made)
            assert session.scalar(left) == 0
    assert is_whole(database)
    assert "Traceback" not in server.log


def left_of(database: Engine, collection: str) -> tuple[int, ...]:
    """How many documents, chunks and words a collection has."""
    with Session(database) as session:
        counts = (
            select(func.count()).select_from(table).where(table.collection_id == collection)
            for table in (Document, Chunk, WordCount)
        )
        return tuple(session.scalars(count).one() for count in counts)


async def test_killed_while_a_collection_in_use_is_deleted(start: Start, database: Engine) -> None:
    """All of it is found, or nothing of it, whatever is left to be deleted; and the reply keeps what it cites."""
    server = start(constants=QUICK)
    async with client(server.url) as http:
        made = (await http.post(COLLECTIONS, json={"name": "Birds"})).json()["id"]
        await until(http, await upload(http, about("sparrow", LONG // 10), collection=made), "ready")
        turn = (await http.post("/api/turns", json={"text": "Sparrow?", "collections": [made]})).json()
        async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as events:
            await events.aread()
    cited, whole = sources_of(database, turn["message_id"]), left_of(database, made)
    assert cited
    assert min(whole) > 0
    was_found = True
    for seconds in (0.0, 0.005, 0.01, 0.02, 0.04, 0.08):
        async with client(server.url) as http:
            deleting = asyncio.create_task(http.delete(f"{COLLECTIONS}/{made}"))
            await asyncio.sleep(seconds)
            server.kill()
            await asyncio.gather(deleting, return_exceptions=True)
        left = left_of(database, made)
        assert is_whole(database)
        assert sources_of(database, turn["message_id"]) == cited
        server = start(constants=QUICK)
        async with client(server.url) as http:
            is_found = await found(http, "sparrow")
        assert not is_found or left == whole, "what is found lacks nothing"
        assert was_found or not is_found, "what was not found any more is not found again"
        was_found = is_found
    async with client(server.url) as http:
        for _ in range(100):
            answer = await http.delete(f"{COLLECTIONS}/{made}")
            if answer.status_code != 503:  # PostgreSQL may be ending what the killed server began
                break
            await asyncio.sleep(0.1)
        assert answer.status_code in (204, 404)
        assert not await found(http, "sparrow")
        assert (await read_stored(http, turn["conversation_id"]))["messages"][-1]["status"] == "complete"
    assert left_of(database, made) == (0, 0, 0)
    assert sources_of(database, turn["message_id"]) == cited
    assert is_whole(database)
    assert "Traceback" not in server.log


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "data") as disk:
        yield disk


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
async def test_the_disk_is_full_while_a_document_is_read(start: Start, database: Engine, disk: SmallDisk) -> None:
    server = start(constants=QUICK)
    async with client(server.url) as http:
        id = await upload(http, about("sparrow"))
        await until(http, id, "ready")
        await upload(http, about("heron", 4000))
        await until(http, id, "reading")
        disk.fill(server)
        refused = await http.post(DOCUMENTS, files={"file": ("more.txt", about("gull", 4000))})
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["message"].endswith(".")
        for _ in range(400):
            if "documents cannot be read now" in server.log:
                break
            await asyncio.sleep(0.1)
        assert await found(http, "sparrow")
        disk.free(server)
        assert (await until(http, id, "ready"))["version"] == 2
        assert (await found(http, "sparrow"), await found(http, "heron")) == (False, True)
    assert is_whole(database)
    assert "Traceback" not in server.log
    assert "documents cannot be read now" in server.log
