"""Reads and cuts a document in a process of its own, with limits: a file may be made to exhaust who reads it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

from app.concurrency.fork_host import ForkHost
from app.concurrency.limited_process import (
    ProcessFailed,
    child_environment,
    limit_this_process,
    progress_sender,
    run_forked,
    run_limited,
    send,
)
from app.errors import AppError, StorageUnavailable, TooLarge
from app.knowledge.chunking import Chunk, cut
from app.knowledge.readers import read_document
from app.knowledge.readers.blocks import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_SECONDS = 600  # of CPU time
MAX_WALL_SECONDS = 1800  # at the lowest priority, a busy machine leaves a process little time
_BASE_BYTES = 1024 * 2**20  # the interpreter, the packages and a large page
_TIMES_OF_FILE = 8  # multiple of the file size: the file, its tree and its text


_IMPORTS = {".html": ("trafilatura",), ".htm": ("trafilatura",), ".pdf": ("pypdf",), ".docx": ("docx",)}
"""What reading a file takes a second to import."""
_tokenizers: dict[str, Tokenizer] = {}


class _Files(TypedDict):
    source: IO[bytes]
    result: IO[bytes]
    errors: IO[bytes]


@dataclass(frozen=True, slots=True)
class CutDocument:
    title: str
    text: str
    chunks: list[Chunk]


def reading_host(tokenizer: Path) -> ForkHost:
    """A host whose children read documents. It has what they need, and spares each a fifth of a second."""
    return ForkHost(__name__, (str(tokenizer),), child_environment())


async def read_isolated(
    data: bytes, name: str, tokenizer: Path, progress: Progress = lambda _: None, host: ForkHost | None = None
) -> CutDocument:
    """Reads a document and cuts it into chunks, whose tokens the tokenizer of this ``tokenizer.json`` counts.

    Args:
        host: None starts a process of its own.

    Raises:
        BrokenFile: as :func:`app.knowledge.readers.read_document`.
        TooLarge: as there, or reading exceeds the memory or time limit.
        StorageUnavailable: there is no disk space for the file or the result.
        AppError: the process failed for a reason other than the file; see the log.
    """
    max_memory_bytes = _BASE_BYTES + _TIMES_OF_FILE * len(data)
    try:
        with (
            tempfile.TemporaryFile() as source,
            tempfile.TemporaryFile() as result,
            tempfile.TemporaryFile() as errors,
        ):
            await asyncio.to_thread(source.write, data)
            source.seek(0)
            async with asyncio.timeout(MAX_WALL_SECONDS):
                arguments = (str(max_memory_bytes), str(tokenizer), name)
                files: _Files = {"source": source, "result": result, "errors": errors}
                if host is None:
                    ended = await run_limited(__name__, arguments, **files, progress=progress)
                else:
                    imports = _IMPORTS.get(Path(name).suffix.lower(), ())
                    ended = await run_forked(host, arguments, imports=imports, **files, progress=progress)
            if ended.is_done:
                result.seek(0)
                return await asyncio.to_thread(_parse, result.read())
    except TimeoutError as error:
        raise _too_much(name) from error
    except ProcessFailed as error:
        raise _failed(name) from error
    except OSError as error:
        raise _no_room(name, error) from error
    ended.raise_reported()
    raise _too_much(name) if ended.exceeded_a_limit else _failed(name)


def _parse(written: bytes) -> CutDocument:
    document = json.loads(written)
    return CutDocument(document["title"], document["text"], [Chunk(*chunk) for chunk in document["chunks"]])


def _too_much(name: str) -> TooLarge:
    return TooLarge(f"{name} takes more memory or time to read than there is for one document. Split it.")


def _failed(name: str) -> AppError:
    return AppError(
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
    descriptor, max_memory_bytes, tokenizer_path, name = sys.argv[1:]
    _give_way()
    limit_this_process(max_memory_bytes=int(max_memory_bytes), max_seconds=MAX_SECONDS)
    progress = progress_sender()
    try:
        tokenizer = _tokenizer(tokenizer_path)
        document = read_document(sys.stdin.buffer.read(), name, progress=lambda fraction: progress(0.9 * fraction))
        text, chunks = cut(document.blocks, lambda part: len(tokenizer.encode(part, add_special_tokens=False)))
        rows = [(chunk.heading, chunk.start, chunk.end, chunk.tokens) for chunk in chunks]
        with os.fdopen(int(descriptor), "w", encoding="utf-8", closefd=False) as result:
            json.dump({"title": document.title, "text": text, "chunks": rows}, result)
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
