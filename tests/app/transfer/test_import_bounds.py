"""Files that would take much memory or time: read in a process of their own, in bounds, all of them or nothing."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import pickle
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.domain import storage
from app.domain.conversation_document import ConversationDocument
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.storage import StorageLimits
from app.errors import AppError, BrokenFile, LimitReached, StorageUnavailable, TooLarge, TooManyRequests
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat import transfer
from app.transfer import reading, service, subprocess_reader
from app.transfer.subprocess_reader import read_isolated
from testing.fake_engine import FakeEngine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = "2026-01-01T00:00:00Z"


def conversation(content: str = "hi", tags: tuple[str, ...] = ()) -> dict[str, Any]:
    message = {"id": new_id(), "role": "user", "created_at": MOMENT, "content": content}
    about = {"id": new_id(), "title": "T", "created_at": MOMENT, "updated_at": MOMENT, "tags": tags}
    return {**about, "messages": [message]}


def document(*conversations: dict[str, Any]) -> bytes:
    return json.dumps(
        {"format": "deskmate.conversations", "version": 1, "conversations": conversations}, ensure_ascii=False
    ).encode()


def packed(data: bytes) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", data)
    file.seek(0)
    return file


@pytest.fixture
def isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read by another process too."""
    monkeypatch.setattr(service, "SMALL_BYTES", 10)


async def read(data: bytes, max_bytes: int = 2**24) -> list[str]:
    found = await read_isolated(
        io.BytesIO(data), "It", max_bytes=max_bytes, max_message_bytes=2**20, now=NOW, progress=lambda _: None
    )
    again = [one.messages[0].content for one in found]
    assert [one.messages[0].content for one in found] == again
    found.close()
    return again


@pytest.mark.slow
async def test_what_another_process_reads_is_the_same(isolate: None, services: Services) -> None:
    texts = ["a", "ü\n{}", "🦜" * 1000]
    assert await read(packed(document(*map(conversation, texts))).getvalue()) == texts
    told: list[float] = []
    counts = await services.transfers.import_file(ME, packed(document(*map(conversation, texts))), progress=told.append)
    assert (counts.imported, counts.already_there) == (3, 0)
    assert told[-1] == 1.0
    assert (await services.conversations.list(ME, query="ü")).items


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"[1, 2", BrokenFile, "broken in line 1"),
        (document(conversation("x" * 5000)), TooLarge, "larger than"),
    ],
)
async def test_what_another_process_refuses_is_said_in_its_words(data: bytes, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        await read(data, max_bytes=4000)


@pytest.mark.full
@pytest.mark.slow
async def test_memory_that_a_file_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small file that is a hundred times as large in memory."""
    large = conversation("large") | {"unknown": [[]] * 2_000_000}
    assert await read(document(large)) == ["large"]
    monkeypatch.setattr(subprocess_reader, "_BASE_BYTES", 160 * 2**20)
    monkeypatch.setattr(subprocess_reader, "_TIMES_OF_FILE", 0)
    assert await read(document(conversation("small"))) == ["small"]
    with pytest.raises(TooLarge, match="Import it in parts"):
        await read(document(large))


def replace_reader(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / "reader"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize("script", ["kill -9 $$", "echo MemoryError >&2; exit 1"])
async def test_a_reader_that_the_system_ends_takes_too_much(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    replace_reader(monkeypatch, tmp_path, script)
    with pytest.raises(TooLarge, match="Import it in parts"):
        await read(document(conversation()))


@pytest.mark.parametrize(
    ("script", "logged"),
    [
        ("echo 'No module named app' >&2; exit 1", "status 1: No module named app"),
        ("exit 0", "status 0: no output"),
        ("echo some library says hello", "unexpected output"),
        ("echo '[1]'", "unexpected output"),
        ("head -c 3000000 /dev/zero; sleep 600", "unexpected output"),
        ("""printf '{"progress": "x"}\\n'""", "unexpected output"),
        (None, "could not be started"),
    ],
)
async def test_a_reader_that_fails_is_the_servers_fault_and_logged(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    script: str | None,
    logged: str,
) -> None:
    if script is None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    else:
        replace_reader(monkeypatch, tmp_path, script)
    with pytest.raises(AppError, match=r"Nothing was imported\. Try again") as failed:
        await read(document(conversation()))
    assert failed.value.status == 500
    assert logged in caplog.text


async def test_a_reader_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_reader(monkeypatch, tmp_path, "exec sleep 600")
    monkeypatch.setattr(subprocess_reader, "MAX_WALL_SECONDS", 0.1)
    with pytest.raises(TooLarge, match="Import it in parts"):
        await read(document(conversation()))


@pytest.mark.slow
@pytest.mark.parametrize("started_here", [False, True])
async def test_the_reader_runs_no_module_of_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started_here: bool
) -> None:
    (tmp_path / "json.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    if started_here:  # as `python -m` and `python -c` do
        monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert await read(document(conversation("x"))) == ["x"]
    assert not (tmp_path / "ran").exists()


async def test_a_small_import_does_not_wait_for_a_large_one(
    services: Services, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def endless(*_: Any, **__: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "read_isolated", endless)
    large = io.BytesIO(b" " * (service.SMALL_BYTES + 1))
    slow = asyncio.create_task(services.transfers.import_file(stranger, large))
    await begun.wait()
    async with asyncio.timeout(30):
        counts = await services.transfers.import_file(ME, io.BytesIO(document(conversation())))
    assert counts.imported == 1
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_one_message_and_one_conversation_have_a_size(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services.transfers, "_max_message_bytes", 100)
    with pytest.raises(BrokenFile, match=r"messages\[0\].content: the text takes .* most for one message"):
        await services.transfers.import_file(ME, io.BytesIO(document(conversation(), conversation("é" * 51))))
    monkeypatch.setattr(reading, "MAX_CONVERSATION_BYTES", storage.MESSAGE_BYTES + 50)
    with pytest.raises(BrokenFile, match="most for one conversation"):
        await services.transfers.import_file(ME, io.BytesIO(document(conversation("é" * 26))))
    assert not (await services.conversations.list(ME)).items


async def test_every_message_that_the_chat_accepts_is_imported(
    settings: AppSettings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest that Deskmate exports comes back in, read by the reader's process and by this one."""
    services = await Services.open(settings.model_copy(update={"max_message_chars": 600_000}), engine)
    longest, transfers = "🦜" * 600_000, services.transfers
    try:
        assert (await transfers.import_file(ME, io.BytesIO(document(conversation(longest))))).imported == 1
        monkeypatch.setattr(service, "SMALL_BYTES", 4 * 2**20)
        assert (await transfers.import_file(ME, io.BytesIO(document(conversation(longest))))).imported == 1
        with pytest.raises(BrokenFile, match="raise APP_MAX_MESSAGE_CHARS"):
            await transfers.import_file(ME, io.BytesIO(document(conversation(longest + "x"))))
    finally:
        await services.close()


async def test_one_import_and_one_export_of_a_user_at_a_time(services: Services, stranger: str) -> None:
    transfers = services.transfers
    with transfers.receiving(ME):
        with pytest.raises(TooManyRequests, match="being imported already"), transfers.receiving(ME):
            pass
        with transfers.receiving(stranger):
            pass
    with transfers.receiving(ME):
        pass
    await transfers.import_file(ME, io.BytesIO(document(conversation())))
    first = await transfers.export_all(ME, "json")
    pieces = aiter(first.pieces)
    await anext(pieces)
    with pytest.raises(TooManyRequests, match="is running already"):
        await transfers.export_all(ME, "markdown")
    await transfers.export_all(stranger, "json")
    async for _ in pieces:
        pass
    again = await transfers.export_all(ME, "markdown")
    assert b"".join([piece async for piece in again.pieces])


async def test_an_import_that_does_not_fit_leaves_nothing(services: Services) -> None:
    records = services.transfers.records

    async def refused(limits: StorageLimits, says: str, *conversations: dict[str, Any]) -> None:
        records._limits = limits
        with pytest.raises(LimitReached, match=says):
            await services.transfers.import_file(ME, io.BytesIO(document(*conversations)))
        assert not (await services.conversations.list(ME)).items

    await refused(StorageLimits(max_bytes=5000), "There isn't enough room", conversation("x" * 3000))
    await refused(
        StorageLimits(max_conversations=2), "you would have more than 2 conversations", *[conversation() for _ in "abc"]
    )
    await refused(StorageLimits(max_tags=1), "2 different tags", conversation(tags=("a", "b")))
    records._limits = StorageLimits(max_bytes=5100, max_conversations=1, max_tags=2)
    await services.transfers.import_file(ME, io.BytesIO(document(conversation("x" * 3000, tags=("a", "b")))))


async def test_what_does_not_fit_is_refused_before_anybody_waits_for_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing is one transaction, for which SQLite's other writers wait."""
    services.transfers.records._limits = StorageLimits(max_bytes=20_000, max_conversations=3)
    with monkeypatch.context() as patched:
        patched.setattr(transfer, "_add", lambda *_: pytest.fail("it was written"))
        for conversations in ([conversation() for _ in range(4)], [conversation("x" * 20_000)]):
            with pytest.raises(LimitReached):
                await services.transfers.import_file(ME, io.BytesIO(document(*conversations)))
    fits = [conversation() for _ in range(3)]
    await services.transfers.import_file(ME, io.BytesIO(document(*fits)))
    again = await services.transfers.import_file(ME, io.BytesIO(document(*fits)))
    assert again.already_there == 3


async def test_two_exports_that_begin_at_once_come_one_after_the_other(services: Services) -> None:
    await services.transfers.import_file(ME, io.BytesIO(document(conversation("hello"))))
    exports = [await services.transfers.export_all(ME, "json") for _ in range(3)]

    async def text(pieces: AsyncIterator[bytes]) -> bytes:
        return b"".join([piece async for piece in pieces])

    assert all(b"hello" in one for one in await asyncio.gather(*(text(export.pieces) for export in exports)))


async def test_a_conversation_that_comes_twice_in_a_file_is_imported_once(services: Services) -> None:
    one = conversation("x")
    counts = await services.transfers.import_file(
        ME, io.BytesIO(document(one, *[conversation() for _ in range(600)], one))
    )
    assert (counts.imported, counts.already_there) == (601, 1)


async def test_an_import_that_is_given_up_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.subprocess.Process] = []
    begun = asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def noted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        made.append(await create("/bin/sleep", "600", stdout=options["stdout"]))
        begun.set()
        return made[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    reading = asyncio.create_task(read(document(conversation())))
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert made[0].returncode == -9


async def test_others_write_while_a_file_is_parsed(services: Services, stranger: str) -> None:
    """SQLite has one writer."""
    begun, go_on = threading.Event(), threading.Event()

    def parsed() -> Iterator[ConversationDocument]:
        yield ConversationDocument.model_validate(conversation("first"))
        begun.set()
        assert go_on.wait(60)
        yield ConversationDocument.model_validate(conversation("second"))

    adding = asyncio.create_task(services.transfers.records.add(ME, parsed()))
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        async with asyncio.timeout(20):
            await services.transfers.records.add(stranger, [ConversationDocument.model_validate(conversation())])
        assert not (await services.conversations.list(ME)).items
    finally:
        go_on.set()
        counts = await adding
    assert counts.imported == 2


async def test_an_import_given_up_while_it_is_parsed_leaves_nothing(services: Services) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def parsed() -> Iterator[ConversationDocument]:
        try:
            yield ConversationDocument.model_validate(conversation("first"))
            begun.set()
            assert go_on.wait(60)
            while True:  # until it is told that nobody takes any more
                yield ConversationDocument.model_validate(conversation("more"))
        finally:
            ended.set()

    adding = asyncio.create_task(services.transfers.records.add(ME, parsed()))
    assert await asyncio.to_thread(begun.wait, 60)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert not (await services.conversations.list(ME)).items


async def test_no_room_to_put_an_import_aside_is_said(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pickle, "dump", full)
    with pytest.raises(StorageUnavailable, match=r"No space left on device.*Nothing was imported"):
        await services.transfers.import_file(ME, io.BytesIO(document(conversation())))
