"""``deskmate chat``: history, commands and settings; piped text; Ctrl-C stops the reply and not the program."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from app.cli import chat as chat_module
from app.cli.chat_session import ChatSession
from app.cli.main import main
from app.errors import InvalidInput
from app.models import downloads
from engine import EngineError, EngineSettings, FinishReason, InvalidRequestError
from testing.fake_engine import FakeEngine, Thought
from testing.models import make_model
from testing.waiting import eventually


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()

    @asynccontextmanager
    async def make(settings: object, progress: object) -> AsyncIterator[FakeEngine]:
        yield fake

    monkeypatch.setattr(chat_module, "make_engine", make)
    return fake


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def session(engine: FakeEngine, notes: list[str]) -> ChatSession:
    return ChatSession(engine, "Be brief.", notes.append)


async def say(session: ChatSession, text: str) -> str:
    return "".join([delta.text async for delta in session.reply(text)])


def sent(engine: FakeEngine) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in engine.calls[-1][0]]


async def test_a_message_comes_with_what_was_said_before(session: ChatSession, engine: FakeEngine) -> None:
    engine.say(Thought("Hm."), "Good day.")
    assert await say(session, "Hi") == "Good day."
    await say(session, "And?")
    assert sent(engine) == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Good day."), ("user", "And?")]
    assert engine.calls[-1][0][2]["reasoning"] == "Hm."


async def test_a_stopped_reply_stays_in_the_history(session: ChatSession, engine: FakeEngine) -> None:
    engine.say("One", " two", gates={1: asyncio.Event()})
    shown: list[str] = []

    async def read() -> None:
        async for delta in session.reply("Count"):
            shown.append(delta.text)

    reading = asyncio.create_task(read())
    await eventually(lambda: "One" in shown)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    await say(session, "Go on")
    assert sent(engine)[1:] == [("user", "Count"), ("assistant", "One"), ("user", "Go on")]
    assert engine.aborted == 1


async def test_a_refused_message_is_not_kept(session: ChatSession, engine: FakeEngine) -> None:
    engine.refuse = InvalidRequestError("Too long.")
    with pytest.raises(EngineError, match="Too long"):
        await say(session, "x" * 100)
    engine.refuse = None
    await say(session, "short")
    assert sent(engine) == [("system", "Be brief."), ("user", "short")]


async def test_commands_change_what_is_sent(session: ChatSession, engine: FakeEngine) -> None:
    assert session.command("/set temperature 0.2") == "temperature is 0.2."
    session.command('/set stop ["END"]')
    session.command("/set thinking off")
    session.command("/system Rhyme.")
    await say(session, "Hi")
    params = engine.calls[-1][1]
    assert params is not None
    assert (params.temperature, params.stop) == (0.2, ("END",))
    assert engine.options[-1].thinking is False
    assert "temperature: 0.2" in session.command("/set")
    session.command("/set temperature default")
    session.command("/reset")
    session.command("/system none")
    await say(session, "Again")
    assert sent(engine) == [("user", "Again")]
    params = engine.calls[-1][1]
    assert params is not None
    assert params.temperature is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/tea", "no command /tea"),
        ("/set colour blue", "colour is no setting"),
        ("/set n 3", "n is no setting"),
        ("/set temperature", "needs a value"),
        ("/set thinking maybe", "on, off or default"),
        ("/set temperature 9000", "temperature must be"),
        ("/set temperature warm", "temperature must be"),
        ("/save nothing.json", "nothing to save"),
    ],
)
def test_commands_that_cannot_be_done_say_why(session: ChatSession, line: str, words: str) -> None:
    before = session.command("/set")
    with pytest.raises((InvalidInput, InvalidRequestError), match=re.escape(words)):
        session.command(line)
    assert session.command("/set") == before


async def test_a_conversation_is_saved_to_a_new_file(session: ChatSession, tmp_path: Path) -> None:
    await say(session, "Hi")
    session.command(f"/save {tmp_path}/a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert [one["role"] for one in saved["messages"]] == ["system", "user", "assistant"]
    session.command(f"/save {tmp_path}/a.md")
    assert "## Assistant\n\nHello, world." in (tmp_path / "a.md").read_text()
    with pytest.raises(InvalidInput, match="exists already"):
        session.command(f"/save {tmp_path}/a.md")
    with pytest.raises(InvalidInput, match="cannot be written"):
        session.command(f"/save {tmp_path}/none/a.md")


def chat(*arguments: str) -> int:
    """Runs the command and returns its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["chat", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_piped_text_gets_one_reply_and_is_never_a_command(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.say(Thought("Hm."), "Good ", "day.")
    pipe(monkeypatch, b"/help\nme\n")
    assert chat("--system", "Be brief.") == 0
    assert capsys.readouterr().out == "Good day.\n"  # the thinking is not part of the answer
    assert sent(engine) == [("system", "Be brief."), ("user", "/help\nme")]


@pytest.mark.parametrize(("data", "words"), [(b" \n", "is empty"), (b"\xff", "not UTF-8")])
def test_what_is_no_message_is_refused(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: bytes, words: str
) -> None:
    pipe(monkeypatch, data)
    assert chat() == 2
    assert words in capsys.readouterr().err
    assert chat("--once", os.fsdecode(data)) == 2
    assert words in capsys.readouterr().err
    assert not engine.calls


def test_once_replies_and_fails_with_a_sentence(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("--once", "Hi") == 0
    assert capsys.readouterr().out == "Hello, world.\n"
    engine.say(fail_at=1)
    assert chat("--once", "Hi") == 2
    shown = capsys.readouterr()
    assert shown.out == "Hello\n"
    assert "ran out of memory" in shown.err


def test_the_end_of_the_reader_ends_the_program(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert chat("--once", "Hi") == 141
    assert engine.aborted == 1


def test_a_name_of_the_recommended_list_is_found(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[str] = []

    @asynccontextmanager
    async def make(settings: EngineSettings, progress: object) -> AsyncIterator[FakeEngine]:
        loaded.append(settings.model)
        yield engine

    def find(name: str, *_: object) -> str:
        return f"found/{name}"

    monkeypatch.setattr(chat_module, "make_engine", make)
    monkeypatch.setattr(downloads, "find_or_download", find)
    assert chat("--model", "smollm2", "--once", "Hi") == 0
    assert loaded == ["found/smollm2"]


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_thinking_dimmed_and_no_control_characters(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    engine.say(Thought("Let me see.\x1b[2J"), "A\x1b]0;owned\x07\tb\r\n", "c")
    assert chat("--once", "Hi") == 0
    assert screen.getvalue() == "\x1b[2mLet me see.[2J\x1b[22m\nA]0;owned\tb\nc\n"


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeTerminal]:
    """Types lines into a terminal, and returns its screen."""

    def type_lines(*lines: str, screen: FakeTerminal | None = None) -> FakeTerminal:
        screen = screen or FakeTerminal()
        monkeypatch.setattr(sys, "stdin", FakeTerminal("".join(f"{line}\n" for line in lines)))
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "dumb")
        return screen

    return type_lines


def test_a_conversation_in_a_terminal(
    engine: FakeEngine, keyboard: Callable[..., FakeTerminal], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.say("Good day.", finish_reason=FinishReason.LENGTH)
    keyboard("Hi", "", "/tea", "one \\", "two", '"""', "three", "", "four", '"""', "//five", "/exit", "six")
    assert chat() == 0
    asked = [text for role, text in sent(engine) if role == "user"]
    assert asked == ["Hi", "one \ntwo", "three\n\nfour", "/five"]
    notes = capsys.readouterr().err
    assert "maximum length. /set max_tokens" in notes
    assert "no command /tea" in notes


def test_a_failure_ends_the_reply_only(
    engine: FakeEngine, keyboard: Callable[..., FakeTerminal], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.say(fail_at=1)
    keyboard("Hi", "Again")
    assert chat() == 0
    assert "ran out of memory" in capsys.readouterr().err
    assert sent(engine) == [("user", "Hi"), ("assistant", "Hello"), ("user", "Again")]


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Ctrl+C raises an exception, also where the tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_the_reply_only(
    engine: FakeEngine, keyboard: Callable[..., FakeTerminal], capsys: pytest.CaptureFixture[str], default_sigint: None
) -> None:
    class Interrupted(FakeTerminal):
        def write(self, text: str) -> int:
            if text == "One":
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    engine.say("One", " two", gates={1: asyncio.Event()})
    screen = keyboard("Count", "Go on", screen=Interrupted())
    assert chat() == 0
    assert sent(engine) == [("user", "Count"), ("assistant", "One"), ("user", "Go on")]
    assert "One\n" in screen.getvalue()
    assert "Stopped." in capsys.readouterr().err
    assert engine.aborted == 1


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Program:
    """The program in a terminal of its own."""

    def __init__(self, model: Path) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "app", "chat", "--model", str(model), "--dtype", "float32", "--no-native"]
        environment = os.environ | {"TERM": "dumb"}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, words: str, seconds: float = 60) -> str:
        """Waits for ``words`` behind what was expected before; returns what was shown up to them."""
        end = time.monotonic() + seconds
        while words not in self.shown:
            self._read(end, words)
        before, _, self.shown = self.shown.partition(words)
        return before

    def press(self, key: str, words: str, times: int = 30) -> None:
        """Presses a key until it has shown ``words``: one that comes while the prompt is being drawn can be lost."""
        for _ in range(times):
            self.type(key)
            with suppress(AssertionError):
                self.expect(words, seconds=2)
                return
        raise AssertionError(f"{words!r} was not shown: {self.shown!r}")

    def expect_more(self, seconds: float = 60) -> None:
        """Waits for anything behind what was expected before."""
        end = time.monotonic() + seconds
        while not self.shown:
            self._read(end, "more")

    def _read(self, end: float, awaited: str) -> None:
        ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
        assert ready, f"{awaited!r} was not shown: {self.shown!r}"
        try:
            self.shown += os.read(self.master, 4096).decode(errors="replace")
        except OSError:
            raise AssertionError(f"{awaited!r} was not shown: {self.shown!r}") from None


@pytest.mark.full
def test_ctrl_c_stops_the_reply_and_ctrl_d_leaves(tmp_path: Path) -> None:
    program = Program(make_model(tmp_path / "endless", eos=False, max_position_embeddings=100_000))
    try:
        program.expect("/help lists the commands")
        program.expect("> ")
        program.type("Hello\n")
        program.expect("Hello\r\n")  # the terminal's echo, and not the reply
        program.expect_more()
        program.type("\x03")
        program.expect("Stopped.")
        program.expect("> ")
        program.type("/set max_tokens 3\n")
        program.expect("max_tokens is 3.")
        program.type("one \\\ntwo\n")
        program.expect("maximum length")
        program.expect("> ")
        program.press("\x03", "Ctrl-D leaves.")
        program.expect("> ")
        program.press("\x04", "\r\n")
        assert program.process.wait(60) == 0
        assert "Traceback" not in program.shown
    finally:
        program.process.kill()
        program.process.wait()
        os.close(program.master)
