"""Every kind of file that is wrong is refused with the place; an archive is known by what is in it."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.domain.conversation_document import ConversationDocument
from app.errors import BrokenFile, TooLarge
from app.transfer import files
from app.transfer.reading import read_conversations
from testing.import_files import (
    GOOD,
    TURN,
    archive,
    document,
    message,
    talk,
    uuid,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def read(data: bytes, name: str = "notes.json", max_bytes: int = 2**20) -> list[ConversationDocument]:
    return read_conversations(io.BytesIO(data), name, max_bytes=max_bytes, now=NOW)


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
        (b"[" * 200_000, "line 1, column 2: the value that begins here is nested too deeply"),
        (b'[{"a": "\\u0000", "b": ' + b"[" * 5000 + b"]" * 5000 + b"}]", "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "line 1, column 2: in the value that begins here"),
        (b'[\n{"a": NaN}]', "line 2, column 1: in the value that begins here, NaN"),
        (b'["a",\n"\xff"]', "not text in UTF-8: see line 2, byte 7"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is an image (PNG), and holds no conversations. Import a JSON"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "is an image (JPEG)"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "is an image (WebP)"),
        (b"\0\0\0\x18ftypheic", "is an image (HEIF)"),
        (b'\xef\xbb\xbf\n<?xml version="1.0"?><svg/>', "is an image (SVG)"),
        (b"<!DOCTYPE html><title>ChatGPT</title>", "is a web page"),
        (b"\x7fELF\x02\x01\x01\0\xff\xfe", "is not a text file. Import a JSON"),
        (b"[5]", "not in a supported format"),
        (b'{"format": "something else", "conversations": []}', "not in a supported format"),
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
        ({**GOOD, "created_at": "0001-01-01T00:00:00+10:00"}, "created_at: this time cannot be expressed in UTC"),
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
        ("text", "the conversation itself"),
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
    with pytest.raises(BrokenFile, match=r"conversation 2.*another format than the first"):
        read(json.dumps([{"mapping": {}}, {"chat": {"messages": []}}]).encode())


def test_the_order_of_names_and_unknown_names_make_no_difference() -> None:
    data = json.loads(document({**GOOD, "mood": "good", "settings": {"temperature": 0.5, "mood": 1}}))
    (conversation,) = read(json.dumps({**data, "by": "hand"}, sort_keys=True, indent=3).encode())
    assert conversation.settings.temperature == 0.5
    assert len(conversation.messages) == 2


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
    with pytest.raises(TooLarge, match="The content of"):
        read(bomb, max_bytes=1000)
    monkeypatch.setattr(files, "_MAX_MEMBERS", 3)
    with pytest.raises(BrokenFile, match="more than 3 files"):
        read(archive(**{f"{n}.txt": b"" for n in range(4)}))
