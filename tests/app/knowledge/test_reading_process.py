from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from app.concurrency.limited_process import Ended, cpu_seconds
from app.domain.ids import new_id
from app.domain.knowledge import EntryIndex
from app.errors import BrokenFile, StorageUnavailable, TooLarge
from app.knowledge import reading_process
from app.knowledge.chunking import ChunkLimits, cut
from app.knowledge.reading_process import CutDocument, ReaderEnded, read_isolated
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


async def test_a_process_that_gets_no_cpu_time_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "MAX_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(reading_process, "cpu_seconds", lambda _: 0.0)
    with pytest.raises(ReaderEnded, match="process that reads documents failed"):
        await read_isolated(b"word", "a.txt", TOKENIZER)


async def test_a_process_on_a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asyncio.Queue[int]()

    def a_little_more(pid: int) -> float:
        seen.put_nowait(pid)
        return float(seen.qsize())

    monkeypatch.setattr(reading_process, "MAX_IDLE_SECONDS", 0.02)
    monkeypatch.setattr(reading_process, "cpu_seconds", a_little_more)
    async with reading_process._timeout_when_stuck() as started:
        started(7)
        while seen.qsize() < 30:  # noqa: ASYNC110 - ten looks are the limit of a process without CPU time
            await asyncio.sleep(0.002)
    assert seen.get_nowait() == 7


def test_the_cpu_time_of_a_process_is_read() -> None:
    mine = cpu_seconds(os.getpid())
    assert mine is not None
    assert 0 < mine <= time.process_time() + 1
    assert cpu_seconds(2**22 + 1) is None


async def test_a_file_that_is_made_to_grow_does_not() -> None:
    heading = " ".join(f"head{number}" for number in range(40_000))
    paragraphs = [" ".join(f"w{part}x{number}" for number in range(110)) for part in range(40)]
    data = f"# {heading}\n\n{chr(10).join(f'{one}{chr(10)}' for one in paragraphs)}".encode()
    document = await read_isolated(data, "a.md", TOKENIZER, index=INDEX)
    stored = sum(len(batch.to_json()) for batch in document.batches())
    assert stored < 12 * len(data)  # each word has its collection's mark; each chunk the heading would make it 40 times
    assert document.text.endswith(paragraphs[-1])


async def test_a_result_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "MAX_RESULT_BYTES", 2**10)  # of this process: the child has the real limit
    monkeypatch.setattr(reading_process, "CutDocument", None)
    with pytest.raises(TooLarge, match="more text below its headings"):
        await read_isolated(b"word " * 1000, "a.txt", TOKENIZER, index=INDEX)


@pytest.mark.parametrize("written", [b"", b"no JSON\n", b"[1]\n", b'["a", -1]\n\xff'])
def test_a_result_that_is_none_is_a_failure_of_the_reader(written: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(written)
        with pytest.raises(ReaderEnded):
            CutDocument(file, "a.txt")


def test_a_batch_that_is_none_is_a_failure_of_the_reader() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b'["a", 4]\nword[0, 1, [["only a heading"]], {}]\n')
        document = CutDocument(file, "a.txt")
        assert document.text == "word"
        with pytest.raises(ReaderEnded):
            list(document.batches())


@pytest.mark.parametrize(
    ("limit", "says"), [("max_chunks", "more than 100,000 passages"), ("bytes", "more text below its headings")]
)
def test_the_process_itself_refuses_what_grows(
    limit: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[dict[str, object]]()
    monkeypatch.setattr(reading_process, "limit_this_process", lambda **_: None)
    monkeypatch.setattr(reading_process, "_give_way", lambda: None)
    monkeypatch.setattr(reading_process, "send", lambda **message: sent.append(message))
    if limit == "bytes":
        monkeypatch.setattr(reading_process, "MAX_RESULT_BYTES", 100)
    else:
        monkeypatch.setattr(reading_process, "cut", partial(cut, limits=ChunkLimits(max_chunks=2)))
    rows = "\n".join(f"Question {number}?,Yes." for number in range(9))
    (tmp_path / "a.csv").write_text(f"question,answer\n{rows}\n")
    with (tmp_path / "a.csv").open() as source, tempfile.TemporaryFile() as result:
        monkeypatch.setattr(sys, "stdin", source)
        numbers = (str(result.fileno()), str(2**40))
        monkeypatch.setattr(sys, "argv", ["read", *numbers, str(TOKENIZER), "a.csv", new_id(), "sqlite"])
        reading_process.main()
        assert result.seek(0, os.SEEK_END) < 1000
    (message,) = sent
    assert (message["kind"], says in str(message["error"]), "Split it." in str(message["error"])) == (
        "TooLarge",
        True,
        True,
    )


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


def test_the_limit_of_cpu_time_is_told_from_a_kill_by_the_system() -> None:
    code = (
        "from app.concurrency.limited_process import limit_this_process\n"
        "limit_this_process(max_memory_bytes=2**40, max_seconds=1)\n"
        "while True: pass"
    )
    ended = Ended({}, subprocess.run([sys.executable, "-c", code], check=False).returncode, "")
    assert (ended.exceeded_a_limit, ended.was_killed) == (True, False)
    assert Ended({}, -signal.SIGKILL, "").was_killed
