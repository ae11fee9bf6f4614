"""Two servers on one PostgreSQL that read the same documents: each becomes one document, read once, found on both."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.store.db.knowledge_models import Chunk, ChunkEntry, Document, DocumentVersion
from app.store.maintenance.integrity import broken_rules
from tests.faults.conftest import Start
from tests.faults.test_knowledge_faults import DOCUMENTS, LONG, QUICK, about, until
from tests.faults.users import client

pytestmark = [pytest.mark.full, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]

EAGER = {
    **QUICK,
    "app.store.db.database.BUSY_TIMEOUT_MS": 10_000,  # nothing is stuck here, and the machine may be slow
    "app.knowledge.dense_search.POLL_SECONDS": 0.05,
    "app.knowledge.folder_sync.SCAN_SECONDS": 0.1,
}
BIRDS = ("sparrow", "heron", "gull", "wren", "finch", "robin", "crane", "stork")


async def add(http: httpx.AsyncClient, name: str, text: bytes) -> dict[str, Any]:
    answer = await http.post(DOCUMENTS, files={"file": (name, text)})
    assert answer.status_code == 202, answer.text
    added: dict[str, Any] = answer.json()
    return added


async def passages(http: httpx.AsyncClient, bird: str, way: str) -> list[dict[str, Any]]:
    """The passages about a bird. Those about others are all equally far in meaning, and come in any order."""
    search: dict[str, str | int] = {"q": bird, "way": way, "limit": 20}
    answer = await http.get("/api/kb/search", params=search)
    if answer.status_code == 503:  # a connection that the database has closed while the server stood still
        answer = await http.get("/api/kb/search", params=search)
    assert answer.status_code == 200, answer.text
    return [passage for passage in answer.json()["passages"] if bird in passage["text"]]


async def all_encoded(database: Engine) -> None:
    def waiting() -> int:
        with Session(database) as session:
            return session.scalar(select(func.count()).select_from(Chunk).where(Chunk.vector_of.is_(None))) or 0

    while await asyncio.to_thread(waiting):  # noqa: ASYNC110 (the database tells nobody)
        await asyncio.sleep(0.05)


async def same_on_both(a: httpx.AsyncClient, b: httpx.AsyncClient, birds: Sequence[str]) -> None:
    """Both servers find the same: a server's index of vectors follows the other's within a moment."""
    for bird in birds:
        for way in ("text", "dense", "fused"):
            for _ in range(200):
                found = [await passages(http, bird, way) for http in (a, b)]
                if found[0] == found[1] and found[0]:
                    break
                await asyncio.sleep(0.05)
            assert found[0] == found[1]
            places = [(one["document_id"], one["start"]) for one in found[0]]
            assert len(set(places)) == len(places) > 0


def is_read_once(database: Engine, documents: int) -> None:
    """Each document is there once, with the chunks of its newest version, each once, with one entry and one vector."""
    with Session(database) as session:
        found = session.scalars(select(Document)).all()
        assert len(found) == documents
        assert len({one.name for one in found}) == documents
        assert {(one.state, one.error, one.version == one.newest) for one in found} == {("ready", None, True)}
        assert {one.reader for one in found} == {None}
        newest = {one.id: one.newest for one in found}
        chunks = session.scalars(select(Chunk).order_by(Chunk.document_id, Chunk.ordinal)).all()
        assert {one.document_id for one in chunks} == set(newest)
        assert all(one.version == newest[one.document_id] for one in chunks)
        assert len({(one.document_id, one.start) for one in chunks}) == len(chunks)
        assert all(one.vector is not None and one.vector_of for one in chunks)
        entries = session.scalars(select(ChunkEntry.chunk_id)).all()
        assert sorted(entries) == sorted(one.id for one in chunks)
        assert session.scalar(select(func.count()).where(DocumentVersion.raw.is_not(None))) == 0
    with database.connect() as connection:
        assert broken_rules(connection) == []


async def test_the_same_files_are_uploaded_to_both(start: Start, database: Engine) -> None:
    servers = [start(constants=EAGER, encoder=True) for _ in range(2)]
    async with client(servers[0].url) as a, client(servers[1].url) as b:
        for round_number in range(2):  # new documents, then new versions of them
            uploads = [add(http, f"{bird}.txt", about(bird, 40 + round_number)) for bird in BIRDS for http in (a, b)]
            added = await asyncio.gather(*uploads)
            assert {one["version"] for one in added} == {round_number + 1}
            for first, second in zip(added[::2], added[1::2], strict=True):
                assert first["id"] == second["id"]
            for one in added[::2]:
                await until(b, one["id"], "ready")
        await all_encoded(database)
        await same_on_both(a, b, BIRDS)
    is_read_once(database, len(BIRDS))
    assert "Traceback" not in servers[0].log + servers[1].log


async def test_different_files_of_one_name_are_uploaded_to_both(start: Start, database: Engine) -> None:
    """One of them is the newest, and only that is searched."""
    servers = [start(constants=EAGER, encoder=True) for _ in range(2)]
    async with client(servers[0].url) as a, client(servers[1].url) as b:
        for _ in range(5):
            first, second = await asyncio.gather(
                add(a, "bird.txt", about("sparrow", 30)), add(b, "bird.txt", about("heron", 30))
            )
            assert first["id"] == second["id"]
            assert abs(first["version"] - second["version"]) == 1
            newest = "sparrow" if first["version"] > second["version"] else "heron"
            await until(a, first["id"], "ready")
        await all_encoded(database)
        await same_on_both(a, b, [newest])
        other = "heron" if newest == "sparrow" else "sparrow"
        assert (await passages(a, other, "text"), await passages(b, other, "text")) == ([], [])
    is_read_once(database, 1)


async def test_both_follow_one_folder(start: Start, database: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "knowledge"
    folder.mkdir()
    constants = {**EAGER, "app.knowledge.folder_sync.REMOVAL_SECONDS": 1.0}
    servers = [start(constants=constants, encoder=True, knowledge_dir=folder) for _ in range(2)]

    async def until_documents(http: httpx.AsyncClient, expected: dict[str, int]) -> None:
        """Until these are there, all of them read, by their names and versions."""
        for _ in range(1200):
            listed = (await http.get(DOCUMENTS)).json()["documents"]
            if {one["name"]: one["version"] for one in listed} == expected and all(
                one["state"] == "ready" for one in listed
            ):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(listed)

    async with client(servers[0].url) as a, client(servers[1].url) as b:
        for bird in BIRDS:
            (folder / f"{bird}.txt").write_bytes(about(bird, 40))
        await until_documents(a, {f"{bird}.txt": 1 for bird in BIRDS})
        (folder / "heron.txt").write_bytes(about("heron", 50))
        (folder / "gull.txt").unlink()
        left = {f"{bird}.txt": 2 if bird == "heron" else 1 for bird in BIRDS if bird != "gull"}
        await until_documents(b, left)
        await all_encoded(database)
        await same_on_both(a, b, [bird for bird in BIRDS if bird != "gull"])
    is_read_once(database, len(left))
    assert "Traceback" not in servers[0].log + servers[1].log
    assert "is not synchronised" not in servers[0].log + servers[1].log


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_server_that_reads_dies_or_stands_still(
    start: Start, database: Engine, ending: signal.Signals
) -> None:
    """The other one takes its document over after the lease; one that comes back then writes nothing over it."""
    reader = start(constants={**EAGER, "app.store.db.database.IDLE_TRANSACTION_SECONDS": 1}, encoder=True)
    async with client(reader.url) as http:
        id = (await add(http, "birds.txt", about("heron", LONG // 4)))["id"]
        await until(http, id, "reading")
    other = start(constants=EAGER, encoder=True)
    async with client(other.url) as http:
        assert (await http.get(f"{DOCUMENTS}/{id}")).json()["state"] == "reading"
        os.kill(reader.pid, ending)
        try:
            view = await until(http, id, "ready")
        finally:
            if ending is signal.SIGSTOP:
                os.kill(reader.pid, signal.SIGCONT)
        assert (view["version"], view["newest"], view["error"]) == (1, 1, None)
        await all_encoded(database)
        if ending is signal.SIGSTOP:
            async with client(reader.url) as back:
                await until(back, (await add(back, "gull.txt", about("gull")))["id"], "ready")
                await all_encoded(database)
                await same_on_both(http, back, ["heron"])
    is_read_once(database, 1 if ending is signal.SIGKILL else 2)
    assert "Traceback" not in other.log
