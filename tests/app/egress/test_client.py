"""Responses of other servers that would fill the memory."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from app.egress import client
from app.egress.client import BodyTooLargeError, checked_client
from app.egress.policy import EgressPolicy


@asynccontextmanager
async def server(head: str, body: bytes) -> AsyncGenerator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert b"accept-encoding: identity" in asked.lower()
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)
        writer.close()

    served = await asyncio.start_server(answer, "127.0.0.1")
    async with served:
        yield f"http://127.0.0.1:{served.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("head", ["Content-Type: application/json", "X: y"])
async def test_a_response_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 2**20)
    async with checked_client(EgressPolicy.allowing(["127.0.0.1"])) as http:
        async with server(head, 2**20 * b"x") as url:
            assert len((await http.get(url)).content) == 2**20
        async with server(head, 2**20 * b"x" + b"y") as url:
            with pytest.raises(BodyTooLargeError):
                await http.get(url)


async def test_a_stream_of_events_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY_BYTES", 10)
    allowed = EgressPolicy.allowing(["127.0.0.1"])
    async with checked_client(allowed) as http, server("Content-Type: text/event-stream", 100 * b"x") as url:
        assert len((await http.get(url)).content) == 100


async def test_a_compressed_response_is_not_unpacked() -> None:
    body = gzip.compress(2**20 * b"x")
    allowed = EgressPolicy.allowing(["127.0.0.1"])
    async with checked_client(allowed) as http, server("Content-Encoding: gzip", body) as url:
        assert (await http.get(url)).content == body
