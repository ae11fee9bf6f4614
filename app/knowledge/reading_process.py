"""Reads and cuts a document in a process of its own, with limits: a file may be made to exhaust who reads it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

from app.concurrency.fork_host import ForkHost
from app.concurrency.limited_process import (
    ProcessFailed,
    child_environment,
    cpu_seconds,
    limit_this_process,
    progress_sender,
    run_forked,
    run_limited,
    send,
)
from app.domain.knowledge import EntryIndex, NewChunk
from app.errors import AppError, StorageUnavailable, TooLarge
from app.knowledge.chunking import ChunkLimits, TooManyChunks, cut
from app.knowledge.readers import read_document
from app.knowledge.readers.blocks import Progress
from app.store.knowledge.entry_batches import EntryBatch, entry_batches, stored_title

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_SECONDS = 600  # of CPU time
MAX_IDLE_SECONDS = 1800
"""In which the process gets no CPU time. At the lowest priority, a busy machine leaves it little, which is no fault."""
_BASE_BYTES = 1024 * 2**20  # the interpreter, the packages and a large page
_TIMES_OF_FILE = 8  # multiple of the file size: the file, its tree and its text
MAX_RESULT_BYTES = 256 * 2**20
"""Text and entries of a document: a text of the permitted size takes a fifth to a half of it."""
_MAX_LINE_BYTES = 16 * 2**20  # a batch has less than a tenth

_IMPORTS = {".html": ("trafilatura",), ".htm": ("trafilatura",), ".pdf": ("pypdf",), ".docx": ("docx",)}
"""What reading a file takes a second to import."""
_tokenizers: dict[str, Tokenizer] = {}


class ReaderEnded(AppError):
    """The process that reads documents failed: by the file, or because the machine had no memory left."""


class _Files(TypedDict):
    source: IO[bytes]
    result: IO[bytes]
    errors: IO[bytes]
    started: Callable[[int], None]


class CutDocument:
    """A document that was read: its text, and its chunks with their entries in a temporary file, deleted on closing."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        """Reads the text.

        Args:
            name: of the document's file, for errors.

        Raises:
            ReaderEnded: the file is not what the process that reads writes.
        """
        self._file = file
        self._name = name
        file.seek(0)
        try:
            title, length = json.loads(file.readline(_MAX_LINE_BYTES))
            self.title, self.text = str(title), file.read(int(length)).decode()
        except (ValueError, TypeError) as error:
            raise _failed(name) from error

    def batches(self) -> Iterator[EntryBatch]:
        """Yields the chunks once, a batch in memory at a time. Raises as above."""
        while line := self._file.readline(_MAX_LINE_BYTES):
            try:
                yield EntryBatch.from_json(line)
            except (ValueError, TypeError) as error:
                raise _failed(self._name) from error

    def close(self) -> None:
        self._file.close()


def reading_host(tokenizer: Path) -> ForkHost:
    """A host whose children read documents. It has what they need, and spares each a fifth of a second."""
    return ForkHost(__name__, (str(tokenizer),), child_environment())


async def read_isolated(
    data: bytes,
    name: str,
    tokenizer: Path,
    progress: Progress = lambda _: None,
    host: ForkHost | None = None,
    index: EntryIndex | None = None,
) -> CutDocument:
    """Reads a document and cuts it into chunks, whose tokens the tokenizer of this ``tokenizer.json`` counts.

    Args:
        host: None starts a process of its own.
        index: of the chunks' entries; None: only the text is wanted.

    Raises:
        BrokenFile: as :func:`app.knowledge.readers.read_document`.
        TooLarge: as there, or reading exceeds the memory or time limit, or there are too many chunks or too much text.
        StorageUnavailable: there is no disk space for the file or the result.
        ReaderEnded: the process failed; see the log. That may be the file's fault, or not.
    """
    max_memory_bytes = _BASE_BYTES + _TIMES_OF_FILE * len(data)
    try:
        with ExitStack() as on_failure, tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
            result = on_failure.enter_context(tempfile.TemporaryFile())
            await asyncio.to_thread(source.write, data)
            source.seek(0)
            async with _timeout_when_stuck() as started:
                wanted = (index.collection_id, index.dialect) if index else ("", "")
                arguments = (str(max_memory_bytes), str(tokenizer), name, *wanted)
                files: _Files = {"source": source, "result": result, "errors": errors, "started": started}
                if host is None:
                    ended = await run_limited(__name__, arguments, **files, progress=progress)
                else:
                    imports = _IMPORTS.get(Path(name).suffix.lower(), ())
                    ended = await run_forked(host, arguments, imports=imports, **files, progress=progress)
            if ended.is_done:
                if os.fstat(result.fileno()).st_size > MAX_RESULT_BYTES:
                    raise _too_much_text(name)
                document = await asyncio.to_thread(CutDocument, result, name)
                on_failure.pop_all()
                return document
    except (TimeoutError, ProcessFailed) as error:
        raise _failed(name) from error
    except OSError as error:
        raise _no_room(name, error) from error
    ended.raise_reported()
    raise _too_much(name) if ended.exceeded_a_limit and not ended.was_killed else _failed(name)


@asynccontextmanager
async def _timeout_when_stuck() -> AsyncIterator[Callable[[int], None]]:
    """Limits the time in which a process gets no CPU time. Yields a function that takes its id.

    Raises:
        TimeoutError: it is stuck, was not started in this time, or the system does not tell its CPU time.
    """
    loop = asyncio.get_running_loop()
    pid: int | None = None
    used = 0.0
    looking: asyncio.TimerHandle

    def started(id: int) -> None:
        nonlocal pid
        pid = id

    def look(limit: asyncio.Timeout) -> None:
        nonlocal used, looking
        now = cpu_seconds(pid) if pid is not None else None
        if now is not None and now > used:
            used = now
            limit.reschedule(loop.time() + MAX_IDLE_SECONDS)
        looking = loop.call_later(MAX_IDLE_SECONDS / 10, look, limit)

    async with asyncio.timeout(MAX_IDLE_SECONDS) as limit:
        looking = loop.call_later(MAX_IDLE_SECONDS / 10, look, limit)
        try:
            yield started
        finally:
            looking.cancel()


def _too_much(name: str) -> TooLarge:
    return TooLarge(f"{name} takes more memory or time to read than there is for one document. Split it.")


def _too_much_text(name: str) -> TooLarge:
    return TooLarge(
        f"{name} has more text below its headings than there is room for: each passage is stored with all headings "
        f"above it, and together they take more than {MAX_RESULT_BYTES // 2**20} MiB. Split it."
    )


def _too_many_chunks(name: str) -> TooLarge:
    return TooLarge(
        f"{name} has more than {ChunkLimits().max_chunks:,} passages, which is more than a document may have; in a CSV "
        "each row is one. Split it."
    )


def _failed(name: str) -> ReaderEnded:
    return ReaderEnded(
        f"{name} could not be read: the process that reads documents failed. Try again; if it fails again, ask an "
        "admin to look into the server's log."
    )


def _no_room(name: str, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(f"{name} could not be read: a temporary file could not be written ({error.strerror}).")


def _give_way() -> None:
    """Runs only where nothing else wants the processor: replies have priority."""
    with suppress(OSError, AttributeError):  # macOS has no such policy
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return
    with suppress(OSError):
        os.nice(19)


def prepare(tokenizer: str) -> None:
    """The host of children: imports what they need."""
    _give_way()
    with suppress(Exception):  # each child says so
        _tokenizer(tokenizer)
    import markdown_it  # noqa: F401


def _tokenizer(path: str) -> Tokenizer:
    if path not in _tokenizers:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads take address space, which is limited
        from tokenizers import Tokenizer

        _tokenizers[path] = Tokenizer.from_file(path)
    return _tokenizers[path]


def main() -> None:
    """The child process: reads the file from standard input and writes the result to the given descriptor."""
    descriptor, max_memory_bytes, tokenizer_path, name, collection_id, dialect = sys.argv[1:]
    _give_way()
    limit_this_process(max_memory_bytes=int(max_memory_bytes), max_seconds=MAX_SECONDS)
    progress = progress_sender()
    try:
        tokenizer = _tokenizer(tokenizer_path)
        document = read_document(sys.stdin.buffer.read(), name, progress=lambda fraction: progress(0.9 * fraction))
        text, chunks = cut(document.blocks, lambda part: len(tokenizer.encode(part, add_special_tokens=False)))
        title = stored_title(document.title, name)
        encoded = text.encode()
        lines: Iterable[bytes] = [json.dumps([title, len(encoded)]).encode() + b"\n", encoded]
        if collection_id:
            rows = [NewChunk(heading=one.heading, start=one.start, end=one.end, tokens=one.tokens) for one in chunks]
            batches = entry_batches(EntryIndex(collection_id, dialect), title, text, rows)
            lines = chain(lines, (batch.to_json().encode() + b"\n" for batch in batches))
        with os.fdopen(int(descriptor), "wb", closefd=False) as result:
            for line in lines:
                result.write(line)
                if result.tell() > MAX_RESULT_BYTES:
                    raise _too_much_text(name)
    except TooManyChunks:
        send(error=_too_many_chunks(name).message, kind="TooLarge")
    except AppError as error:
        send(error=error.message, kind=type(error).__name__)
    except MemoryError:
        send(error=_too_much(name).message, kind="TooLarge")
    except OSError as error:
        send(error=_no_room(name, error).message, kind="StorageUnavailable")
    else:
        send(done=True)


if __name__ == "__main__":
    main()
