"""Simulates a user who reads replies during an attack, in a process of its own, so that only the server delays it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter

import httpx

from engine.remote.sse import read_events

REPLY_TOKENS = 400
ASK_EVERY_SECONDS = 0.5


@dataclass
class VictimTimings:
    """A victim's latencies, in seconds."""

    gaps: list[float] = field(default_factory=list)  #: between one token of a reply and the next
    requests: list[float] = field(default_factory=list)  #: of small requests
    sends: list[float] = field(default_factory=list)  #: from sending a message to its acknowledgement
    failures: list[str] = field(default_factory=list)


class Victim:
    """Reads replies, sends messages and lists conversations until it is stopped.

    Args:
        url: the server's URL.
        headers: headers that identify the user.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers

    @asynccontextmanager
    async def running(self) -> AsyncIterator[VictimTimings]:
        """Runs the victim within the context; the timings are complete when the block has ended."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_run_process, args=(theirs, self._url, self._headers), daemon=True)
        process.start()
        await asyncio.to_thread(ours.recv)  # the victim has its first token
        experience = VictimTimings()
        try:
            yield experience
        finally:
            ours.send(None)
            found: VictimTimings = await asyncio.to_thread(ours.recv)
            vars(experience).update(vars(found))
            await asyncio.to_thread(process.join)


def _run_process(connection: Connection, url: str, headers: dict[str, str]) -> None:
    connection.send(asyncio.run(_run_victim(connection, url, headers)))


async def _run_victim(connection: Connection, url: str, headers: dict[str, str]) -> VictimTimings:
    experience = VictimTimings()
    begun = asyncio.Event()
    fresh = httpx.Limits(max_keepalive_connections=0)  # a new connection per request, like new visitors of the page
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=fresh) as visits,
    ):

        async def read() -> None:
            while True:
                body = {
                    "model": "guide",
                    "messages": [{"role": "user", "content": "Tell me what you can do, at length."}],
                    "stream": True,
                    "max_tokens": REPLY_TOKENS,
                    "ignore_eos": True,
                }
                try:
                    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                        if answer.status_code != 200:
                            raise httpx.HTTPError(f"{answer.status_code}: {(await answer.aread()).decode()[:200]}")
                        last = None
                        async for event in read_events(answer.aiter_bytes()):
                            if '"content"' in event.data:
                                now = perf_counter()
                                if last is not None:
                                    experience.gaps.append(now - last)
                                last = now
                                begun.set()
                except httpx.HTTPError as error:
                    experience.failures.append(f"reply: {error!r}")
                    await asyncio.sleep(0.2)

        async def ask() -> None:
            while True:
                try:
                    began = perf_counter()
                    (await visits.get("/api/conversations", params={"limit": 1})).raise_for_status()
                    experience.requests.append(perf_counter() - began)
                    began = perf_counter()
                    sent = await visits.post("/api/turns", json={"text": "hello", "settings": {"max_tokens": 1}})
                    if sent.status_code == 201:
                        experience.sends.append(perf_counter() - began)
                    else:
                        experience.failures.append(f"send: {sent.status_code} {sent.text[:200]}")
                except httpx.HTTPError as error:
                    experience.failures.append(f"request: {error!r}")
                await asyncio.sleep(ASK_EVERY_SECONDS)

        tasks = [asyncio.create_task(read()), asyncio.create_task(ask())]
        await begun.wait()
        connection.send(None)
        await asyncio.to_thread(connection.recv)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return experience
