"""Documents whose chunks take several transactions to store and to delete, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import DocumentState, NewChunk, ReadingJob
from app.errors import NotFound
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.db.knowledge_models import (
    KNOWLEDGE_COLLECTION_ID,
    Chunk,
    ChunkEntry,
    Collection,
    Document,
    DocumentVersion,
    WordCount,
)
from app.store.knowledge import candidates as candidates_module
from app.store.knowledge import entry_batches as batches_module
from app.store.knowledge import stale_chunks as stale_module
from app.store.knowledge.chunk_vectors import ChunkVectors
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from app.store.knowledge.entries import EntryStems
from app.store.knowledge.entry_batches import EntryBatch, entry_batches
from app.store.knowledge.reading import ReadingQueue
from app.store.knowledge.search import ChunkSearch
from app.store.knowledge.stale_chunks import StaleChunks
from app.store.knowledge.stored_files import StoredFiles
from app.store.maintenance.integrity import broken_rules
from testing.documents import save_chunks

CHUNKS = 25
PER_BATCH = 4
NAME = "birds.csv"


@pytest.fixture
async def database(
    services: Services, settings: AppSettings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Database]:
    await services.close()  # its background tasks would read and clean up
    monkeypatch.setattr(batches_module, "MAX_BATCH_CHUNKS", PER_BATCH)
    monkeypatch.setattr(stale_module, "MAX_BATCH_CHUNKS", PER_BATCH)
    database = Database(settings.resolved_database_url)
    yield database
    await database.close()


def about(bird: str, chunks: int = CHUNKS) -> tuple[str, list[NewChunk]]:
    text, rows = "", list[NewChunk]()
    for number in range(chunks):
        words = f"The {bird} number {number} flies."
        rows.append(NewChunk(heading=f"Question {number}", start=len(text), end=len(text) + len(words), tokens=8))
        text += words + "\n"
    return text, rows


def batches_of(job: ReadingJob, bird: str) -> Iterator[EntryBatch]:
    text, chunks = about(bird)
    return entry_batches(job.index, "Birds", text, chunks)


async def claimed(queue: ReadingQueue) -> ReadingJob:
    job = await queue.claim_next()
    assert job is not None
    return job


async def add(database: Database, bird: str, collection: str | None = None, name: str = NAME) -> str:
    added = await Documents(database).add(LOCAL_USER_ID, collection, name, bird.encode(), kind="csv")
    queue = ReadingQueue(database, "one")
    assert await save_chunks(queue, await claimed(queue), "Birds", *about(bird))
    return added.id


async def found(database: Database, bird: str) -> int:
    passages = await ChunkSearch(database).search(LOCAL_USER_ID, bird, limit=50)
    return len(passages)


async def count(database: Database, model: type) -> int:
    counted = sa.select(sa.func.count()).select_from(model)
    return await database.read(lambda session: session.scalar(counted) or 0)


async def clean_up(database: Database) -> None:
    while await StaleChunks(database).clean_up():
        pass


async def is_consistent(database: Database) -> bool:
    """Whether the counts are those of the searched chunks, and nothing else is left."""

    def work(session: Session) -> tuple[dict[str, int], dict[str, int], list[str]]:
        expected = dict[str, int]()
        rows = session.execute(
            sa.select(Chunk.heading, DocumentVersion.title, DocumentVersion.text, Chunk.start, Chunk.end)
            .join(Document, (Document.id == Chunk.document_id) & (Document.version == Chunk.version))
            .join(
                DocumentVersion,
                (DocumentVersion.document_id == Chunk.document_id) & (DocumentVersion.version == Chunk.version),
            )
        ).all()
        for heading, title, text, start, end in rows:
            for word in (*EntryStems.of(title, heading, text[start:end]).distinct(), ""):
                expected[word] = expected.get(word, 0) + 1
        counted = {row.word: row.chunks for row in session.execute(sa.select(WordCount.word, WordCount.chunks))}
        assert session.scalar(sa.select(sa.func.count()).select_from(Chunk)) == len(rows)
        return counted, expected, broken_rules(session.connection())

    counted, expected, broken = await database.read(work)
    return counted == expected and not broken


class Steps:
    """Batches that wait for the test before each."""

    def __init__(self, batches: Iterator[EntryBatch], loop: asyncio.AbstractEventLoop) -> None:
        self._batches = batches
        self._loop = loop
        self._asked = asyncio.Event()
        self._allowed = asyncio.Semaphore(0)

    def __iter__(self) -> Iterator[EntryBatch]:
        for batch in self._batches:
            asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result(60)
            yield batch

    async def _wait(self) -> None:
        self._asked.set()
        await self._allowed.acquire()

    async def asked(self) -> None:
        """Returns when a batch is asked for. Nothing is written until :meth:`go_on`."""
        await self._asked.wait()
        self._asked.clear()

    def go_on(self) -> None:
        self._allowed.release()


async def test_other_writes_go_through_between_batches_and_half_a_version_is_not_found(database: Database) -> None:
    id = await add(database, "sparrow")
    await Documents(database).add(LOCAL_USER_ID, None, NAME, b"heron", kind="csv")
    queue = ReadingQueue(database, "one")
    job = await claimed(queue)
    steps = Steps(batches_of(job, "heron"), asyncio.get_running_loop())
    saving = asyncio.create_task(queue.save(job, "Birds", about("heron")[0], steps))
    progress = list[float]()
    stored = list[int]()
    for number in range(CHUNKS // PER_BATCH + 1):
        await steps.asked()
        await Collections(database).create(LOCAL_USER_ID, f"written between {number}")
        progress.append((await Documents(database).get(LOCAL_USER_ID, id)).progress)
        stored.append(await count(database, Chunk))
        assert (await found(database, "sparrow"), await found(database, "heron")) == (CHUNKS, 0)
        few = await ChunkSearch(database).search(LOCAL_USER_ID, "flies", limit=3)
        assert [one.version for one in few] == [1, 1, 1], "what is not found takes no place"
        assert not await StaleChunks(database).clean_up(), "a version that is being stored is no rest"
        assert await database.read(lambda session: broken_rules(session.connection())) == []
        steps.go_on()
    assert await saving
    assert stored == [CHUNKS, CHUNKS, *range(CHUNKS + PER_BATCH, 2 * CHUNKS - PER_BATCH, PER_BATCH)]
    assert progress[0] < progress[-1] < 1
    view = await Documents(database).get(LOCAL_USER_ID, id)
    assert (view.state, view.version, view.chunks) == (DocumentState.READY, 2, CHUNKS)
    assert (await found(database, "sparrow"), await found(database, "heron")) == (0, CHUNKS)
    assert await count(database, Chunk) == 2 * CHUNKS - PER_BATCH, "the old version goes in batches, too"
    assert await database.read(lambda session: broken_rules(session.connection())) == []
    await clean_up(database)
    assert await is_consistent(database)


@pytest.mark.parametrize("stored", [1, 3])
async def test_a_version_that_was_half_stored_is_stored_anew_by_another_process(
    database: Database, stored: int
) -> None:
    await add(database, "sparrow")
    await Documents(database).add(LOCAL_USER_ID, None, NAME, b"heron", kind="csv")
    dead = ReadingQueue(database, "dead", lease_seconds=-1)
    job = await claimed(dead)

    def killed() -> Iterator[EntryBatch]:
        yield from islice(batches_of(job, "heron"), stored + 1)
        raise ConnectionError("the server is gone")

    with pytest.raises(ConnectionError):
        await dead.save(job, "Birds", about("heron")[0], killed())
    assert await count(database, Chunk) == CHUNKS + stored * PER_BATCH
    assert (await found(database, "sparrow"), await found(database, "heron")) == (CHUNKS, 0)

    queue = ReadingQueue(database, "two")
    again = await claimed(queue)
    assert (again.version, again.has_stale_chunks) == (job.version, True)
    # The first process comes back: it stood still, and writes nothing over the other's work.
    assert not await dead.save(job, "Birds", about("heron")[0], batches_of(job, "heron"))
    assert await save_chunks(queue, again, "Birds", *about("heron"))
    assert (await found(database, "sparrow"), await found(database, "heron")) == (0, CHUNKS)
    await clean_up(database)
    assert await is_consistent(database)


async def test_a_version_that_fails_half_stored_leaves_nothing(database: Database) -> None:
    id = await add(database, "sparrow")
    await Documents(database).add(LOCAL_USER_ID, None, NAME, b"heron", kind="csv")
    queue = ReadingQueue(database, "one")
    job = await claimed(queue)

    def broken() -> Iterator[EntryBatch]:
        yield from islice(batches_of(job, "heron"), 3)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await queue.save(job, "Birds", about("heron")[0], broken())
    assert await queue.fail(job, "It is broken.")
    await clean_up(database)
    assert (await Documents(database).get(LOCAL_USER_ID, id)).chunks == CHUNKS
    assert (await found(database, "sparrow"), await found(database, "heron")) == (CHUNKS, 0)
    assert await is_consistent(database)


async def test_a_removed_document_is_gone_at_once_and_its_chunks_go_in_batches(database: Database) -> None:
    documents, stored = Documents(database), StoredFiles(database)
    id = await add(database, "sparrow")
    await documents.remove(LOCAL_USER_ID, id)
    assert await count(database, Chunk) == CHUNKS - PER_BATCH
    assert await found(database, "sparrow") == 0
    for asked in (documents.get(LOCAL_USER_ID, id), documents.text(LOCAL_USER_ID, id, version=1)):
        with pytest.raises(NotFound):
            await asked
    assert (await documents.page(LOCAL_USER_ID)).items == ()
    assert await stored.all(LOCAL_USER_ID, KNOWLEDGE_COLLECTION_ID) == {}
    assert [one.documents for one in await Collections(database).all(LOCAL_USER_ID)] == [0]
    assert await ChunkVectors(database).unencoded("ab", 100) == []
    with pytest.raises(NotFound):
        await documents.remove(LOCAL_USER_ID, id)
    again = await add(database, "heron")  # while the rest of the old one is there
    assert again != id
    assert await count(database, Document) == 2
    await clean_up(database)
    assert await count(database, Document) == 1
    assert (await found(database, "heron"), await found(database, "sparrow")) == (CHUNKS, 0)
    assert await is_consistent(database)
    await documents.remove(LOCAL_USER_ID, again)
    await clean_up(database)
    for model in (Document, DocumentVersion, Chunk, ChunkEntry, WordCount):
        assert await count(database, model) == 0


async def test_a_document_that_is_removed_while_it_is_stored_is_stored_no_further(database: Database) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, NAME, b"heron", kind="csv")
    queue = ReadingQueue(database, "one")
    job = await claimed(queue)
    steps = Steps(batches_of(job, "heron"), asyncio.get_running_loop())
    saving = asyncio.create_task(queue.save(job, "Birds", about("heron")[0], steps))
    for _ in range(4):
        await steps.asked()
        steps.go_on()
    await steps.asked()
    assert await count(database, Chunk) == 3 * PER_BATCH
    await Documents(database).remove(LOCAL_USER_ID, added.id)
    steps.go_on()
    assert not await saving
    await clean_up(database)
    for model in (Document, DocumentVersion, Chunk, ChunkEntry, WordCount):
        assert await count(database, model) == 0


async def test_old_versions_of_a_removed_document_go_in_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bird in ("gull", "heron", "sparrow"):
        id = await add(database, bird)
    await clean_up(database)
    monkeypatch.setattr(stale_module, "MAX_BATCH_BYTES", 1)
    monkeypatch.setattr(stale_module, "MAX_BATCH_CHUNKS", CHUNKS)
    left = [await count(database, DocumentVersion)]
    await Documents(database).remove(LOCAL_USER_ID, id)
    left.append(await count(database, DocumentVersion))
    while await StaleChunks(database).clean_up():
        left.append(await count(database, DocumentVersion))
    assert left == [3, 2, 1, 0]
    assert await count(database, Document) == 0


async def test_a_collection_is_deleted_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    collections = Collections(database)
    made = await collections.create(LOCAL_USER_ID, "Birds", everyone=True)
    for number in range(3):
        await add(database, "sparrow", made.id, f"{number}.csv")
    kept = await add(database, "heron")
    deleted = list[int]()
    real = stale_module.delete_some_chunks

    def counted(session: Session, documents: list[Document]) -> bool:
        assert session.get(Collection, made.id) is not None
        before = session.scalar(sa.select(sa.func.count()).select_from(Chunk)) or 0
        done = real(session, documents)
        deleted.append(before - (session.scalar(sa.select(sa.func.count()).select_from(Chunk)) or 0))
        return done

    monkeypatch.setattr(stale_module, "delete_some_chunks", counted)
    await collections.delete(LOCAL_USER_ID, made.id)
    assert sum(deleted) == 3 * CHUNKS
    assert max(deleted) == PER_BATCH
    assert (await found(database, "sparrow"), await found(database, "heron")) == (0, CHUNKS)
    assert [one.id for one in (await Documents(database).page(LOCAL_USER_ID)).items] == [kept]
    assert await count(database, Document) == 1
    assert await is_consistent(database)


async def test_stale_chunks_take_no_place_among_the_candidates(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large document that is being replaced, and of one that is being removed."""
    monkeypatch.setattr(candidates_module, "MAX_CANDIDATES", 5)
    queue, documents = ReadingQueue(database, "one"), Documents(database)
    ids = dict[str, str]()
    for name, chunks in ((NAME, CHUNKS), ("small.csv", 1)):
        ids[name] = (await documents.add(LOCAL_USER_ID, None, name, b"v1", kind="csv")).id
        text, rows = about("heron", chunks)
        assert await save_chunks(queue, await claimed(queue), "Birds", text, rows)
    await documents.add(LOCAL_USER_ID, None, NAME, b"v2", kind="csv")
    job = await claimed(queue)

    def killed() -> Iterator[EntryBatch]:
        yield from islice(batches_of(job, "heron"), 3)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        await queue.save(job, "Birds", about("heron")[0], killed())
    assert ids[NAME] in await found_documents(database, "heron")
    await documents.remove(LOCAL_USER_ID, ids[NAME])
    assert await found_documents(database, "heron") == {ids["small.csv"]}


async def found_documents(database: Database, query: str) -> set[str]:
    passages = await ChunkSearch(database).search(LOCAL_USER_ID, query, limit=50)
    return {passage.document_id for passage in passages}
