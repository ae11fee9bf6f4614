"""Documents and questions over HTTP: what benchmarks of replies with sources send to a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

from benchmarks.live.server import LiveServer
from testing.json_events import read_json_events


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A message that was answered."""

    conversation_id: str
    reply: dict[str, Any]  #: the message, as ``GET /api/conversations/{id}`` has it
    first_text_s: float  #: seconds from sending the message to the reply's first text


@asynccontextmanager
async def signed_in(server: LiveServer) -> AsyncGenerator[httpx.AsyncClient]:
    """Yields an HTTP client of a new user."""
    (browser,) = await server.sign_up(1)
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, headers=browser.headers, timeout=600, trust_env=False) as http:
        yield http


async def add_documents(http: httpx.AsyncClient, files: Iterable[tuple[str, bytes]]) -> str:
    """Adds documents to the first collection and waits until all are read. Returns the collection's id."""
    collection: str = (await http.get("/api/kb/collections")).json()["collections"][0]["id"]
    for name, data in files:
        (await http.post("/api/kb/documents", files={"file": (name, data)})).raise_for_status()
    while any(one["state"] != "ready" for one in (await http.get("/api/kb/documents")).json()["documents"]):  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return collection


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> AskedTurn:
    """Sends a message and reads the reply to its end.

    Raises:
        RuntimeError: the reply has no text, or is not complete.
    """
    sent = perf_counter()
    answer = await http.post("/api/turns", json=body)
    answer.raise_for_status()
    turn = answer.json()
    first: float | None = None
    async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as response:
        async for event in read_json_events(response.aiter_bytes()):
            if first is None and event.data.get("text"):
                first = perf_counter() - sent
    conversation = (await http.get(f"/api/conversations/{turn['conversation_id']}")).json()
    reply = conversation["messages"][-1]
    if first is None or reply["status"] != "complete":
        raise RuntimeError(f"a reply is not complete: {reply}")
    return AskedTurn(turn["conversation_id"], reply, first)
