"""Files come in whole or not at all, once, and only to the person who brings them."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app.cli import main
from app.domain.conversation_document import ConversationDocument
from app.domain.document_tree import positions
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import BrokenFile, InvalidInput
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat import transfer as store
from app.store.chat.transfer import ImportCounts
from app.store.db.models import Conversation, ConversationTag, Message, Turn
from app.store.maintenance.integrity import broken_rules
from app.store.maintenance.process_lock import claim_database
from app.transfer import service
from app.transfer.reading import read_conversations
from testing.conversations import document_bytes
from testing.fake_engine import FakeEngine
from testing.import_files import (
    GOOD,
    TURN,
    archive,
    document,
    message,
    talk,
    uuid,
)
from testing.waiting import eventually
from tests.app.live_server import live_server

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def read(data: bytes, name: str = "notes.json", max_bytes: int = 2**20) -> list[ConversationDocument]:
    return read_conversations(io.BytesIO(data), name, max_bytes=max_bytes, now=NOW)


async def rows(services: Services) -> list[int]:
    tables = (Conversation, Message, Turn, ConversationTag)
    return await services.database.read(
        lambda session: [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]
    )


async def bring(services: Services, data: bytes, user_id: str = ME) -> ImportCounts:
    return await services.transfers.import_file(user_id, io.BytesIO(data), "notes.json")


FOREIGN = [
    json.dumps(
        [
            {
                "mapping": {
                    "a": {"message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["x"]}}}
                },
                "id": id,
            }
            for id in "12"
        ]
    ).encode(),
    json.dumps(
        [{"id": "1", "chat": {"messages": [{"role": "user", "content": "x"}]}}, {"id": "2", "chat": {"messages": []}}]
    ).encode(),
    b'{"conversations": [{"from": "human", "value": "x"}]}\n{"conversations": [{"from": "human", "value": "y"}]}',
    document(GOOD, talk("c2")),
]


@pytest.mark.parametrize("data", FOREIGN)
async def test_importing_twice_adds_nothing(services: Services, stranger: str, data: bytes) -> None:
    assert await bring(services, data) == ImportCounts(imported=2, already_there=0)
    before = await rows(services)
    assert await bring(services, data) == ImportCounts(imported=0, already_there=2)
    assert await rows(services) == before
    # Somebody else has not got them; for them it is the first time.
    assert await bring(services, data, stranger) == ImportCounts(imported=2, already_there=0)
    assert await bring(services, data, stranger) == ImportCounts(imported=0, already_there=2)
    assert await rows(services) == [2 * count for count in before]


async def test_the_same_conversation_twice_in_a_file_is_imported_once(services: Services) -> None:
    assert await bring(services, document(GOOD, GOOD)) == ImportCounts(imported=1, already_there=1)


async def test_ids_that_somebody_has_are_replaced_in_order(services: Services, stranger: str) -> None:
    versions = talk(
        "c1",
        message("a1"),
        message("a2", "a1", "assistant", content="older", turn=TURN),
        message("a3", "a1", "assistant", content="newer"),
        tip=uuid("a2"),
        tags=["t"],
    )
    await bring(services, document(versions))
    mine = await services.transfers.records.read(ME, uuid("c1"))
    await bring(services, document(versions), stranger)
    (theirs,) = [one async for one in services.transfers.records.read_all(stranger)]
    assert theirs.id != mine.id
    assert theirs.imported_from == f"deskmate:{mine.id}"
    assert {one.id for one in theirs.messages}.isdisjoint(one.id for one in mine.messages)
    assert [one.content for one in theirs.messages] == ["text a1", "older", "newer"]
    assert [theirs.tip, theirs.messages[2].parent_id] == [theirs.messages[1].id, theirs.messages[0].id]
    assert theirs.messages[1].turn is not None
    assert theirs.messages[1].turn.id != TURN["id"]
    assert await services.transfers.records.read(ME, uuid("c1")) == mine
    # What they export is theirs, and what it came from is known wherever it goes.
    file = await document_bytes([theirs])
    assert await bring(services, file, stranger) == ImportCounts(imported=0, already_there=1)


async def test_one_id_that_is_taken_changes_the_ids_of_its_conversation_alone(services: Services) -> None:
    replied = message("a2", "a1", "assistant", turn={**TURN, "params": {"seed": 7}})
    await bring(services, document(talk("c1", message("a1"), replied)))
    await bring(
        services,
        document(
            talk("c2", message("a1")),
            talk("c3", message("a9")),
            talk("c4", message("a7"), message("a8", "a7", "assistant", turn=TURN)),
        ),
    )
    ids = {one.title: one.id async for one in services.transfers.records.read_all(ME)}
    assert [id == uuid(title[-2:]) for title, id in ids.items()] == [True, True, False, False]
    assert ids["Talk c3"] == uuid("c3")
    turn = await services.database.read(lambda session: session.get_one(Turn, TURN["id"]))
    assert (turn.message_id, turn.seed, turn.checkpoint_offset) == (uuid("a2"), 7, len("text a2"))


async def test_a_file_that_is_wrong_at_its_end_leaves_nothing(services: Services) -> None:
    await bring(services, document(talk("c0")))
    before = await rows(services)
    for data in (
        document(GOOD, talk("c2"), {"id": "wrong"}),
        document(GOOD, talk("c2"))[:-2],
        archive(**{"a.json": document(GOOD), "b.json": document({"id": "wrong"})}),
    ):
        with pytest.raises(BrokenFile):
            await bring(services, data)
        assert await rows(services) == before


async def test_what_fails_in_the_last_statement_leaves_nothing(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [talk(f"c{n}", message(f"a{n}")) for n in range(1200)]
    calls: list[int] = []
    insert = store._insert

    def fail_late(session: Any, waiting: Any) -> None:
        insert(session, waiting)
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(store, "_insert", fail_late)
    with pytest.raises(RuntimeError, match="on fire"):
        await bring(services, document(*many))
    assert await rows(services) == [0, 0, 0, 0]
    monkeypatch.undo()
    assert (await bring(services, document(*many))).imported == 1200


async def test_two_imports_at_once_make_no_duplicates(services: Services, stranger: str) -> None:
    records = services.transfers.records
    conversations = read(document(*(talk(f"c{n}", message(f"a{n}")) for n in range(50))))
    counts = await asyncio.gather(*(records.add(user_id, conversations) for user_id in (ME, stranger) * 3))
    assert sorted((count.imported, count.already_there) for count in counts) == [(0, 50)] * 4 + [(50, 0)] * 2
    assert await rows(services) == [100, 100, 0, 0]


async def test_an_import_that_nobody_waits_for_stops(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    ended: list[BaseException] = []
    begun, cancelled, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def progress(fraction: float) -> None:
        calls.append(fraction)
        loop.call_soon_threadsafe(begun.set)
        cancelled.wait(30)

    def followed(*arguments: Any, **named: Any) -> list[ConversationDocument]:
        try:
            return read_conversations(*arguments, **named)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr(service, "read_conversations", followed)
    file = io.BytesIO(document(*(talk(f"c{n}") for n in range(9))))
    importing = asyncio.create_task(services.transfers.import_file(ME, file, progress=progress))
    await begun.wait()
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    cancelled.set()
    await eventually(lambda: ended != [])
    assert isinstance(ended[0], InterruptedError)
    assert len(calls) == 1
    assert await rows(services) == [0, 0, 0, 0]


async def test_an_imported_conversation_goes_on(services: Services, engine: FakeEngine) -> None:
    data = [
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "1"},
        {"from": "human", "value": "unanswered"},
    ]
    await bring(services, json.dumps({"conversations": data}).encode())
    assert await services.database.read(lambda session: broken_rules(session.connection())) == []
    (item,) = (await services.conversations.list(ME)).items
    engine.say("2")
    ref = await services.turns.start(ME, text="two", conversation_id=item.id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert [message["content"] for message in engine.calls[-1][0]] == ["one", "1", "two"]
    view = await services.conversations.get(ME, item.id)
    assert [message.content for message in view.messages] == ["one", "1", "unanswered", "", "two", "2"]
    engine.say("1!")
    ref = await services.turns.regenerate(ME, view.messages[1].id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    positions(await services.transfers.records.read(ME, item.id))


#: Dies in the middle of the transaction, as when the power goes.
_DYING_IMPORT = """
import os, signal, sys
from app.cli.main import main
from app.store.chat import transfer

insert = transfer._insert

def insert_and_die(session, rows):
    insert(session, rows)
    os.kill(os.getpid(), signal.SIGKILL)

transfer._insert = insert_and_die
main(["import", sys.argv[1]])
"""


def run(*arguments: str, code: str | None = None) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main.main(list(arguments))
    return ended.value.code


@pytest.mark.slow
def test_an_import_that_is_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    file = tmp_path / "notes.json"
    file.write_bytes(document(GOOD))
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", _DYING_IMPORT, str(file)], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert run("export", "--to", "-") == 0
    assert json.loads(capsys.readouterr().out)["conversations"] == []
    assert run("import", str(file)) == 0
    assert capsys.readouterr().out == "1 conversation was imported; 0 already existed.\n"


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    file = tmp_path / "notes.json"
    file.write_bytes(document(GOOD, talk("c2")))

    def fails(*arguments: str) -> str:
        assert run(*arguments) == 2
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.err.splitlines()[-1]

    assert "no database to export from" in fails("export")
    assert "cannot be read: No such file" in fails("import", str(tmp_path / "nowhere.json"))
    assert run("import", str(file)) == 0
    assert capsys.readouterr().out == "2 conversations were imported; 0 already existed.\n"
    with claim_database(AppSettings(_env_file=None).resolved_database_url):  # a server runs
        sentence = fails("import", str(file))
        assert "Another Deskmate" in sentence
        assert sentence.endswith("Stop it first, or import the file through its page.")
        assert run("export", "--to", str(tmp_path / "out.json")) == 0
    first = (tmp_path / "out.json").read_bytes()
    assert len(read(first)) == 2
    assert "already exists" in fails("export", "--to", str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").read_bytes() == first
    assert "cannot be written" in fails("export", "--to", str(tmp_path / "nowhere/out.json"))
    monkeypatch.chdir(tmp_path)
    assert run("export", "--format", "markdown") == 0
    (packed,) = tmp_path.glob("*.zip")
    assert zipfile.ZipFile(packed).namelist() == ["2026-05-01 Talk c1.md", "2026-05-01 Talk c2.md"]
    file.write_bytes(document(GOOD)[:-1])
    assert "notes.json is broken in line 1" in fails("import", str(file))
    file.write_bytes(b" " * 1024 * 1024 + document(GOOD))
    assert "larger than 1 MiB" in fails("import", str(file), "--max-import-mb", "1")


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with live_server(tmp_path / "data", gradio=False, max_import_mb=1) as live:
        yield live.http


async def test_over_http(http: httpx.AsyncClient) -> None:
    data = document({**GOOD, "title": "Grüße/„x“"}, talk("c2"))
    own_page = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/octet-stream"}
    answer = await http.post("/api/import", content=data, headers=own_page)
    assert (answer.status_code, answer.json()) == (200, {"imported": 2, "already_there": 0})
    for content, kind in ((data, "application/json"), (archive(**{"a.json": data}), "application/zip")):
        answer = await http.post("/api/import", content=content, headers={"Content-Type": kind})
        assert answer.json() == {"imported": 0, "already_there": 2}

    one = await http.get(f"/api/conversations/{uuid('c1')}/export?format=markdown")
    assert one.headers["content-type"] == "text/markdown; charset=utf-8"
    assert one.headers["content-disposition"].endswith(
        "filename*=UTF-8''2026-05-01%20Gr%C3%BC%C3%9Fe%20%E2%80%9Ex%E2%80%9C.md"
    )
    assert one.headers["cache-control"] == "no-store"
    assert one.text.startswith("# Grüße/„x“\n")
    assert len(read((await http.get(f"/api/conversations/{uuid('c1')}/export")).content)) == 1
    everything = await http.get("/api/export", headers={"Sec-Fetch-Site": "same-origin"})
    assert everything.headers["content-type"] == "application/json"
    assert len(read(everything.content)) == 2
    assert zipfile.ZipFile(io.BytesIO((await http.get("/api/export?format=markdown")).content)).testzip() is None

    missing = await http.get(f"/api/conversations/{new_id()}/export")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (await http.get("/api/export?format=pdf")).status_code == 422
    broken = await http.post("/api/import", content=b"[", headers=own_page)
    assert (broken.status_code, broken.json()["error"]["code"]) == (422, "broken_file")
    assert "line 1, column 2" in broken.json()["error"]["message"]


async def test_another_website_brings_nothing_in(http: httpx.AsyncClient) -> None:
    for headers, status in [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
        ({"Content-Type": "application/octet-stream", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/octet-stream", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Host": "evil.example"}, 421),
    ]:
        answer = await http.post("/api/import", content=document(GOOD), headers=headers)
        assert answer.status_code == status, headers
    assert (await http.get("/api/conversations")).json()["items"] == []


async def test_an_upload_over_the_limit_is_cut_off(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    answer = await http.post("/api/import", content=b" " * (3 * 2**20), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "APP_MAX_IMPORT_MB" in answer.json()["error"]["message"]

    async def endless() -> AsyncIterator[bytes]:  # without a Content-Length
        for _ in range(20):
            yield b" " * 2**16

    answer = await http.post("/api/import", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    full = await http.post("/api/import", content=b" " * (2**20 - 400) + document(), headers=headers)
    assert full.json() == {"imported": 0, "already_there": 0}


async def test_the_reason_for_which_a_file_is_too_large_reaches_the_client(http: httpx.AsyncClient) -> None:
    packed = archive(**{"a.json": b" " * (2 * 2**20)})
    answer = await http.post("/api/import", content=packed, headers={"Content-Type": "application/zip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert answer.json()["error"]["message"].startswith("The content of The file is larger than 1 MiB")


async def test_a_reply_of_another_program_goes_on_where_it_was_cut(services: Services, engine: FakeEngine) -> None:
    def said(id: str, parent: str | None, role: str, content: str, **fields: Any) -> dict[str, Any]:
        return {"id": id, "parentId": parent, "role": role, "content": content, **fields}

    messages = [
        said("q", None, "user", "count"),
        said("cut", "q", "assistant", "one, two", done=False),
        said("whole", "q", "assistant", "one, two, three", model="llama"),
    ]
    chat = {"history": {"messages": {one["id"]: one for one in messages}, "currentId": "cut"}}
    await bring(services, json.dumps([{"id": "1", "chat": chat}]).encode())
    (item,) = (await services.conversations.list(ME)).items
    _question, cut, whole = (await services.transfers.records.read(ME, item.id)).messages
    with pytest.raises(InvalidInput, match="ended by itself"):
        await services.turns.resume(ME, whole.id)
    engine.say(", three")
    ref = await services.turns.resume(ME, cut.id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert (await services.conversations.get_message(ME, cut.id)).content == "one, two, three"
