"""What goes out comes in again as it was, on both databases; Markdown holds whatever a message holds."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from datetime import UTC, datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sqlalchemy import delete

from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import ConversationDocument, Document, MessageDocument
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.text import one_line
from app.domain.views import Role
from app.errors import NotFound
from app.services.container import Services
from app.store.db.models import Account
from app.store.maintenance.integrity import broken_rules
from app.transfer.filenames import UniqueNames, attachment, file_name
from app.transfer.markdown import as_markdown
from app.transfer.reading import read_conversations
from app.transfer.service import Export
from testing.conversations import document_bytes, documents, texts
from testing.fake_engine import FakeEngine
from tests.app.conftest import add_user

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


async def content(export: Export) -> bytes:
    return b"".join([piece async for piece in export.pieces])


def read(data: bytes) -> list[ConversationDocument]:
    return read_conversations(io.BytesIO(data), "The file", max_bytes=2**20, now=NOW)


async def chat(services: Services, text: str, conversation_id: str | None = None) -> tuple[str, str]:
    ref = await services.turns.start(ME, text=text, conversation_id=conversation_id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    return ref.conversation_id, ref.message_id


_one_database = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@settings(_one_database, max_examples=15)
@given(conversations=documents)
async def test_whatever_goes_in_comes_out_byte_for_byte(
    services: Services, conversations: list[ConversationDocument]
) -> None:
    await there_and_back(services, conversations)


@pytest.mark.full
@settings(_one_database, max_examples=400)
@given(conversations=documents)
async def test_whatever_goes_in_comes_out_byte_for_byte_at_length(
    services: Services, conversations: list[ConversationDocument]
) -> None:
    await there_and_back(services, conversations)


async def there_and_back(services: Services, conversations: list[ConversationDocument]) -> None:
    # An export has the sources that are cited.
    file = await document_bytes([one.with_readable_sources(()) for one in conversations])
    user_id = await add_user(services.database)
    records = services.transfers.records
    assert (await records.add(user_id, read(file))).imported == len(conversations)
    out = await content(await services.transfers.export_all(user_id, "json"))
    assert await services.database.read(lambda session: broken_rules(session.connection())) == []
    # What this example leaves must not meet the next one.
    await services.database.write(lambda session: session.execute(delete(Account).where(Account.id == user_id)))
    assert out == file


async def test_a_real_history_survives_the_way_through_a_file(
    services: Services, engine: FakeEngine, stranger: str
) -> None:
    engine.say("1")
    id, first = await chat(services, "one")
    engine.say("1!", fail_at=1)
    ref = await services.turns.regenerate(ME, first)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    await services.conversations.show(ME, first)
    engine.say("2")
    await chat(services, "two", id)
    await services.conversations.set_tags(ME, id, ["work", "a b"])
    await services.conversations.mark(ME, id, pinned=True, archived=True)
    await services.conversations.save_settings(ME, id, ChatSettings(temperature=0.5, system_prompt="Be kind."))
    await services.conversations.rename(ME, id, "Ein „Titel“")
    view = await services.conversations.get(ME, id)
    export = await services.transfers.export_one(ME, id, "json")
    file = await content(export)
    assert export.name == f"{datetime.now(UTC):%Y-%m-%d} Ein „Titel“.json"
    (document,) = Document.model_validate_json(file).conversations
    assert (document.pinned, document.archived, document.tags) == (True, True, ["a b", "work"])
    assert document.title_by == "person"
    assert document.settings.system_prompt == "Be kind."
    shown = [message for message in document.messages if message.id in {shown.id for shown in view.messages}]
    assert [message.content for message in shown] == [message.content for message in view.messages]
    assert document.tip == view.messages[-1].id
    (failed,) = (message for message in document.messages if message.id == ref.message_id)
    assert failed.status == "error"
    assert failed.turn is not None
    assert failed.turn.error
    assert shown[1].turn is not None
    assert shown[1].turn.finish_reason == "stop"

    await services.turns.delete_conversation(ME, id)
    counts = await services.transfers.import_file(ME, io.BytesIO(file))
    assert (counts.imported, counts.already_there) == (1, 0)
    assert await content(await services.transfers.export_one(ME, id, "json")) == file
    assert await services.conversations.get(ME, id) == view
    # It is a conversation like any other: another message can be sent, another reply asked for.
    engine.say("3")
    await chat(services, "three", id)
    assert engine.calls[-1][0][-2]["content"] == "2"


async def test_deleted_messages_stay_at_home(services: Services, engine: FakeEngine) -> None:
    engine.say("kept")
    id, _ = await chat(services, "one")
    engine.say("gone")
    _, reply = await chat(services, "two", id)
    deletion = await services.deletions.delete(ME, reply)
    file = await content(await services.transfers.export_one(ME, id, "json"))
    (document,) = read(file)
    assert [message.content for message in document.messages] == ["one", "kept", "two"]
    await services.turns.delete_conversation(ME, deletion.conversation_id)
    await services.transfers.import_file(ME, io.BytesIO(file))
    assert await content(await services.transfers.export_one(ME, id, "json")) == file


async def test_a_reply_in_flight_is_exported_as_interrupted(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("half", " whole", gates={0: gate})
    ref = await services.turns.start(ME, text="one")
    (document,) = read(await content(await services.transfers.export_all(ME, "json")))
    reply = document.messages[1]
    assert (reply.status, reply.turn and reply.turn.status) == ("interrupted", "interrupted")
    gate.set()
    async for _ in services.turns.events(ME, ref.turn_id):
        pass


async def test_nobody_exports_what_is_anothers(services: Services, stranger: str) -> None:
    id, _ = await chat(services, "secret")
    for format in ("json", "markdown"):
        with pytest.raises(NotFound, match="no such conversation"):
            await services.transfers.export_one(stranger, id, format)
        with pytest.raises(NotFound):
            await services.transfers.export_one(ME, new_id(), format)
        with pytest.raises(NotFound):
            await services.transfers.export_one(ME, "x'; --", format)
    assert (
        Document.model_validate_json(await content(await services.transfers.export_all(stranger, "json"))).conversations
        == []
    )
    archive = zipfile.ZipFile(io.BytesIO(await content(await services.transfers.export_all(stranger, "markdown"))))
    assert archive.namelist() == []


async def test_everything_is_exported_in_both_formats_with_progress(services: Services) -> None:
    conversations = [talk(f"number {number % 30}", id=new_id()) for number in range(45)]
    await services.transfers.records.add(ME, conversations)
    seen: list[float] = []
    file = await content(await services.transfers.export_all(ME, "json", seen.append))
    assert file == await document_bytes(conversations)
    assert seen == [(number + 1) / 45 for number in range(45)]
    archive = zipfile.ZipFile(io.BytesIO(await content(await services.transfers.export_all(ME, "markdown"))))
    assert archive.testzip() is None
    assert len(set(archive.namelist())) == 45
    assert "2026-05-01 number 3.md" in archive.namelist()
    assert "2026-05-01 number 3 (2).md" in archive.namelist()
    assert archive.read("2026-05-01 number 3.md").decode() == as_markdown(conversations[3])


def talk(title: str = "T", *contents: str, id: str | None = None, **fields: object) -> ConversationDocument:
    """Messages and replies that follow one another."""
    messages: list[MessageDocument] = []
    for index, text in enumerate(contents):
        messages.append(
            MessageDocument(
                id=new_id(),
                parent_id=messages[-1].id if messages else None,
                role=Role.ASSISTANT if index % 2 else Role.USER,
                content=text,
                created_at=NOW,
            )
        )
    return ConversationDocument(
        id=id or new_id(),
        title=title,
        created_at=NOW,
        updated_at=NOW,
        tip=messages[-1].id if messages else None,
        messages=messages,
        **fields,
    )


def test_markdown_to_read() -> None:
    conversation = talk(
        "C# *and* <b>", "Why?", "Because\n```py\nx = 1", tags=["a_b"], settings=ChatSettings(system_prompt="Be\n# kind")
    )
    assert as_markdown(conversation) == (
        "# C\\# \\*and\\* \\<b\\>\n"
        "\n"
        "- Started: 2026-05-01 12:00 UTC\n"
        "- Last message: 2026-05-01 12:00 UTC\n"
        "- Tags: a\\_b\n"
        "\n"
        "## System prompt\n"
        "\n"
        "> Be\n"
        "> # kind\n"
        "\n"
        "## You, 2026-05-01 12:00 UTC\n"
        "\n"
        "> Why?\n"
        "\n"
        "## Reply, 2026-05-01 12:00 UTC\n"
        "\n"
        "> Because\n"
        "> ```py\n"
        "> x = 1\n"
    )


def test_markdown_says_how_a_reply_ended_and_shows_one_branch() -> None:
    conversation = talk("T", "one", "1")
    question, reply = conversation.messages
    other = reply.model_copy(update={"id": new_id(), "content": "another version", "status": "stopped"})
    both = conversation.model_copy(update={"messages": [question, reply, other]})
    assert "another version" not in as_markdown(both)
    thinking = reply.model_copy(update={"reasoning": "Hm.\n</details>"})
    folded = as_markdown(conversation.model_copy(update={"messages": [question, thinking]}))
    assert folded.endswith("<details><summary>Thinking</summary>\n\n> Hm.\n> </details>\n\n</details>\n\n> 1\n")
    shown = as_markdown(both.model_copy(update={"tip": other.id}))
    assert "> 1\n" not in shown
    assert shown.endswith("> another version\n\n*This reply was stopped.*\n")


@settings(max_examples=60, deadline=None)
@given(st.lists(texts | st.text("`~#>-=<!*|[]()\n\t 1.ab"), min_size=1, max_size=4), texts)
@example(
    ["```", "~~~~", "<script>", "<!--", "1. a\n\n   ```", "***\n===", "[a]: b", "    code", "- x\n  > y"], "# `<!--"
)
def test_no_message_breaks_out_of_its_place(contents: list[str], title: str) -> None:
    conversation = talk(one_line(title)[:200].strip() or "T", *contents)
    text = as_markdown(conversation)
    tokens = MarkdownIt("commonmark").parse(text)
    outer = [token.type for token in tokens if token.level == 0 and token.type != "inline"]
    assert outer == [
        "heading_open",
        "heading_close",
        "bullet_list_open",
        "bullet_list_close",
        *["heading_open", "heading_close", "blockquote_open", "blockquote_close"] * len(contents),
    ]
    lines = text.split("\n")
    quotes = [token.map or [0, 0] for token in tokens if token.level == 0 and token.type == "blockquote_open"]
    for given_text, (begin, end) in zip(contents, quotes, strict=True):
        quoted = "\n".join(line.removeprefix("> ") for line in lines[begin:end])
        assert quoted.rstrip("\n") == re.sub(r"\r\n?", "\n", given_text).rstrip("\n")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A question", "2026-05-01 A question.md"),
        ("../../etc/passwd", "2026-05-01 .. .. etc passwd.md"),
        ('a\\b:c*d?e"f<g>h|i', "2026-05-01 a b c d e f g h i.md"),
        ("x\u202egpj.exe", "2026-05-01 x gpj.exe.md"),
        ("new\r\nline: evil", "2026-05-01 new line evil.md"),
        ("ends. . .", "2026-05-01 ends.md"),
        ("///", "2026-05-01.md"),
        ("é" * 100, f"2026-05-01 {'é' * 60}.md"),
    ],
)
def test_a_title_becomes_a_safe_name(title: str, name: str) -> None:
    assert file_name(title, NOW, "md") == name


def test_names_in_an_archive_differ_whatever_the_case() -> None:
    names = UniqueNames()
    assert [names.unique(name) for name in ("a.md", "A.md", "a (2).md", "a.md")] == [
        "a.md",
        "A (2).md",
        "a (2) (2).md",
        "a (3).md",
    ]


def test_the_header_of_a_download() -> None:
    assert attachment('2026 Grüße "x" 日本.md') == (
        "attachment; filename=\"2026 Grue 'x' .md\"; "
        "filename*=UTF-8''2026%20Gr%C3%BC%C3%9Fe%20%22x%22%20%E6%97%A5%E6%9C%AC.md"
    )


def test_the_schema_in_docs_is_that_of_the_code() -> None:
    script = Path(__file__).parents[3] / "scripts" / "export_schema.py"
    spec = spec_from_file_location("export_schema", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FILE.read_text(encoding="utf-8") == module.schema_text(), "run: make docs"
    described = json.loads(module.schema_text())
    assert described["required"] == ["format", "version", "conversations"]
