"""The files of ``deskmate run``: requests, one a line, and the replies to them, appended as they are complete."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from app.api.openai.batch import MAX_ID_LENGTH
from app.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line of the input.

    Args:
        custom_id: its own; else ``line-N``.
        content: the parsed object; None if the line is not one.
    """

    custom_id: str
    content: dict[str, Any] | None


def read_lines(file: Path) -> Iterator[BatchLine]:
    """Yields the lines of a file of requests; empty ones are skipped.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse(number, line)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error


def read_ids(file: Path) -> set[str]:
    """Returns the ids of the requests in the file.

    Raises:
        InvalidInput: two have the same id, so that a resumed run could not tell them apart; or as :func:`read_lines`.
    """
    if file.exists() and not file.is_file():
        raise InvalidInput(f"{file} is not a regular file. It is read twice, so a pipe or a folder cannot be used.")
    seen: set[str] = set()
    for line in read_lines(file):
        if line.custom_id in seen:
            raise InvalidInput(f"{file} has the custom_id {line.custom_id[:64]!r} twice. Each request needs its own.")
        seen.add(line.custom_id)
    return seen


def _parse(number: int, line: bytes) -> BatchLine:
    try:
        content = orjson.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return BatchLine(f"line-{number}", None)
    custom_id = content.get("custom_id")
    named = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_ID_LENGTH
    return BatchLine(str(custom_id) if named else f"line-{number}", content)


class ReplyFile:
    """The output: one reply a line, each written whole. Only one run at a time may have it.

    A file of an earlier run is continued: its last line is removed if it is torn, and so are the errors, whose requests
    are tried again.

    Raises (on entering):
        InvalidInput: the file cannot be written, is not made of replies, or another run writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.answered: set[str] = set()  #: ids of the requests that have a reply

    def __enter__(self) -> ReplyFile:
        try:
            self._file = self._lock(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))
            self._resume()
        except OSError as error:
            self._close()
            raise InvalidInput(f"{self._path} cannot be written: {error.strerror}.") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            os.fsync(self._file)
        finally:
            self._close()

    def append(self, reply: dict[str, Any]) -> None:
        """Writes a reply as one line, before it returns.

        Raises:
            InvalidInput: it cannot be written, for example because the disk is full.
        """
        line = memoryview(orjson.dumps(reply, option=orjson.OPT_APPEND_NEWLINE))
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise InvalidInput(
                f"{self._path} cannot be written: {error.strerror}. Run the same command again to go on."
            ) from error

    def _lock(self, file: int) -> int:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InvalidInput(f"Another run writes {self._path}. Wait for it, or choose another --output.") from None
        return file

    def _resume(self) -> None:
        """Reads what is there, and rewrites it where something has to go: beside it first, so that nothing is lost."""
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        removes = False
        try:
            with self._path.open("rb") as lines, unfinished.open("wb") as kept:
                for number, line in enumerate(lines, start=1):
                    custom_id = self._answered_id(number, line)
                    if custom_id is None:
                        removes = True
                    else:
                        self.answered.add(custom_id)
                        kept.write(line)
                kept.flush()
                os.fsync(kept.fileno())
            if removes:
                replaced, self._file = self._file, os.open(unfinished, os.O_RDWR | os.O_APPEND)
                self._file = self._lock(self._file)
                unfinished.replace(self._path)
                os.close(replaced)
        finally:
            unfinished.unlink(missing_ok=True)

    def _answered_id(self, number: int, line: bytes) -> str | None:
        """Returns the id of the request that the line answers; None for a torn line and for an error."""
        try:
            reply = orjson.loads(line)
        except ValueError:
            if not line.endswith(b"\n"):
                return None
            reply = None
        if not isinstance(reply, dict) or not isinstance(reply.get("custom_id"), str) or "response" not in reply:
            raise InvalidInput(
                f"{self._path}, line {number}, is not a reply of deskmate run, so the file is left as it is. Choose "
                "another --output."
            )
        response = reply["response"]
        answered = isinstance(response, dict) and response.get("status_code") == 200 and line.endswith(b"\n")
        return reply["custom_id"] if answered else None

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
