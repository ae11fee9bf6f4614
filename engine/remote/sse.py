"""Parses server-sent events (SSE) from a byte stream of JSON events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

MAX_LINE_BYTES = 8 * 2**20
"""Bytes that an unfinished line may hold; more raise :class:`BrokenStreamError`."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


class BrokenStreamError(Exception):
    """The bytes are not a valid event stream. The message is the end of a sentence about the server."""


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yields the data of each complete event. Drops an incomplete event at the end of the stream.

    Lines end as the SSE standard says. httpx's ``aiter_lines`` also splits at characters that JSON may hold unescaped,
    such as U+2028.

    Raises:
        BrokenStreamError: an unfinished line exceeds :data:`MAX_LINE_BYTES`, or text is not UTF-8.
    """
    rest = b""
    data: list[str] = []
    async for chunk in chunks:
        *lines, rest = _LINE_END.split(rest + chunk)
        if rest == b"" and chunk.endswith(b"\r"):
            # The line feed after it may come with the next chunk, where it would look like an empty line.
            rest = lines.pop() + b"\r"
        for line in lines:
            if line == b"":
                if data:
                    yield "\n".join(data)
                    data = []
            elif line.startswith(b"data:"):
                data.append(_text(line[5:].removeprefix(b" ")))
        if len(rest) > MAX_LINE_BYTES:
            raise BrokenStreamError(f"it sent a line longer than {MAX_LINE_BYTES} bytes")


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BrokenStreamError("it sent text that is not UTF-8") from error
