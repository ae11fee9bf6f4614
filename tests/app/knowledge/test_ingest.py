from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import DocumentState
from app.errors import StorageUnavailable
from app.knowledge import ingest as ingest_module
from app.knowledge.ingest import Ingest
from app.knowledge.readers.blocks import Progress
from app.knowledge.reading_process import CutDocument, ReaderEnded, read_isolated
from app.services.container import Services
from app.store.db.database import Database
from app.store.db.knowledge_models import Document, DocumentVersion
from app.store.knowledge import reading as reading_module
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import MAX_ATTEMPTS, ReadingQueue
from app.store.knowledge.search import ChunkSearch
from tests.app.knowledge.readers import files

TOKENIZER = Path(__file__).parents[3] / "models" / "guide" / "tokenizer.json"


@pytest.fixture
async def database(services: Services) -> Database:
    await services.knowledge.ingest.close()  # it would claim the tests' documents
    return services.database


def ingest(database: Database, owner: str = "one") -> Ingest:
    return Ingest(ReadingQueue(database, owner), TOKENIZER)


async def test_a_document_is_read_and_found(database: Database) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "shipping.md", files.MARKDOWN, kind="markdown")
    assert await ingest(database).read_next()
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).state == DocumentState.READY
    (found, *_) = await ChunkSearch(database).search(LOCAL_USER_ID, "Asia")
    assert (found.title, found.heading) == ("Shipping", "Where we ship > Times")
    assert "Asia: 9 days" in found.text
    assert not await ingest(database).read_next()


async def test_progress_is_shown_long_before_the_lease_is_renewed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "PROGRESS_SECONDS", 0.01)

    async def half_read(data: bytes, name: str, tokenizer: Path, progress: Progress, *_: object) -> CutDocument:
        progress(0.5)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(ingest_module, "read_isolated", half_read)
    documents, reader = Documents(database), ingest(database)
    added = await documents.add(LOCAL_USER_ID, None, "a.txt", b"text", kind="text")
    reader.start()
    try:
        async with asyncio.timeout(ingest_module.RENEW_SECONDS / 2):
            while not (view := await documents.get(LOCAL_USER_ID, added.id)).progress:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await reader.close()
    assert view.progress == reading_module.READ_SHARE * 0.5


async def test_a_broken_document_fails_with_its_sentence(database: Database) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "a.pdf", files.pdf("x", password="y"), kind="pdf")
    assert await ingest(database).read_next()
    view = await Documents(database).get(LOCAL_USER_ID, added.id)
    assert view.state == DocumentState.FAILED
    assert view.error is not None
    assert view.error.startswith("a.pdf is encrypted")


async def test_a_closed_ingest_and_a_full_disk_give_the_document_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "a.md", files.MARKDOWN, kind="markdown")
    started = asyncio.Event()

    async def endless(*_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    async def full(*_: object) -> None:
        raise StorageUnavailable("The disk is full.")

    monkeypatch.setattr(ingest_module, "read_isolated", endless)
    running = ingest(database)
    running.start()
    await started.wait()
    await running.close()
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).state == DocumentState.WAITING
    monkeypatch.setattr(ingest_module, "read_isolated", full)
    with pytest.raises(StorageUnavailable):
        await ingest(database).read_next()
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).state == DocumentState.WAITING


async def test_a_disk_that_stays_full_while_saving_fails_no_document(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "a.md", files.MARKDOWN, kind="markdown")

    async def full(*_: object) -> None:
        raise StorageUnavailable("The disk is full.")

    reader = ingest(database)
    with monkeypatch.context() as patch:
        patch.setattr(ReadingQueue, "save", full)
        for _ in range(MAX_ATTEMPTS + 1):
            with pytest.raises(StorageUnavailable):
                await reader.read_next()
    assert await reader.read_next()
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).state == DocumentState.READY


async def test_a_reader_that_is_killed_loses_no_document(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system kills a process when memory runs out, and not always the one that takes it."""
    monkeypatch.setattr(reading_module, "RETRY_SECONDS", 0.0)
    long = b"word " * 2_000_000
    added = await Documents(database).add(LOCAL_USER_ID, None, "a.txt", long, kind="text")
    reader = ingest(database)
    reading = asyncio.create_task(reader.read_next())
    while reader._host._process is None:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    os.kill(reader._host._process.pid, signal.SIGKILL)
    assert await reading
    view = await Documents(database).get(LOCAL_USER_ID, added.id)
    assert (view.state, view.error, view.newest) == (DocumentState.WAITING, None, 1)
    await database.write(
        lambda session: session.execute(sa.update(DocumentVersion).values(raw=b"word"))  # quicker to read
    )
    assert await reader.read_next()
    assert (await Documents(database).get(LOCAL_USER_ID, added.id)).state == DocumentState.READY
    await reader.close()


async def test_a_file_that_ends_each_reader_fails_with_a_sentence_behind_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "deadly.md", files.MARKDOWN, kind="markdown")
    other = await Documents(database).add(LOCAL_USER_ID, None, "good.md", files.MARKDOWN, kind="markdown")
    read = read_isolated

    async def killed(data: bytes, name: str, *others: Any) -> CutDocument:
        if name == "deadly.md":
            raise ReaderEnded("The process failed.")
        return await read(data, name, *others)

    monkeypatch.setattr(ingest_module, "read_isolated", killed)
    reader = ingest(database)
    assert await reader.read_next()
    assert await reader.read_next(), "it does not stop the queue"
    assert (await Documents(database).get(LOCAL_USER_ID, other.id)).state == DocumentState.READY
    assert not await reader.read_next(), "there is a pause before the next attempt"
    for _ in range(MAX_ATTEMPTS):
        await database.write(lambda session: session.execute(sa.update(Document).values(lease_until=None)))
        await reader.read_next()
    view = await Documents(database).get(LOCAL_USER_ID, added.id)
    assert view.state == DocumentState.FAILED
    assert view.error is not None
    assert "ended the server's reader several times" in view.error
    await reader.close()


async def test_two_processes_read_a_document_once(database: Database) -> None:
    await Documents(database).add(LOCAL_USER_ID, None, "a.md", files.MARKDOWN, kind="markdown")
    done = await asyncio.gather(ingest(database, "one").read_next(), ingest(database, "two").read_next())
    assert sorted(done) == [False, True]


async def test_a_lost_claim_ends_the_reading(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    added = await Documents(database).add(LOCAL_USER_ID, None, "a.md", files.MARKDOWN, kind="markdown")
    was_cancelled = asyncio.Event()

    async def removed_meanwhile(*_: object) -> None:
        try:  # a renewal may see the removal before this task does
            await Documents(database).remove(LOCAL_USER_ID, added.id)
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    monkeypatch.setattr(ingest_module, "read_isolated", removed_meanwhile)
    monkeypatch.setattr(ingest_module, "RENEW_SECONDS", 0.01)
    assert await ingest(database).read_next()
    assert was_cancelled.is_set()
