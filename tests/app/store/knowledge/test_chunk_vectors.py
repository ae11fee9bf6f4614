"""Vectors of chunks on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.domain.knowledge import StoredVectors
from app.store.db.database import Database
from app.store.knowledge.chunk_vectors import ChunkVectors
from testing.databases import PostgresServer

TABLES = sa.MetaData()
COLLECTION = sa.Table(
    "kb_collection", TABLES, sa.Column("id", sa.String, primary_key=True), sa.Column("revision", sa.Integer)
)
VERSION = sa.Table(
    "kb_version",
    TABLES,
    sa.Column("document_id", sa.String, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("title", sa.String),
    sa.Column("text", sa.Text),
)
DOCUMENT = sa.Table(
    "kb_document", TABLES, sa.Column("id", sa.String, primary_key=True), sa.Column("version", sa.Integer)
)
CHUNK = sa.Table(
    "kb_chunk",
    TABLES,
    sa.Column("id", sa.String, primary_key=True),
    *(sa.Column(name, sa.String) for name in ("document_id", "collection_id", "heading", "vector_of")),
    *(sa.Column(name, sa.BigInteger) for name in ("version", "start", "end")),
    sa.Column("vector", sa.LargeBinary),
    sa.Column("windows", sa.LargeBinary),
)
TEXT = "Grüße 😀. Refunds take five days."


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A database with two collections and three chunks of one document."""
    server: PostgresServer | None = None
    url = f"sqlite:///{tmp_path / 'knowledge.db'}"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        url = server.empty()
    database = Database(url)
    chunks = [("a1", "help", 0, 8), ("a2", "help", 9, len(TEXT)), ("b1", "board", 0, len(TEXT))]

    def fill(session: Session) -> None:
        connection = session.connection()
        TABLES.create_all(connection)
        connection.execute(sa.insert(COLLECTION), [{"id": id, "revision": 0} for id in ("board", "help")])
        connection.execute(sa.insert(DOCUMENT), [{"id": "d", "version": 2}])
        connection.execute(sa.insert(VERSION), [{"document_id": "d", "version": 2, "title": "Policy", "text": TEXT}])
        connection.execute(
            sa.insert(CHUNK),
            [
                {
                    "id": id,
                    "document_id": "d",
                    "collection_id": owner,
                    "version": 2,
                    "heading": "Money > Back" if id == "a2" else "",
                    "start": start,
                    "end": end,
                }
                for id, owner, start, end in chunks
            ],
        )

    await database.write(fill)
    yield database
    await database.close()
    if server is not None:
        server.drop(url)


def stored(vector: bytes) -> StoredVectors:
    return StoredVectors(vector, b"w" + vector)


async def test_chunks_wait_with_their_title_and_headings(database: Database) -> None:
    waiting = await ChunkVectors(database).unencoded("one", 2)
    assert [(one.chunk_id, one.collection_id) for one in waiting] == [("a1", "help"), ("a2", "help")]
    assert [(one.place, one.text) for one in waiting] == [
        ("Policy", "Grüße 😀."),
        ("Policy > Money > Back", "Refunds take five days."),
    ]
    assert [one.chunk_id for one in await ChunkVectors(database).unencoded("one", 2, "a2")] == ["b1"]


async def test_saved_vectors_come_back_until_the_encoder_changes(database: Database) -> None:
    vectors = ChunkVectors(database)
    saved = {"a1": stored(b"\x00\x01"), "gone": stored(b"\x02\x03"), "b1": stored(b"\xff\x00")}
    await vectors.save("one", saved)
    assert await vectors.encoded("one") == {"a1": "help", "b1": "board"}
    assert await vectors.vectors("one", ["a1", "a2", "b1", "gone"]) == {"a1": b"\x00\x01", "b1": b"\xff\x00"}
    assert await vectors.windows("one", {"a1", "a2"}) == {"a1": b"w\x00\x01"}
    assert [one.chunk_id for one in await vectors.unencoded("one", 9)] == ["a2"]
    assert (await vectors.count_unencoded("one"), await vectors.count_unencoded("two")) == (1, 3)
    assert await vectors.encoded("two") == {}
    assert await vectors.vectors("two", ["a1"]) == await vectors.windows("two", ["a1"]) == {}
    assert [one.chunk_id for one in await vectors.unencoded("two", 9)] == ["a1", "a2", "b1"]


async def test_vectors_without_windows_are_searched_and_encoded_again(database: Database) -> None:
    vectors = ChunkVectors(database)
    old = sa.update(CHUNK).values(vector=b"\x00", vector_of="one")  # as before there were windows
    await database.write(lambda session: session.connection().execute(old))
    assert set(await vectors.encoded("one")) == {"a1", "a2", "b1"}
    assert await vectors.windows("one", ["a1"]) == {}
    assert [one.chunk_id for one in await vectors.unencoded("one", 9)] == ["a1", "a2", "b1"]


async def test_each_change_is_a_new_revision(database: Database) -> None:
    vectors = ChunkVectors(database)
    revisions = [await vectors.revision()]
    await vectors.save("one", {})
    assert await vectors.revision() == revisions[0]
    await vectors.save("one", {"a1": stored(b"\x00")})
    revisions.append(await vectors.revision())
    await database.write(
        lambda session: session.connection().execute(sa.delete(COLLECTION).where(COLLECTION.c.id == "board"))
    )
    revisions.append(await vectors.revision())
    assert len(set(revisions)) == 3
