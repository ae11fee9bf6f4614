"""Server-sent events out of bytes, for streams of JSON."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

MAX_EVENT_BYTES = 8 * 2**20
_LINE_END = re.compile(rb"\r\n|\n|\r")


class BrokenStreamError(Exception):
    """The bytes are no stream of events."""


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """The data of each event, as it is whole. A half event at the end is none.

    Lines end as the standard has it. httpx's own lines also end at characters that JSON holds unescaped, such as
    U+2028.

    Raises:
        BrokenStreamError: an event without an end, or text that is not UTF-8.
    """
    rest = b""
    data: list[str] = []
    async for chunk in chunks:
        *lines, rest = _LINE_END.split(rest + chunk)
        if rest == b"" and chunk.endswith(b"\r"):
            # Its line feed may come with the next chunk, where it would look like an empty line.
            rest = lines.pop() + b"\r"
        for line in lines:
            if line == b"":
                if data:
                    yield "\n".join(data)
                    data = []
            elif line.startswith(b"data:"):
                data.append(_text(line[5:].removeprefix(b" ")))
        if len(rest) > MAX_EVENT_BYTES:
            raise BrokenStreamError(f"it sent a line longer than {MAX_EVENT_BYTES} bytes")


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BrokenStreamError("it sent text that is not UTF-8") from error
