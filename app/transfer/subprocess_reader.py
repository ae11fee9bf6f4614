"""Parses a large file in a separate process with bounded memory.

A parser holds the GIL for a whole value and takes up to twenty times a file's size in memory: in the server's own
process, a file of 200 MiB could stop every reply for seconds and exhaust the memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import app
from app.domain.conversation_document import ConversationDocument, MessageDocument
from app.errors import AppError, BrokenFile, StorageUnavailable, TooLarge
from app.transfer.files import MIB
from app.transfer.reading import Progress, iter_conversations

_log = logging.getLogger(__name__)

MAX_SECONDS = 600  # of CPU time
#: Kills a process that neither reads nor gets CPU time, since other imports would wait for it forever.
MAX_WALL_SECONDS = 900
_MAX_LOGGED_BYTES = 4096
_BASE_BYTES = 512 * MIB  # the interpreter, and the largest conversation
_TIMES_OF_FILE = 4  # multiple of the file size: the file, its text, and the current value


class ReadConversations:
    """Validated conversations in a temporary file that is deleted with this object. Can be iterated any number of
    times; holds one conversation in memory at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[ConversationDocument]:
        self._file.seek(0)
        while line := self._file.readline():
            head = json.loads(line)
            messages = [MessageDocument.model_validate_json(self._file.readline()) for _ in range(head["messages"])]
            conversation = ConversationDocument.model_validate(head["conversation"])
            yield conversation.model_copy(update={"messages": messages})

    def close(self) -> None:
        self._file.close()


async def read_isolated(
    file: IO[bytes], name: str, *, max_bytes: int, max_message_bytes: int, now: datetime, progress: Progress
) -> ReadConversations:
    """Reads every conversation in a file, as :func:`app.transfer.reading.read_conversations` does.

    Raises:
        BrokenFile, TooLarge: as there; TooLarge also if parsing exceeds the memory or time limit.
        StorageUnavailable: there is no disk space for the result.
        AppError: the process failed for a reason other than the file; see the log.
    """
    try:
        with ExitStack() as on_failure:
            result = on_failure.enter_context(tempfile.TemporaryFile())
            with tempfile.TemporaryFile() as errors, await asyncio.to_thread(_with_descriptor, file) as source:
                async with asyncio.timeout(MAX_WALL_SECONDS):
                    await _run_child(source, result, errors, name, max_bytes, max_message_bytes, now, progress)
            on_failure.pop_all()
    except TimeoutError as error:
        raise too_much(name) from error
    except OSError as error:
        raise _no_room(name, error) from error
    return ReadConversations(result)


def _with_descriptor(file: IO[bytes]) -> IO[bytes]:
    """The file, rewound, with a descriptor that another process can inherit."""
    file.seek(0)
    try:
        return os.fdopen(os.dup(file.fileno()), "rb")
    except OSError:  # the file is in memory
        copied: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
        shutil.copyfileobj(file, copied)
        copied.seek(0)
        return copied


async def _run_child(
    source: IO[bytes],
    result: IO[bytes],
    errors: IO[bytes],
    name: str,
    max_bytes: int,
    max_message_bytes: int,
    now: datetime,
    progress: Progress,
) -> None:
    max_memory_bytes = _BASE_BYTES + _TIMES_OF_FILE * max_bytes
    numbers = (result.fileno(), max_bytes, max_message_bytes, max_memory_bytes)
    arguments = (*map(str, numbers), now.isoformat(), name)
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "app.transfer.subprocess_reader", *arguments),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            pass_fds=(result.fileno(),),
            env=os.environ | {"PYTHONPATH": _search_path()},
            limit=MIB,
        )
    except OSError as error:
        _log.exception("the import subprocess could not be started")
        raise _failed(name) from error
    try:
        assert child.stdout is not None
        message = await _last_message(child.stdout, progress)
        await child.wait()
    except _UnexpectedOutput as error:
        _log.error("the import subprocess wrote unexpected output: %s", error)
        raise _failed(name) from error
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if "error" in message:
        kinds: dict[str, type[AppError]] = {kind.__name__: kind for kind in (BrokenFile, StorageUnavailable, TooLarge)}
        raise kinds.get(message["kind"], AppError)(message["error"])
    if message.get("done"):
        return
    last = _end_of(errors)
    _log.error("the import subprocess ended with status %s: %s", child.returncode, last or "no output")
    # A signal comes from the system, out of memory, or from the CPU time limit.
    ended_by_signal = child.returncode is not None and child.returncode < 0
    if ended_by_signal or last.rpartition("\n")[2].startswith("MemoryError"):
        raise too_much(name)
    raise _failed(name)


class _UnexpectedOutput(Exception):
    """The child's standard output has a line that :func:`_send` does not write."""


async def _last_message(stdout: asyncio.StreamReader, progress: Progress) -> dict[str, Any]:
    """The child's last message; empty if it wrote none.

    Raises:
        _UnexpectedOutput: a line is not such a message.
    """
    message: dict[str, Any] = {}
    while True:
        try:
            line = await stdout.readline()
        except ValueError as error:  # line longer than the stream's limit
            raise _UnexpectedOutput(str(error)) from error
        if not line:
            return message
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise TypeError("an object should stand here")
            fraction = float(message["progress"]) if "progress" in message else None
            if "error" in message:
                message["error"], message["kind"] = str(message["error"]), str(message["kind"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _UnexpectedOutput(repr(line[:_MAX_LOGGED_BYTES])) from error
        if fraction is not None:
            progress(fraction)


def _search_path() -> str:
    """This process's module search path for another process, without the current folder, which may contain any files,
    unless it contains this program."""
    here, home = os.getcwd(), str(Path(app.__file__).parents[1])
    folders = [folder or here for folder in sys.path if not folder or os.path.isabs(folder)]
    return os.pathsep.join(folder for folder in folders if folder != here or folder == home)


def _end_of(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MAX_LOGGED_BYTES))
    return errors.read().decode(errors="replace").strip()


def _failed(name: str) -> AppError:
    return AppError(
        f"{name} could not be read: the process that reads large files failed. Nothing was imported. Try again; if it "
        "fails again, ask an admin to look into the server's log."
    )


def _no_room(name: str, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"{name} could not be written to a temporary file ({error.strerror}). Nothing was imported."
    )


def too_much(name: str) -> TooLarge:
    """The error for a file whose parsing exceeds the memory or time limit."""
    return TooLarge(f"{name} takes more memory or time to read than there is for one import. Import it in parts.")


def _send(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _limit(max_memory_bytes: int) -> None:
    """Limits this process's memory and CPU time. If the system supports no such limit, the server's own limits hold."""
    for kind, value in (
        (resource.RLIMIT_AS, max_memory_bytes),
        (resource.RLIMIT_CPU, MAX_SECONDS),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))
    with suppress(OSError):
        os.nice(10)  # replies have priority


def _write(conversation: ConversationDocument, result: IO[bytes]) -> None:
    head = conversation.model_copy(update={"messages": []})
    messages = conversation.messages
    result.write(f'{{"messages":{len(messages)},"conversation":{head.model_dump_json(exclude_none=True)}}}\n'.encode())
    for message in messages:
        result.write(message.model_dump_json(exclude_none=True).encode() + b"\n")


def main() -> None:
    """The child process: reads the file from standard input and writes the result to the given descriptor."""
    *numbers, now, name = sys.argv[1:]
    descriptor, max_bytes, max_message_bytes, max_memory_bytes = map(int, numbers)
    _limit(max_memory_bytes)
    shown = -1.0

    def progress(fraction: float) -> None:
        nonlocal shown
        if fraction - shown >= 0.01:
            shown = fraction
            _send(progress=fraction)

    try:
        with os.fdopen(descriptor, "wb", closefd=False) as result:
            for conversation in iter_conversations(
                sys.stdin.buffer,
                name,
                max_bytes=max_bytes,
                max_message_bytes=max_message_bytes,
                now=datetime.fromisoformat(now),
                progress=progress,
            ):
                _write(conversation, result)
    except AppError as error:
        _send(error=error.message, kind=type(error).__name__)
    except MemoryError:
        _send(error=too_much(name).message, kind="TooLarge")
    except OSError as error:
        _send(error=_no_room(name, error).message, kind="StorageUnavailable")
    else:
        _send(done=True)


if __name__ == "__main__":
    main()
