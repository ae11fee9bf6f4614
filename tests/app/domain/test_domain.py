"""The pure parts: the prompt's messages, the reply's buffer, titles, settings, the library of prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.chat_settings import ChatSettings
from app.domain.presets import PRESET_PARAMETERS, PRESETS
from app.domain.prompting import PathMessage, chat_messages, past_turns
from app.domain.templates import TemplateKind
from app.domain.text import TITLE_CHARS, clean_text, title_from
from app.domain.views import MessageStatus, Role
from app.errors import StartupError
from app.settings import AppSettings
from app.templates.files import read_templates
from app.turns.buffer import ReplyBuffer
from app.turns.events import TurnEnd, TurnText

paths = st.lists(
    st.builds(PathMessage, st.sampled_from(Role), st.sampled_from(["", " \n", "a", "b", "long text"])), max_size=12
)


@given(st.sampled_from(["", "  ", "Be kind."]), paths)
def test_roles_alternate_whatever_happened_before(system: str, path: list[PathMessage]) -> None:
    messages = chat_messages(system, past_turns(path), "now")
    if system.strip():
        assert messages.pop(0) == {"role": "system", "content": system}
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    assert messages[-1]["content"] == "now"
    assert all(message["content"].strip() for message in messages if message["role"] == "assistant")


@given(st.lists(st.text(min_size=1).filter(str.strip), max_size=6))
def test_a_conversation_without_gaps_is_sent_whole(contents: list[str]) -> None:
    contents = contents[: len(contents) // 2 * 2]
    path = [PathMessage(Role.ASSISTANT if index % 2 else Role.USER, text) for index, text in enumerate(contents)]
    assert [message["content"] for message in chat_messages("", past_turns(path), "now")] == [*contents, "now"]


@given(st.lists(st.text(), max_size=20), st.integers(min_value=0, max_value=200))
def test_the_buffer_gives_every_suffix(pieces: list[str], offset: int) -> None:
    buffer = ReplyBuffer()
    for piece in pieces:
        buffer.append(piece)
    whole = "".join(pieces)
    assert buffer.text == whole
    assert len(buffer) == len(whole)
    assert buffer._text.text_from(offset) == whole[offset:]


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 12)), max_size=5),
)
def test_every_reader_reads_the_whole_rest_once(pieces: list[str], readers: list[tuple[int, int, int]]) -> None:
    """Readers that come after some pieces, at some offset, and pause after each event."""
    whole = "".join(pieces)
    end = TurnEnd(MessageStatus.COMPLETE, None, None, "m", len(whole))

    async def read(buffer: ReplyBuffer, come: int, pause: int, offset: int) -> None:
        for _ in range(come):
            await asyncio.sleep(0)
        read, reached = "", offset
        async for event in buffer.follow(offset):
            if isinstance(event, TurnText):
                assert event.text
                read += event.text
                reached += len(event.text)
                assert event.offset == reached
            for _ in range(pause):
                await asyncio.sleep(0)
        assert event == end
        assert read == whole[offset:]

    async def main() -> None:
        buffer = ReplyBuffer()
        tasks = [asyncio.create_task(read(buffer, *reader)) for reader in readers]
        for piece in pieces:
            buffer.append(piece)
            await asyncio.sleep(0)
        buffer.close(end)
        async with asyncio.timeout(60):  # a reader that has missed a change would wait for ever
            await asyncio.gather(*tasks)

    asyncio.run(main())


@given(st.text(alphabet=st.characters(), max_size=300))
def test_cleaned_text_can_be_stored_anywhere(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    if text.isascii() and "\0" not in text:
        assert cleaned == text


@given(st.text(max_size=400))
def test_titles_are_one_short_line(text: str) -> None:
    title = title_from(text)
    assert title
    assert len(title) <= TITLE_CHARS + 1
    assert len(title.splitlines()) == 1


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  How do I\t sort?  \nHere is my list", "How do I sort?"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 60 + "…"),
        ("a " + "x" * 100, "a " + "x" * 58 + "…"),
        (" \n ", "New chat"),
        ("## **Sort** `list` ~~fast~~\nhow?", "Sort list fast"),
        ("```\nprint(1)\n```", "print(1)"),
        ("What does **kwargs do?", "What does **kwargs do?"),
    ],
)
def test_titles_end_at_words(message: str, title: str) -> None:
    assert title_from(message) == title


def test_presets_are_accepted_by_the_engine() -> None:
    assert [preset.title for preset in PRESETS] == ["Model default", "Precise", "Balanced", "Creative"]
    for preset in PRESETS:
        assert preset.values.keys() <= {parameter.name for parameter in PRESET_PARAMETERS}
        ChatSettings(preset=preset.name, **preset.values).sampling_params()


def test_the_project_brings_prompts_and_canned_replies() -> None:
    files = read_templates()
    assert {"assistant", "concise", "support-desk", "teacher"} <= set(files[TemplateKind.PROMPT])
    assert "Acme" in files[TemplateKind.PROMPT]["support-desk"].render({"company": "Acme"})
    assert files[TemplateKind.CANNED]


HEAD = "---\nname: x\ntitle: X\ndescription: Y\n---\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("just text", "front matter"),
        ("", "front matter"),
        ("---\nname: x\n", "no end"),
        ("---\nname: [\n---\nhi", "not YAML"),
        ("---\nname: " + "[" * 2000 + "\n---\nhi", "nested too deeply"),
        ("---\nname: x\ntitle: X\n---\nhi", "description"),
        ("---\n- a\n---\nhi", "no fields"),
        (HEAD.replace("title: X", "title: X\ncolour: red") + "hi", "colour"),
        (HEAD.replace("name: x", "name: y") + "hi", "differs from the file's"),
        (HEAD.replace("title: X", "title: X\nrecommended: {temperature: 99}") + "hi", "temperature"),
        (HEAD.replace("title: X", "title: X\nrecommended: {warmth: 1}") + "hi", "warmth"),
        (HEAD + "{{ who }}", "who"),
        (HEAD + "{% if %}", "not a valid template"),
        (HEAD + "{{ ''.__class__.__mro__ }}", "unsupported syntax"),
        (HEAD + " \n", "empty"),
    ],
)
def test_a_file_that_is_no_prompt_is_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "x.md").write_text(content)
    with pytest.raises(StartupError, match=says) as refusal:
        read_templates(tmp_path)
    assert str(tmp_path / "x.md") in refusal.value.message


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StartupError, match=r"x\.md"):
        read_templates(tmp_path)


@pytest.mark.parametrize(
    ("given_url", "used"),
    [
        (None, "sqlite:////srv/desk/deskmate.db"),
        ("", "sqlite:////srv/desk/deskmate.db"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("postgres://u:p@h/d?sslmode=require", "postgresql+psycopg://u:p@h/d?sslmode=require"),
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
    ],
)
def test_the_database_url_names_its_driver(given_url: str | None, used: str) -> None:
    settings = AppSettings(_env_file=None, data_dir=Path("/srv/desk"), database_url=given_url)
    assert settings.resolved_database_url == used


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_ALLOWED_HOSTS", "desk.example, chat.example ,")
    monkeypatch.setenv("APP_PORT", "9000")
    settings = AppSettings(_env_file=None)
    assert settings.allowed_hosts == ("desk.example", "chat.example")
    assert settings.port == 9000
