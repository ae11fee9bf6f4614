"""Files come in whole or not at all, once, and only to the person who brings them."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app import cli
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import BrokenFile, InvalidInput, TooLarge
from app.services import Services
from app.settings import AppSettings
from app.store import transfer as store
from app.store.claim import claimed
from app.store.integrity import broken_rules
from app.store.models import Conversation, ConversationTag, Message, Turn
from app.store.transfer import ImportCounts, TransferRecords
from app.transfer import files
from app.transfer.document import ConversationDocument
from app.transfer.reading import read_conversations
from app.transfer.shape import positions
from tests.app.live_server import live_server
from tests.support.conversations import document_bytes
from tests.support.fake_engine import FakeEngine

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TIME = "2026-05-01T12:00:00Z"


def read(data: bytes, name: str = "notes.json", max_bytes: int = 2**20) -> list[ConversationDocument]:
    return read_conversations(io.BytesIO(data), name, max_bytes=max_bytes, now=NOW)


def message(id: str, parent_id: str | None = None, role: str = "user", **fields: Any) -> dict[str, Any]:
    own = {"id": uuid(id), "role": role, "content": f"text {id}", "created_at": TIME, **fields}
    return own if parent_id is None else {"parent_id": uuid(parent_id), **own}


def uuid(id: str) -> str:
    return f"00000000-0000-4000-8000-{id:0>12}"


def talk(id: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": uuid(id),
        "title": f"Talk {id}",
        "created_at": TIME,
        "updated_at": TIME,
        "messages": list(messages),
        **fields,
    }


def document(*conversations: dict[str, Any]) -> bytes:
    return json.dumps({"format": "deskmate.conversations", "version": 1, "conversations": list(conversations)}).encode()


GOOD = talk("c1", message("a1"), message("a2", "a1", "assistant"), tip=uuid("a2"))
TURN = {"id": uuid("f1"), "status": "complete", "model": "guide", "created_at": TIME}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "notes.json is empty."),
        (b"\xef\xbb\xbf \n", "notes.json is empty."),
        (b"hello", "line 1, column 1: a list or an object should begin here"),
        (b'[{"a": 1},\n {"b": }]', "line 2, column 8: expecting value"),
        (b'[{"a": 1}\n\n {"b": 1}]', "line 3, column 2: a comma or the end of the list"),
        (b'{"a": 1', "line 1, column 8: a comma or the end of the object"),
        (b'{"a" 1}', "line 1, column 6: a colon"),
        (b'{"a": 1, }', "line 1, column 10: a name in double quotes"),
        (b'[{"a": "x\ny"}]', "line 1, column 10: invalid control character"),
        (b'{"a": 1}\n{"b": 1', "line 2, column 8: expecting ',' delimiter"),
        (b'[1] "more"', "line 1, column 5: the file should end here"),
        (b"[" * 50_000, "line 1, column 2: the value that begins here is nested too deeply"),
        (b'[{"a": "\\u0000", "b": ' + b"[" * 900 + b"]" * 900 + b"}]", "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "line 1, column 2: in the value that begins here"),
        (b'[\n{"a": NaN}]', "line 2, column 1: in the value that begins here, NaN"),
        (b'["a",\n"\xff"]', "not text in UTF-8: see line 2, byte 7"),
        (b"[5]", "not of a kind that is known here"),
        (b'{"format": "something else", "conversations": []}', "not of a kind"),
        (b'{"format": "deskmate.conversations", "version": 2, "conversations": []}', "version 2 of this format"),
        (document() + b"x", "the file should end here"),
    ],
)
def test_broken_json_is_refused_with_the_place(data: bytes, says: str) -> None:
    with pytest.raises(BrokenFile) as refused:
        read(data)
    assert "notes.json" in refused.value.message
    assert says in refused.value.message
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize(
    ("conversation", "says"),
    [
        ({**GOOD, "id": "1"}, "id: string should match pattern"),
        ({**GOOD, "title": " \n"}, "title: it is empty"),
        ({**GOOD, "title": "x" * 201}, "title: string should have at most 200 characters"),
        ({**GOOD, "tags": ["x" * 51]}, "tags[0]"),
        ({**GOOD, "settings": {"temperature": 99}}, "settings: temperature"),
        ({**GOOD, "settings": {"seed": 2**80}}, "settings"),
        ({**GOOD, "created_at": "2026-05-01T12:00:00"}, "created_at: input should have timezone info"),
        ({**GOOD, "created_at": "0001-01-01T00:00:00+10:00"}, "created_at: this moment cannot be told in UTC"),
        ({**GOOD, "tip": uuid("a3")}, "tip: there is no message with this id"),
        ({**GOOD, "messages": {}}, "messages: input should be a valid list"),
        (talk("c2", message("a1", content=None)), "messages[0].content"),
        (talk("c2", message("a1", "a0")), "messages[0].parent_id: there is no message with this id"),
        (talk("c2", message("a1"), message("a1")), "messages[1].id: another message has this id too"),
        (talk("c2", message("a1", role="assistant")), "messages[0].parent_id: a reply must follow a message"),
        (talk("c2", message("a1", role="system")), "messages[0].role"),
        (talk("c2", message("a1", turn=TURN)), "messages[0].turn: only a reply has one"),
        (talk("c2", message("a1", status="streaming")), "messages[0].status"),
        (
            talk("c2", message("a1"), message("a2", "a1", "assistant"), message("a3", "a2", "assistant")),
            "messages[2].role: a reply cannot follow another",
        ),
        (
            talk("c2", message("a1", "a2"), message("a2", "a1", "assistant")),
            "messages[0].parent_id: the message follows itself",
        ),
        (
            talk("c2", message("a1"), message("a2", "a1", "assistant", turn={**TURN, "ttft_ms": 1e999})),
            "messages[1].turn.ttft_ms",
        ),
        (
            talk("c2", message("a1"), message("a2", "a1", "assistant", turn={**TURN, "prompt_tokens": 2**63})),
            "messages[1].turn.prompt_tokens",
        ),
        ("text", "the whole of it"),
    ],
)
def test_a_wrong_conversation_is_refused_with_number_title_line_and_field(conversation: Any, says: str) -> None:
    data = document(talk("c0"), talk("c9"), conversation).replace(
        b'{"id": "' + uuid("c9").encode(), b'\n{"id": "' + uuid("c9").encode()
    )
    with pytest.raises(BrokenFile) as refused:
        read(data.replace(b"Infinity", b"1e999"))
    title = (
        f" ({conversation['title'].strip()[:60]!r})"
        if isinstance(conversation, dict) and conversation["title"].strip()
        else ""
    )
    # Ours stands on line 2, like the one before it.
    assert f"notes.json is broken in conversation 3{title}, which begins in line 2, at {says}" in refused.value.message
    assert refused.value.message.endswith("Nothing was imported.")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"mapping": []}, "mapping: this should be an object"),
        ({"mapping": {"a": 1}}, "mapping.a: this should be an object"),
        ({"mapping": {"a": {"parent": "b"}}}, "mapping.a.parent: there is no message with this id"),
        ({"mapping": {"a": {"children": ["b"]}}}, "mapping.a.children"),
        ({"mapping": {"a": {"message": {}}}}, "mapping.a.message.author"),
        ({"mapping": {"a": {"message": {"author": {}, "content": "x"}}}}, "mapping.a.message.content"),
        (
            {"mapping": {"a": {"message": {"author": {}, "content": {"content_type": "text", "parts": "x"}}}}},
            "mapping.a.message.content.parts",
        ),
        ({"mapping": {"a": {"parent": "b"}, "b": {"parent": "a"}}}, "messages: one of them follows itself"),
        ({"chat": {}}, "chat.messages: this should be a list"),
        ({"chat": {"history": {"messages": [1]}}}, "chat.history.messages: this should be an object"),
        ({"chat": {"history": {"messages": {"a": {"parentId": "b"}}}}}, "chat.history.messages.a.parentId"),
        ({"chat": {"history": {"messages": {"a": {}}}}}, "chat.history.messages.a.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"conversations": ["x"]}, "conversations[0]: this should be an object"),
        ({"conversations": [{"value": "x"}]}, "conversations[0].from"),
        ({"conversations": [{"from": "human"}]}, "conversations[0].value"),
    ],
)
def test_a_wrong_conversation_of_another_program_is_refused(value: dict[str, Any], says: str) -> None:
    with pytest.raises(BrokenFile) as refused:
        read(json.dumps([value]).encode())
    assert f"in conversation 1, which begins in line 1, at {says}" in refused.value.message


def test_conversations_of_two_kinds_in_one_list_are_refused() -> None:
    with pytest.raises(BrokenFile, match=r"conversation 2.*like the first"):
        read(json.dumps([{"mapping": {}}, {"chat": {"messages": []}}]).encode())


def test_the_order_of_names_and_unknown_names_make_no_difference() -> None:
    data = json.loads(document({**GOOD, "mood": "good", "settings": {"temperature": 0.5, "mood": 1}}))
    (conversation,) = read(json.dumps({**data, "by": "hand"}, sort_keys=True, indent=3).encode())
    assert conversation.settings.temperature == 0.5
    assert len(conversation.messages) == 2


def archive(**members: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return written.getvalue()


def test_an_archive_is_known_by_what_is_in_it() -> None:
    data = archive(
        **{
            "chat.html": b"<html>",
            "user.json": b'{"id": "me"}',
            "message_feedback.json": b"[1]",
            "export/conversations-000.json": json.dumps([{"mapping": {}, "id": "1"}]).encode(),
            "export/conversations-001.json": json.dumps([{"mapping": {}, "id": "2"}]).encode(),
        }
    )
    assert [one.imported_from for one in read(data, "picture.png")] == ["chatgpt:1", "chatgpt:2"]


def locked() -> bytes:
    data = bytearray(archive(**{"a.json": b"[]"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    return bytes(data)


def damaged() -> bytes:
    data = bytearray(archive(**{"a.json": b'["' + b"x" * 100 + b'"]'}))
    data[45] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (archive(**{"chat.html": b""}), "There are no conversations in export.zip"),
        (archive(), "There are no conversations in export.zip"),
        (archive(**{"a.json": b"[1,]"}), "a.json in export.zip is broken in line 1, column 4"),
        (archive(**{"a.json": document(GOOD), "b.json": b"{"}), "b.json in export.zip is broken in line 1"),
        (archive(**{"a.json": document(GOOD)})[:-10], "export.zip cannot be unpacked"),
        (damaged(), "export.zip cannot be unpacked"),
        (locked(), "export.zip cannot be unpacked: it is locked by a password"),
    ],
)
def test_archives_that_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(BrokenFile) as refused:
        read(data, "export.zip")
    assert says in refused.value.message


def test_what_is_too_large_is_refused_packed_and_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLarge, match=r"notes.json is larger than 0.\d+ MiB.*APP_MAX_IMPORT_MB"):
        read(b" " * 1001, max_bytes=1000)
    bomb = archive(**{"a.json": b"[]" + b" " * 600, "b.json": b"[]" + b" " * 600})
    assert len(bomb) < 1000
    with pytest.raises(TooLarge, match="packed in"):
        read(bomb, max_bytes=1000)
    monkeypatch.setattr(files, "_MAX_MEMBERS", 3)
    with pytest.raises(BrokenFile, match="more than 3 files"):
        read(archive(**{f"{n}.txt": b"" for n in range(4)}))


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
    records = TransferRecords(services.database)
    conversations = read(document(*(talk(f"c{n}", message(f"a{n}")) for n in range(50))))
    counts = await asyncio.gather(*(records.add(user_id, conversations) for user_id in (ME, stranger) * 3))
    assert sorted((count.imported, count.already_there) for count in counts) == [(0, 50)] * 4 + [(50, 0)] * 2
    assert await rows(services) == [100, 100, 0, 0]


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
from app.cli import main
from app.store import transfer

insert = transfer._insert

def insert_and_die(session, rows):
    insert(session, rows)
    os.kill(os.getpid(), signal.SIGKILL)

transfer._insert = insert_and_die
main(["import", sys.argv[1]])
"""


def run(*arguments: str, code: str | None = None) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    return ended.value.code


def test_an_import_that_is_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    file = tmp_path / "notes.json"
    file.write_bytes(document(GOOD))
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _DYING_IMPORT, str(file)], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert run("export", "--to", "-") == 0
    assert json.loads(capsys.readouterr().out)["conversations"] == []
    assert run("import", str(file)) == 0
    assert capsys.readouterr().out == "1 conversation was imported; 0 were there already.\n"


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
    assert capsys.readouterr().out == "2 conversations were imported; 0 were there already.\n"
    with claimed(AppSettings(_env_file=None).resolved_database_url):  # a server runs
        sentence = fails("import", str(file))
        assert "Another Deskmate" in sentence
        assert sentence.endswith("Stop it first, or import the file through its page.")
        assert run("export", "--to", str(tmp_path / "out.json")) == 0
    first = (tmp_path / "out.json").read_bytes()
    assert len(read(first)) == 2
    assert "there already" in fails("export", "--to", str(tmp_path / "out.json"))
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
    async with live_server(tmp_path / "data", max_import_mb=1) as live:
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
