"""Reading a large file in a process of its own, with bounded memory.

A parser holds Python's lock for as long as one value takes, and makes up to twenty times a file's size of it: a file of
200 MiB could stop every reply for seconds, and take the memory of all.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import IO, Any

from app.errors import AppError, BrokenFile, StorageUnavailable, TooLarge
from app.transfer.document import ConversationDocument, MessageDocument
from app.transfer.files import MIB
from app.transfer.reading import Progress, iter_conversations

MAX_SECONDS = 600
_BASE_BYTES = 512 * MIB  # Python itself, and the largest conversation
_TIMES_OF_FILE = 4  # the file, its text, and the value that is being read


class ReadConversations:
    """Conversations that were read and found right, in a file that is gone with this object; iterated as often as
    need be, one in memory at a time."""

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
    file: IO[bytes], name: str, *, max_bytes: int, now: datetime, progress: Progress
) -> ReadConversations:
    """Every conversation in a file, as :func:`app.transfer.reading.read_conversations` reads them.

    Raises:
        BrokenFile, TooLarge: as there; also where it takes more memory to read than there is for it.
        StorageUnavailable: there is no room for what was read.
    """
    result: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who gets it
    try:
        with await asyncio.to_thread(_with_descriptor, file) as source:
            await _run_child(source, result, name, max_bytes, now, progress)
    except BaseException:
        result.close()
        raise
    return ReadConversations(result)


def _with_descriptor(file: IO[bytes]) -> IO[bytes]:
    """The same file from its beginning, as another process can have it."""
    file.seek(0)
    try:
        return os.fdopen(os.dup(file.fileno()), "rb")
    except OSError:  # it is in memory
        copied: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
        shutil.copyfileobj(file, copied)
        copied.seek(0)
        return copied


async def _run_child(
    source: IO[bytes], result: IO[bytes], name: str, max_bytes: int, now: datetime, progress: Progress
) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.transfer.isolated", str(result.fileno()), str(max_bytes), now.isoformat(), name),
        stdin=source,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=(result.fileno(),),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        limit=MIB,
    )
    try:
        assert child.stdout is not None
        said: dict[str, Any] = {}
        async for line in child.stdout:
            said = json.loads(line)
            if "progress" in said:
                progress(said["progress"])
        await child.wait()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if "error" in said:
        kinds: dict[str, type[AppError]] = {"BrokenFile": BrokenFile, "StorageUnavailable": StorageUnavailable}
        raise kinds.get(said["kind"], TooLarge)(said["error"])
    if not said.get("done"):  # it was killed: by the system, or by its own limit of time
        raise too_much(name)


def too_much(name: str) -> TooLarge:
    """The refusal of a file that takes more memory or time than there is for one."""
    return TooLarge(f"{name} takes more memory or time to read than there is for one import. Import it in parts.")


def _say(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _limit(max_bytes: int) -> None:
    """Take no more memory and time than this; where a system knows no such limit, the server's own bounds hold."""
    for kind, value in (
        (resource.RLIMIT_AS, _BASE_BYTES + _TIMES_OF_FILE * max_bytes),
        (resource.RLIMIT_CPU, MAX_SECONDS),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))
    with suppress(OSError):
        os.nice(10)  # replies go first


def _write(conversation: ConversationDocument, result: IO[bytes]) -> None:
    head = conversation.model_copy(update={"messages": []})
    messages = conversation.messages
    result.write(f'{{"messages":{len(messages)},"conversation":{head.model_dump_json(exclude_none=True)}}}\n'.encode())
    for message in messages:
        result.write(message.model_dump_json(exclude_none=True).encode() + b"\n")


def main() -> None:
    """The child: the file is the standard input, what is read goes to the descriptor that is named."""
    descriptor, max_bytes, now, name = sys.argv[1:]
    _limit(int(max_bytes))
    shown = -1.0

    def progress(fraction: float) -> None:
        nonlocal shown
        if fraction - shown >= 0.01:
            shown = fraction
            _say(progress=fraction)

    try:
        with os.fdopen(int(descriptor), "wb", closefd=False) as result:
            for conversation in iter_conversations(
                sys.stdin.buffer, name, max_bytes=int(max_bytes), now=datetime.fromisoformat(now), progress=progress
            ):
                _write(conversation, result)
    except AppError as error:
        _say(error=error.message, kind=type(error).__name__)
    except MemoryError:
        _say(error=too_much(name).message, kind="TooLarge")
    except OSError as error:
        reason = f"{name} could not be put aside for reading ({error.strerror}). Nothing was imported."
        _say(error=reason, kind="StorageUnavailable")
    else:
        _say(done=True)


if __name__ == "__main__":
    main()
