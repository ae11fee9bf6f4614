"""Simulates agents at work: one reads the lists of cases and single cases, one asks for drafts of replies."""

from __future__ import annotations

import asyncio
import json
import random
from time import perf_counter
from typing import Any

from benchmarks.live.browser import Browser
from benchmarks.live.proxy import request_bytes
from engine.remote.sse import EventParser

PAGE_SECONDS = 0.25
"""Between two steps of the agent who reads."""
VIEWS = ("all", "unassigned", "bot", "mine")


class ReadingAgent:
    """Loads a list and then one of its cases, again and again, with the list's stream open as in the page."""

    def __init__(self, browser: Browser, dice: random.Random) -> None:
        self._browser = browser
        self._dice = dice
        self.seconds: dict[str, list[float]] = {"page": [], "list": [], "case": []}  #: by request

    async def run(self, port: int) -> None:
        """Works until cancelled."""
        _reader, writer = await _open_stream(self._browser, port, "/api/cases/events")
        draining = asyncio.create_task(_drain(_reader))
        try:
            while True:
                await self._get("page", "/desk/cases")
                for view in VIEWS:
                    rows = json.loads(await self._get("list", f"/api/cases?view={view}"))["cases"]
                    if rows:
                        await self._get("case", f"/api/cases/{self._dice.choice(rows)['id']}")
        finally:
            draining.cancel()
            writer.close()

    async def _get(self, name: str, path: str) -> bytes:
        began = perf_counter()
        said = await self._browser.get(path)
        self.seconds[name].append(perf_counter() - began)
        await asyncio.sleep(PAGE_SECONDS)
        return said


class DraftingAgent:
    """Asks for a draft of a reply now and then, in one case."""

    def __init__(self, browser: Browser, port: int, case_id: str) -> None:
        self._browser = browser
        self._port = port
        self._case_id = case_id
        self._number = 0
        self.first_texts: list[float] = []  #: seconds to the first text

    async def run(self, every: float) -> None:
        """Asks until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(every)

    async def ask(self) -> None:
        """Asks for one draft and reads it to its end."""
        self._number += 1  # no two prompts are the same: the cache has none of them
        wanted = {"text": f"Customer {self._number} asks: how do I back up my conversations?", "stream": True}
        began, has_text = perf_counter(), False
        reader, writer = await _open_stream(
            self._browser, self._port, f"/api/cases/{self._case_id}/draft", json.dumps(wanted).encode()
        )
        try:
            parser = EventParser()
            while data := await reader.read(65536):
                for event in parser.feed(data):
                    if event.name == "text" and not has_text:
                        has_text = True
                        self.first_texts.append(perf_counter() - began)
                    if event.name in ("end", "error"):
                        self._check(event.name, json.loads(event.data))
                        return
        finally:
            writer.close()
        raise RuntimeError("a draft has no end")

    def _check(self, name: str, data: dict[str, Any]) -> None:
        if name == "error" or not data["text"]:
            raise RuntimeError(f"no draft: {data.get('message') or data.get('notice')}")


async def _open_stream(
    browser: Browser, port: int, path: str, body: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a stream of events; returns it after its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    headers = (
        dict(browser.headers) | {"Accept": "text/event-stream"} | ({"Content-Type": "application/json"} if body else {})
    )
    writer.write(request_bytes(port, "POST" if body else "GET", path, body, headers))
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"{path}: {head.decode()}{(await reader.read(2000)).decode(errors='replace')}")
    return reader, writer


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
