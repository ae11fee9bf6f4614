"""Documents that children of one host read: limits, refusals and deaths are as in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.concurrency import fork_host
from app.concurrency.fork_host import ForkHost
from app.domain.ids import new_id
from app.domain.knowledge import EntryIndex
from app.errors import AppError, BrokenFile, TooLarge
from app.knowledge import reading_process
from app.knowledge.reading_process import ReaderEnded, read_isolated, reading_host
from testing.waiting import LoopClock
from tests.app.knowledge.readers import files

INDEX = EntryIndex(new_id(), "postgresql")
TOKENIZER = Path(__file__).parents[3] / "models" / "guide" / "tokenizer.json"
LONG = b"word " * 4_000_000


@pytest.fixture
def host() -> Iterator[ForkHost]:
    host = reading_host(TOKENIZER)
    yield host
    host.kill()


def children_of(pid: int) -> set[int]:
    return {int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def pid_of(host: ForkHost) -> int:
    assert host._process is not None
    return host._process.pid


async def child_of(host: ForkHost) -> int:
    """The process that reads, once it does."""
    while host._process is None or not children_of(pid_of(host)):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    (child,) = children_of(pid_of(host))
    return child


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_one_host_reads_every_kind_as_a_process_of_its_own_does(host: ForkHost) -> None:
    for data, name in (
        (b"# Title\n\nwords", "a.md"),
        (files.pdf("Hello desk", "Bye", title="Guide"), "a.pdf"),
        (b"<html><body><h1>Page</h1><p>words of it, some more of them</p></body></html>", "a.html"),
        (b"question,answer\nWhy?,Because.\n", "a.csv"),
    ):
        seen: list[float] = []
        forked = await read_isolated(data, name, TOKENIZER, seen.append, host, INDEX)
        alone = await read_isolated(data, name, TOKENIZER, index=INDEX)
        assert (forked.title, forked.text) == (alone.title, alone.text)
        assert list(forked.batches()) == list(alone.batches()) != []
        if name == "a.pdf":
            assert seen == [0.45, 0.9]
    assert children_of(pid_of(host)) == set()


async def test_a_refused_file_is_not_the_end_of_the_host(host: ForkHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenFile, match="is encrypted"):
        await read_isolated(files.pdf("secret", password="x"), "a.pdf", TOKENIZER, host=host)
    pid = pid_of(host)
    with monkeypatch.context() as patched:
        patched.setattr(reading_process, "_BASE_BYTES", 160 * 2**20)
        patched.setattr(reading_process, "_TIMES_OF_FILE", 0)
        with pytest.raises(TooLarge, match="more memory or time"):
            await read_isolated(b"word " * 3_500_000, "a.txt", TOKENIZER, host=host)
    assert (await read_isolated(b"word", "a.txt", TOKENIZER, host=host)).text == "word"
    assert pid_of(host) == pid


async def test_a_child_that_the_system_kills_is_no_fault_of_the_file(host: ForkHost) -> None:
    reading = asyncio.create_task(read_isolated(LONG, "a.txt", TOKENIZER, host=host))
    os.kill(await child_of(host), signal.SIGKILL)
    with pytest.raises(ReaderEnded, match="process that reads documents failed"):
        await reading
    assert (await read_isolated(b"word", "a.txt", TOKENIZER, host=host)).text == "word"


async def test_a_host_that_is_killed_is_no_fault_of_the_file(host: ForkHost) -> None:
    reading = asyncio.create_task(read_isolated(LONG, "a.txt", TOKENIZER, host=host))
    child = await child_of(host)
    os.kill(pid_of(host), signal.SIGKILL)
    while is_running(child):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    with pytest.raises(ReaderEnded, match="process that reads documents failed"):
        await reading
    assert (await read_isolated(b"word", "a.txt", TOKENIZER, host=host)).text == "word"


async def test_a_host_that_has_ended_between_two_files_is_replaced(host: ForkHost) -> None:
    for _ in range(3):
        assert (await read_isolated(b"word", "a.txt", TOKENIZER, host=host)).text == "word"
        os.kill(pid_of(host), signal.SIGKILL)
        while is_running(pid_of(host)):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)


async def test_a_cancelled_reading_leaves_no_process(host: ForkHost) -> None:
    reading = asyncio.create_task(read_isolated(LONG, "a.txt", TOKENIZER, host=host))
    child, parent = await child_of(host), pid_of(host)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    while is_running(child) or is_running(parent):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    assert (await read_isolated(b"word", "a.txt", TOKENIZER, host=host)).text == "word"


async def test_a_child_that_stands_still_ends(host: ForkHost) -> None:
    clock = LoopClock()
    reading = asyncio.create_task(read_isolated(LONG, "a.txt", TOKENIZER, host=host))
    child = await child_of(host)
    os.kill(child, signal.SIGSTOP)
    await clock.advance_until(reading.done, reading_process.MAX_IDLE_SECONDS / 10)
    with pytest.raises(ReaderEnded, match="process that reads documents failed"):
        await reading
    while is_running(child):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)


async def test_a_missing_tokenizer_is_said(tmp_path: Path) -> None:
    host = reading_host(tmp_path / "missing.json")
    with pytest.raises(AppError, match="process that reads documents failed"):
        await read_isolated(b"word", "a.txt", tmp_path / "missing.json", host=host)
    host.kill()


async def test_the_host_ends_with_the_process_that_gives_it_orders(host: ForkHost) -> None:
    await read_isolated(b"word", "a.txt", TOKENIZER, host=host)
    pid = pid_of(host)
    assert host._socket is not None
    host._socket.close()
    while is_running(pid):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    assert fork_host.IDLE_SECONDS == 60
