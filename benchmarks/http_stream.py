"""Minimal HTTP client for server-sent events.

A load test shares the machine with the server that it measures, so the client must compute little per token.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

from engine.remote.sse import MAX_EVENT_BYTES, BrokenStreamError, read_events


class HttpError(Exception):
    """The server's answer is not a complete event stream."""


async def post_events(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> AsyncGenerator[str]:
    """Posts JSON on a connection of its own and yields the data of each event of the answer as it arrives.

    Raises:
        HttpError: a status other than 200, with the server's text; or an incomplete stream.
        OSError: the connection failed or broke.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context() if secure else None
    reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=MAX_EVENT_BYTES)
    try:
        payload = json.dumps(body).encode()
        lines = [
            f"POST {parts.path or '/'} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Connection: close",
            f"Content-Length: {len(payload)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
        await writer.drain()
        status = (await reader.readline()).decode("latin-1").split(maxsplit=2)
        if len(status) < 2:
            raise HttpError("the server closed the connection without an answer")
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            chunked |= name.lower() == "transfer-encoding" and "chunked" in value.lower()
        pieces = _chunks(reader) if chunked else _plain(reader)
        if status[1] != "200":
            said = b"".join([piece async for piece in pieces]).decode(errors="replace")
            raise HttpError(f"{status[1]}: {' '.join(said.split())[:300]}")
        async for event in read_events(pieces):
            yield event.data
    except BrokenStreamError as error:
        raise HttpError(str(error)) from error
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while True:
        size = await reader.readline()
        try:
            length = int(size.split(b";")[0], 16)
        except ValueError:
            raise HttpError("the stream broke off") from None
        if length == 0:
            return
        try:
            yield (await reader.readexactly(length + 2))[:-2]
        except asyncio.IncompleteReadError:
            raise HttpError("the stream broke off") from None


async def _plain(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while piece := await reader.read(65536):
        yield piece
