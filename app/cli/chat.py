"""``deskmate chat``: a conversation in the terminal, or one reply to what is piped in."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import uvloop

from app.cli.chat_session import HOW_TO_LENGTHEN, ChatSession, end_note
from app.cli.console import StageProgress
from app.cli.engines import make_engine, with_found_model
from app.errors import AppError, InvalidInput
from app.settings import AppSettings
from engine import ChatEngine, Delta, EngineError, EngineSettings

MAX_PIPED_BYTES = 64 * 1024 * 1024
"""Maximum size of a piped message; a larger one is refused."""
CLOSED_PIPE: Final = 141
"""Exit status when the reader of the reply has ended, as in ``| head``: the shells' status for SIGPIPE."""
_PROMPT, _CONTINUED = "> ", "… "
_BLOCK: Final = '"""'
_DIM, _NORMAL = "\x1b[2m", "\x1b[22m"
#: Control characters, which could make a terminal do things, but for tab and line feed.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def chat(app: AppSettings, settings: EngineSettings, system: str, once: str | None = None) -> None:
    """Loads the model and converses until the user leaves.

    Args:
        app: says where downloaded models are.
        system: the system prompt; empty for none.
        once: a message to reply to; the program ends after the reply. None reads messages.

    Raises:
        StartupError, EngineError: the model cannot be loaded; or the reply to ``once`` or to a piped message fails.
        InvalidInput: the message of ``once`` or a pipe is empty, too large or not UTF-8.
        SystemExit: the program that reads the reply has ended.
    """
    terminal = _Terminal()
    message = once
    if message is None and not terminal.is_interactive:
        message = _piped()
    if message is not None:
        _check(message)
    with StageProgress() as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = make_engine(with_found_model(app, settings, progress), progress)
        running = runner.run(_enter(engine))
        progress.stop()
        try:
            session = ChatSession(running, system, terminal.note)
            if message is None:
                _converse(running, session, runner, terminal)
            else:
                terminal.note(end_note(runner.run(_show_reply(session, message, terminal))))
        except BrokenPipeError:
            terminal.discard_output()
            sys.exit(CLOSED_PIPE)
        finally:
            runner.run(engine.__aexit__(None, None, None))


async def _enter(engine: contextlib.AbstractAsyncContextManager[ChatEngine]) -> ChatEngine:
    return await engine.__aenter__()


def _converse(engine: ChatEngine, session: ChatSession, runner: asyncio.Runner, terminal: _Terminal) -> None:
    terminal.note(f"{engine.info.name}. /help lists the commands; Ctrl-D leaves.")
    for message in terminal.messages():
        try:
            if message.startswith("/") and not message.startswith("//"):
                terminal.note(session.command(message))
                if session.is_over:
                    return
            else:
                last = runner.run(_show_reply(session, message.removeprefix("/"), terminal))
                terminal.note(end_note(last, HOW_TO_LENGTHEN))
        except KeyboardInterrupt:
            terminal.end_line()
            terminal.note("Stopped.")
        except (AppError, EngineError) as error:
            terminal.end_line()
            terminal.note(str(error))


async def _show_reply(session: ChatSession, message: str, terminal: _Terminal) -> Delta:
    """Shows the reply as it is generated. Returns its last delta."""
    last = Delta("")
    try:
        async with aclosing(session.reply(message)) as deltas:
            async for last in deltas:
                terminal.show(last)
    finally:
        terminal.end_line()
    return last


class _Terminal:
    """The terminal, or what stands in its place: the answer goes to stdout, everything else to stderr."""

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._is_terminal = sys.stdout.isatty()
        self._has_styles = self._is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._is_thinking = False
        self._at_start = True  # of a line
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):  # a character that its encoding lacks becomes a question mark
                stream.reconfigure(errors="replace")
        if self.is_interactive:
            with contextlib.suppress(ImportError):  # Python without GNU readline: lines cannot be edited
                import readline  # noqa: F401 - importing it gives input() editing and a history

    def messages(self) -> Iterator[str]:
        """Yields messages until the end of the input; empty ones are skipped."""
        while True:
            try:
                message = self._message()
            except EOFError:
                print()  # noqa: T201 - leaves the prompt's line
                return
            except KeyboardInterrupt:
                print()  # noqa: T201
                self.note("Ctrl-D leaves.")
                continue
            if message.strip():
                yield message

    def _message(self) -> str:
        line = input(_PROMPT)
        lines = []
        if line.strip() == _BLOCK:
            while (line := input(_CONTINUED)).strip() != _BLOCK:
                lines.append(line)
            return "\n".join(lines)
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = input(_CONTINUED)
        return "\n".join([*lines, line])

    def show(self, delta: Delta) -> None:
        """Writes a part of the reply: thinking dimmed, and to a terminal only."""
        if delta.reasoning and self._is_terminal:
            if not self._is_thinking:
                self._is_thinking = True
                self._style(_DIM)
            self._write(delta.reasoning)
        if delta.text:
            if self._is_thinking:
                self._end_thinking()
                self.end_line()
            self._write(delta.text)

    def end_line(self) -> None:
        """Ends the reply's line, if it has begun one."""
        self._end_thinking()
        if not self._at_start:
            self._write("\n")

    def discard_output(self) -> None:
        """Discards what is written from now on, so that Python's flush at exit does not fail."""
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def note(self, text: str) -> None:
        """Shows a text that is not part of the reply; an empty one is skipped."""
        if text:
            shown = f"{_DIM}{text}{_NORMAL}" if self._has_styles and sys.stderr.isatty() else text
            print(shown, file=sys.stderr, flush=True)  # noqa: T201

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._style(_NORMAL)

    def _write(self, text: str) -> None:
        if self._is_terminal:
            text = _CONTROLS.sub("", text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_start = text.endswith("\n")

    def _style(self, code: str) -> None:
        if self._has_styles:
            sys.stdout.write(code)


def _piped() -> str:
    data = sys.stdin.buffer.read(MAX_PIPED_BYTES + 1)
    if len(data) > MAX_PIPED_BYTES:
        raise InvalidInput(f"The message has more than {MAX_PIPED_BYTES // 2**20} MB. Shorten it.")
    return data.decode(errors="surrogateescape").rstrip("\n")


def _check(message: str) -> None:
    try:
        message.encode()
    except UnicodeEncodeError as error:  # arguments, too, have surrogates in place of invalid bytes
        raise InvalidInput("The message is not UTF-8 text.") from error
    if not message.strip():
        raise InvalidInput("The message is empty. Pipe a text in, or use --once TEXT.")
