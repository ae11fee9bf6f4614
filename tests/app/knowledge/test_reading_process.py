from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path

import pytest

from app.domain.ids import new_id
from app.domain.knowledge import EntryIndex
from app.errors import BrokenFile, StorageUnavailable, TooLarge
from app.knowledge import reading_process
from app.knowledge.reading_process import ReaderEnded, read_isolated
from tests.app.knowledge.readers import files

INDEX = EntryIndex(new_id(), "sqlite")
TOKENIZER = Path(__file__).parents[3] / "models" / "guide" / "tokenizer.json"


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


async def test_a_document_comes_back_as_text_and_chunks() -> None:
    seen: list[float] = []
    document = await read_isolated(
        files.pdf("Hello desk", "Bye", title="Guide"), "a.pdf", TOKENIZER, seen.append, index=INDEX
    )
    assert document.title == "Guide"
    ((chunk,),) = [batch.chunks for batch in document.batches()]
    assert document.text[chunk.start : chunk.end] == "Hello desk\n\nBye"
    assert chunk.tokens > 2
    assert seen == [0.45, 0.9]


async def test_a_refusal_comes_back_as_itself() -> None:
    with pytest.raises(BrokenFile, match="is encrypted"):
        await read_isolated(files.pdf("secret", password="x"), "a.pdf", TOKENIZER)


async def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_BASE_BYTES", 160 * 2**20)
    monkeypatch.setattr(reading_process, "_TIMES_OF_FILE", 0)
    with pytest.raises(TooLarge, match="more memory or time"):
        await read_isolated(b"word " * 3_500_000, "a.txt", TOKENIZER)


async def test_wall_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "MAX_WALL_SECONDS", 0.05)
    with pytest.raises(TooLarge, match="more memory or time"):
        await read_isolated(b"word", "a.txt", TOKENIZER)


async def test_a_fault_that_is_not_the_files_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(ReaderEnded, match="process that reads documents failed"):
        await read_isolated(b"word", "a.txt", tmp_path / "missing.json")


async def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        await read_isolated(b"word", "a.txt", TOKENIZER)


async def test_a_cancelled_reading_leaves_no_process() -> None:
    reading = asyncio.create_task(read_isolated(b"word " * 4_000_000, "a.txt", TOKENIZER))
    before = children()
    while not (started := children() - before):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not started & children()
