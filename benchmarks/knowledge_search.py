"""Measures searches by words, by meaning, and by both, among generated chunks on both databases.

    .venv/bin/python -m benchmarks.knowledge_search                  # 20,000 and 200,000 chunks: half an hour
    .venv/bin/python -m benchmarks.knowledge_search --sizes a_tenth
    .venv/bin/python -m benchmarks.knowledge_search --folder FOLDER  # keeps the databases for the next run

The words follow Zipf's law. A query has six words of one chunk, one in ten misspelt, one in three with synonyms.
Vectors are random and searched in memory; a query's vector is at hand at once: encoding one is measured in
``benchmarks.knowledge``. PostgreSQL is a private server with default settings. Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.knowledge import SearchWay
from app.knowledge.dense_index import DenseIndex, MemoryIndex
from app.knowledge.dense_search import DenseSearch
from app.knowledge.hybrid_search import HybridSearch
from app.store.db.database import Database
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID, Chunk, ChunkEntry, Document, DocumentVersion
from app.store.db.models import table_of
from app.store.knowledge.chunk_vectors import ChunkVectors
from app.store.knowledge.concepts import Thesaurus
from app.store.knowledge.entries import EntryStems
from app.store.knowledge.search import ChunkSearch
from app.store.knowledge.word_counts import count_entries
from app.store.maintenance.migrate import migrate
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result
from engine import Embeddings, EncoderInfo, TextRole

DOCUMENTS = {"a_tenth": 1_000, "databases": 10_000}
"""By size, as the results name it."""
CHUNKS_OF_DOCUMENT, WORDS_OF_CHUNK = 20, 160
VOCABULARY, SYNONYM_GROUPS, WORDS_OF_GROUP = 100_000, 5_000, 7
WORDS_OF_QUERY, QUERIES = 6, 200
DIMENSIONS, WINDOWS_OF_CHUNK = 384, 6
DOCUMENTS_AT_ONCE, DOCUMENTS_COUNTED_AT_ONCE = 50, 500
ENCODER = EncoderInfo(name="random", dimensions=DIMENSIONS, max_tokens=None, fingerprint="0123456789abcdef")


class Texts:
    """Generates texts of made-up words, each its own stem."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        syllables = [c + v for c in "bdfgklmnprtvz" for v in "aiou"]
        names = ("".join(parts) for parts in itertools.product(syllables, repeat=4))
        self.vocabulary = list(itertools.islice(names, 0, 20 * VOCABULARY, 20))
        self.random.shuffle(self.vocabulary)
        self._weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))

    def words(self, count: int) -> list[str]:
        return self.random.choices(self.vocabulary, cum_weights=self._weights, k=count)

    def thesaurus(self) -> Thesaurus:
        return Thesaurus([self.random.sample(self.vocabulary, WORDS_OF_GROUP) for _ in range(SYNONYM_GROUPS)])


class RandomEncoder:
    """Implements :class:`engine.Encoder`."""

    def __init__(self) -> None:
        self._noise = np.random.default_rng(3)

    async def describe(self) -> EncoderInfo:
        return ENCODER

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        role: TextRole | None = None,  # noqa: ARG002
        background: bool = False,  # noqa: ARG002
    ) -> Embeddings:
        vectors = self._noise.normal(size=(len(texts), DIMENSIONS)).astype(np.float32)
        return Embeddings(vectors=vectors, num_tokens=(0,) * len(texts))


def make(texts: Texts, documents: int, dialect: str) -> tuple[dict[Any, list[dict[str, Any]]], list[EntryStems]]:
    """Returns the rows of documents, and the stems of their chunks, as the reader of documents makes them."""
    now, noise = datetime.now(UTC), np.random.default_rng(texts.random.randrange(2**32))
    rows: dict[Any, list[dict[str, Any]]] = {Document: [], DocumentVersion: [], Chunk: [], ChunkEntry: []}
    stems = list[EntryStems]()
    for _ in range(documents):
        id, title, text = new_id(), texts.words(3), ""
        for ordinal in range(CHUNKS_OF_DOCUMENT):
            chunk_id, heading, words = new_id(), texts.words(3), texts.words(WORDS_OF_CHUNK)
            start, text = len(text), text + " ".join(words) + "\n\n"
            rows[Chunk].append(
                {"id": chunk_id, "document_id": id, "collection_id": KNOWLEDGE_COLLECTION_ID, "version": 1}
                | {"ordinal": ordinal, "heading": " ".join(heading), "start": start, "end": len(text) - 2}
                | {"tokens": 250, "indexed": True, "vector_of": ENCODER.fingerprint}
                | {"vector": noise.normal(size=DIMENSIONS).astype(np.float16).tobytes()}
                | {"windows": noise.integers(-127, 128, WINDOWS_OF_CHUNK * DIMENSIONS, np.int8).tobytes()}
            )
            stems.append(EntryStems(title, heading, words))
            rows[ChunkEntry].append({"chunk_id": chunk_id} | stems[-1].columns(dialect, KNOWLEDGE_COLLECTION_ID))
        rows[Document].append(
            {"id": id, "collection_id": KNOWLEDGE_COLLECTION_ID, "name": id, "title": " ".join(title)}
            | {"kind": "text", "source": "upload", "state": "ready", "progress": 1.0, "version": 1, "newest": 1}
            | {"created_at": now, "updated_at": now}
        )
        rows[DocumentVersion].append(
            {"document_id": id, "version": 1, "content_hash": id, "size": len(text), "title": " ".join(title)}
            | {"text": text, "created_at": now}
        )
    return rows, stems


def insert(session: Session, rows: dict[Any, list[dict[str, Any]]]) -> None:
    for model, values in rows.items():
        session.execute(sa.insert(table_of(model)), values)


def queries(texts: Texts) -> Iterator[str]:
    """Yields queries of words of a chunk."""
    noise = random.Random(2)
    for _ in range(QUERIES):
        words = noise.sample(texts.words(WORDS_OF_CHUNK), WORDS_OF_QUERY)
        yield " ".join(word[:3] + word[4:] if noise.random() < 0.1 else word for word in words)


async def measure(url: str, documents: int) -> dict[str, float]:
    """Fills a database, unless it is full already, and returns milliseconds of searches."""
    measured: dict[str, float] = {"chunks": documents * CHUNKS_OF_DOCUMENT}
    there = await count_chunks(url)
    if there not in (0, measured["chunks"]):
        raise SystemExit(f"{url} has {there} chunks: filling it was interrupted. Delete its folder, and start again.")
    if not there:
        started = perf_counter()
        await fill(url, documents)
        measured["fill_seconds"] = perf_counter() - started
    database = Database(url)
    try:
        return measured | await measure_searches(database)
    finally:
        await database.close()


async def count_chunks(url: str) -> int:
    """Returns how many chunks a kept database has; 0 of a new one."""
    database = Database(url)

    def count(session: Session) -> int:
        if not sa.inspect(session.connection()).has_table(Chunk.__tablename__):
            return 0
        return session.scalar(sa.select(sa.func.count()).select_from(Chunk)) or 0

    try:
        return await database.write(count)  # a file that is not there yet cannot be opened to read
    finally:
        await database.close()


async def fill(url: str, documents: int) -> None:
    """Creates the tables and writes the documents."""
    migrate(url)
    database, texts, uncounted = Database(url), Texts(1), list[EntryStems]()
    for done in range(0, documents, DOCUMENTS_AT_ONCE):
        # before the transaction: PostgreSQL ends one that is idle for long
        rows, stems = make(texts, min(DOCUMENTS_AT_ONCE, documents - done), sa.make_url(url).get_backend_name())
        await database.write(functools.partial(insert, rows=rows))
        uncounted += stems
        if done + DOCUMENTS_AT_ONCE >= documents or len(uncounted) >= DOCUMENTS_COUNTED_AT_ONCE * CHUNKS_OF_DOCUMENT:
            counted = functools.partial(count_entries, collection_id=KNOWLEDGE_COLLECTION_ID, entries=uncounted)
            await database.write(counted)
            uncounted = []
    await database.close()
    if url.startswith("postgresql"):
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        engine.dispose()


async def measure_searches(database: Database) -> dict[str, float]:
    """Returns milliseconds of searches in each way."""

    async def open_index(info: EncoderInfo) -> DenseIndex:
        return MemoryIndex(info.dimensions)

    texts, encoder = Texts(4), RandomEncoder()
    texts.vocabulary = Texts(1).vocabulary
    dense = DenseSearch(lambda: encoder, ChunkVectors(database), open_index)
    await dense.catch_up()
    search = HybridSearch(ChunkSearch(database, texts.thesaurus()), dense)
    asked, measured = list(queries(texts)), dict[str, float]()
    for way in SearchWay:
        times = []
        for query in asked:
            started = perf_counter()
            await search.search(LOCAL_USER_ID, query, collections=None, limit=10, way=way)
            times.append(1000 * (perf_counter() - started))
        measured |= {
            f"{way}_p50_ms": quantile(times, 0.5),
            f"{way}_p95_ms": quantile(times, 0.95),
            f"{way}_max_ms": max(times),
        }
    return measured


def measure_all(sizes: list[str], kinds: list[str], folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Measures each size in each database.

    Args:
        folder: where the databases stay; None keeps none.
    """
    results: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory() as temporary,
        databases(kinds, folder or Path(temporary), keep=folder is not None) as makers,
    ):
        for size in sizes:
            results[size] = {
                kind: asyncio.run(measure(make(f"knowledge_{size}"), DOCUMENTS[size])) for kind, make in makers.items()
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=tuple(DOCUMENTS), default=list(DOCUMENTS))
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--folder", type=Path, help="folder for the databases, which stay and are not filled again")
    parser.add_argument("--label", default="knowledge-search")
    given = parser.parse_args()
    results = {"machine": machine.describe(), **measure_all(given.sizes, given.databases, given.folder)}
    print(json.dumps(results, indent=2))
    write_result(results, given.label)


if __name__ == "__main__":
    main()
