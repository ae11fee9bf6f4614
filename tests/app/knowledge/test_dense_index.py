"""Every index of vectors keeps the same contract: exact order, no chunk of another collection, later changes seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.knowledge import dense_index
from app.knowledge.dense_index import DenseIndex, MemoryIndex
from app.knowledge.pgvector_index import PgvectorIndex, has_pgvector
from app.knowledge.vectors import ChunkVector, from_bytes, to_bytes, unit
from app.store.db.database import Database
from testing.databases import PostgresServer

DIMENSIONS = 16
FINGERPRINT = "00ff"


async def add_pgvector(database: Database) -> bool:
    """Adds the extension as an administrator would; returns whether the server has it."""

    def add(session: Session) -> None:
        there = sa.text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
        if session.scalar(there):
            session.execute(sa.text("CREATE EXTENSION vector"))

    assert not await has_pgvector(database)
    await database.write(add)
    return await has_pgvector(database)


@pytest.fixture(params=["memory", "postgresql"])
async def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DenseIndex]:
    if request.param == "memory":
        monkeypatch.setattr(dense_index, "BLOCK_ROWS", 64)
        yield MemoryIndex(DIMENSIONS)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.empty()
    database = Database(url)
    if not await add_pgvector(database):
        await database.close()
        server.drop(url)
        pytest.skip("this PostgreSQL has no pgvector")
    yield await PgvectorIndex.open(database, FINGERPRINT, DIMENSIONS)
    await database.close()
    server.drop(url)


def chunks(count: int, collections: int, seed: int = 0) -> list[ChunkVector]:
    noise = np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return [ChunkVector(f"chunk-{row}", f"collection-{row % collections}", noise[row]) for row in range(count)]


async def test_the_nearest_chunks_are_those_of_a_plain_comparison(index: DenseIndex) -> None:
    given = chunks(500, 7)
    await index.put(given)
    query = np.random.default_rng(1).normal(size=DIMENSIONS).astype(np.float32)
    for allowed in (["collection-3"], [f"collection-{n}" for n in range(6)], [f"collection-{n}" for n in range(7)]):
        found = await index.search(query, collections=allowed, limit=20)
        usable = [one for one in given if one.collection_id in allowed]
        cosines = {one.chunk_id: float(unit(one.vector) @ unit(query)) for one in usable}
        expected = sorted(cosines, key=lambda id: -cosines[id])[:20]
        assert [one.chunk_id for one in found] == expected
        assert [one.score for one in found] == pytest.approx([cosines[id] for id in expected], abs=2e-3)


async def test_chunks_of_other_collections_take_no_place(index: DenseIndex) -> None:
    query = np.ones(DIMENSIONS, np.float32)
    near = [ChunkVector(f"near-{n}", "secret", query + n / 1000) for n in range(100)]
    await index.put([*near, ChunkVector("far", "mine", -query)])
    assert [one.chunk_id for one in await index.search(query, collections=["mine"], limit=3)] == ["far"]
    assert await index.search(query, collections=[], limit=3) == []
    assert await index.search(query, collections=["unknown"], limit=3) == []


async def test_changes_are_seen_by_the_next_search(index: DenseIndex) -> None:
    given = chunks(130, 1)
    await index.put(given)
    await index.remove([one.chunk_id for one in given[:100]] + ["unknown"])
    assert await index.owners() == {one.chunk_id: "collection-0" for one in given[100:]}
    found = await index.search(given[0].vector, collections=["collection-0"], limit=200)
    assert len(found) == 30
    await index.put([ChunkVector("chunk-120", "elsewhere", given[0].vector), given[5]])
    assert len(await index.search(given[0].vector, collections=["collection-0"], limit=200)) == 30
    moved = await index.search(given[0].vector, collections=["elsewhere"], limit=5)
    assert (await index.owners())["chunk-120"] == "elsewhere"
    assert [(one.chunk_id, round(one.score, 2)) for one in moved] == [("chunk-120", 1.0)]
    back = await index.search(given[5].vector, collections=["collection-0"], limit=1)
    assert [one.chunk_id for one in back] == ["chunk-5"]


async def test_a_limit_of_all_or_none(index: DenseIndex) -> None:
    await index.put(chunks(10, 1))
    query = np.ones(DIMENSIONS, np.float32)
    for limit, expected in ((0, 0), (9, 9), (10, 10), (11, 10)):
        assert len(await index.search(query, collections=["collection-0"], limit=limit)) == expected


async def test_memory_holds_each_vector_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_index, "BLOCK_ROWS", 64)
    index = MemoryIndex(DIMENSIONS)
    given = chunks(128, 2)
    for _ in range(3):
        await index.put(given)
        await index.remove([one.chunk_id for one in given[:64]])
        await index.put(given)
    assert index.num_bytes == 128 * DIMENSIONS * 4


async def test_vectors_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="vectors have 3 dimensions"):
        await MemoryIndex(DIMENSIONS).put([ChunkVector("a", "b", np.ones(3, np.float32))])


def test_stored_vectors_keep_their_direction() -> None:
    vector = np.random.default_rng(2).normal(size=384).astype(np.float32) * 1000
    stored = to_bytes(vector)
    assert len(stored) == 2 * 384
    assert float(unit(from_bytes(stored)) @ unit(vector)) > 0.99999
    assert not from_bytes(to_bytes(np.zeros(4, np.float32))).any()


async def test_hnsw_goes_on_until_the_collections_have_enough(postgres: PostgresServer) -> None:
    url = postgres.empty()
    database = Database(url)
    try:
        if not await add_pgvector(database):
            pytest.skip("this PostgreSQL has no pgvector")
        index = await PgvectorIndex.open(database, FINGERPRINT, DIMENSIONS)
        query = np.ones(DIMENSIONS, np.float32)
        noise = np.random.default_rng(3).normal(size=(600, DIMENSIONS)).astype(np.float32)
        await index.put([ChunkVector(f"near-{n}", "secret", query + row / 10) for n, row in enumerate(noise)])
        await index.put([ChunkVector(f"far-{n}", "mine", row - query) for n, row in enumerate(noise[:5])])

        def use_hnsw(session: Session) -> None:  # by itself the planner compares so few one by one
            name = session.scalar(sa.text("SELECT current_database()"))
            for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
                session.execute(sa.text(f'ALTER DATABASE "{name}" SET {setting} = off'))

        await database.write(use_hnsw)
        await database.close()
        database = Database(url)
        index = await PgvectorIndex.open(database, FINGERPRINT, DIMENSIONS)
        found = await index.search(query, collections=["mine"], limit=5)
        assert {one.chunk_id for one in found} == {f"far-{n}" for n in range(5)}
    finally:
        await database.close()
        postgres.drop(url)


async def test_another_encoder_gets_another_table(postgres: PostgresServer) -> None:
    url = postgres.empty()
    database = Database(url)
    try:
        if not await add_pgvector(database):
            pytest.skip("this PostgreSQL has no pgvector")
        first = await PgvectorIndex.open(database, "aa", DIMENSIONS)
        await first.put(chunks(3, 1))
        assert len(await (await PgvectorIndex.open(database, "aa", DIMENSIONS)).owners()) == 3
        second = await PgvectorIndex.open(database, "bb", 8)
        assert await second.owners() == {}
        with pytest.raises(ValueError, match="at most 4000 dimensions"):
            await PgvectorIndex.open(database, "cc", 5000)
        with pytest.raises(ValueError, match="no fingerprint"):
            await PgvectorIndex.open(database, "x; drop", 8)
    finally:
        await database.close()
        postgres.drop(url)


async def test_sqlite_has_no_pgvector(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    assert not await has_pgvector(database)
    await database.close()
