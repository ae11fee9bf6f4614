"""Parses a large file in a separate process with bounded memory.

A parser holds the GIL for a whole value and takes up to twenty times a file's size in memory: in the server's own
process, a file of 200 MiB could stop every reply for seconds and exhaust the memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import IO

from app.concurrency.limited_process import ProcessFailed, limit_this_process, progress_sender, run_limited, send
from app.domain.conversation_document import ConversationDocument, MessageDocument
from app.errors import AppError, StorageUnavailable, TooLarge
from app.transfer.files import MIB
from app.transfer.reading import Progress, iter_conversations

MAX_SECONDS = 600  # of CPU time
#: Kills a process that neither reads nor gets CPU time, since other imports would wait for it forever.
MAX_WALL_SECONDS = 900
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
    numbers = map(str, (max_bytes, max_message_bytes, max_memory_bytes))
    try:
        ended = await run_limited(
            __name__,
            (*numbers, now.isoformat(), name),
            source=source,
            result=result,
            errors=errors,
            progress=progress,
        )
    except ProcessFailed as error:
        raise _failed(name) from error
    ended.raise_reported()
    if not ended.is_done:
        raise too_much(name) if ended.exceeded_a_limit else _failed(name)


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
    limit_this_process(max_memory_bytes=max_memory_bytes, max_seconds=MAX_SECONDS)
    with suppress(OSError):
        os.nice(10)  # replies have priority
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as result:
            for conversation in iter_conversations(
                sys.stdin.buffer,
                name,
                max_bytes=max_bytes,
                max_message_bytes=max_message_bytes,
                now=datetime.fromisoformat(now),
                progress=progress_sender(),
            ):
                _write(conversation, result)
    except AppError as error:
        send(error=error.message, kind=type(error).__name__)
    except MemoryError:
        send(error=too_much(name).message, kind="TooLarge")
    except OSError as error:
        send(error=_no_room(name, error).message, kind="StorageUnavailable")
    else:
        send(done=True)


if __name__ == "__main__":
    main()
