from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import DocumentState
from app.errors import StorageUnavailable
from app.knowledge import ingest as ingest_module
from app.knowledge.ingest import Ingest
from app.services.container import Services
from app.store.db.database import Database
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
