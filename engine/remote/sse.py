"""Parses server-sent events (SSE), as the WHATWG's HTML standard defines them (section 9.2.6)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass

MAX_EVENT_BYTES = 8 * 2**20
"""Bytes that one event, or one line of it, may have; more raise :class:`BrokenStreamError`."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenStreamError(Exception):
    """The bytes are not a valid event stream. The message is the end of a sentence about the server."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event, as a browser's ``EventSource`` dispatches it."""

    data: str
    name: str = "message"  #: its ``event`` field
    id: str = ""  #: the last id so far: of this event, or of an earlier one


class EventParser:
    """Parses a stream of bytes, which may be cut anywhere.

    Lines end with a line feed, a carriage return or both. (httpx's ``aiter_lines`` also splits at characters that JSON
    may hold unescaped, such as U+2028.) Comments and unknown fields are skipped; the last event counts only once the
    blank line after it has arrived. Stricter than the standard in one respect: text that is not UTF-8 is an error.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None  #: how long the server asks clients to wait before they reconnect
        self._line: list[bytes] = []  # pieces of the unfinished line
        self._line_bytes = 0
        self._ends_with_cr = False  # a line feed that comes next belongs to the same line end
        self._is_at_start = True
        self._data: list[str] = []
        self._event_bytes = 0
        self._name = ""
        self._id = ""

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Adds bytes and yields the events that they complete. The iterator must be exhausted before the next call.

        Raises:
            BrokenStreamError: an event exceeds :data:`MAX_EVENT_BYTES`, or text is not UTF-8.
        """
        if self._ends_with_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._ends_with_cr = False
        if not chunk:
            return
        lines = chunk.splitlines()  # of bytes: at the three line ends and nowhere else
        rest = b"" if chunk.endswith((b"\n", b"\r")) else lines.pop()
        self._ends_with_cr = chunk.endswith(b"\r")
        if lines:
            if self._line:
                lines[0] = b"".join([*self._line, lines[0]])
                self._line.clear()
                self._line_bytes = 0
            if self._is_at_start:
                self._is_at_start = False
                lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            for line in lines:
                if line:
                    self._read_field(line)
                    continue
                if self._data:
                    event = ServerSentEvent("\n".join(self._data), self._name or "message", self._id)
                    self._data = []
                    yield event
                self._name = ""
                self._event_bytes = 0
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            _check_size(self._line_bytes)

    def _read_field(self, line: bytes) -> None:
        _check_size(len(line))
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._event_bytes += len(line)
            _check_size(self._event_bytes)
            self._data.append(_text(value))
        elif name == b"event":
            self._name = _text(value)
        elif name == b"id":
            if b"\0" not in value:
                self._id = _text(value)
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self.retry_ms = int(value)


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[ServerSentEvent]:
    """Yields the complete events of a stream. Raises as :meth:`EventParser.feed`."""
    parser = EventParser()
    async for chunk in chunks:
        for event in parser.feed(chunk):
            yield event


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_EVENT_BYTES:
        raise BrokenStreamError(f"it sent an event longer than {MAX_EVENT_BYTES} bytes")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BrokenStreamError("it sent text that is not UTF-8") from error
