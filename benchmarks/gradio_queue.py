"""Measures how long an event in Gradio's queue waits for its listener, and what an idle queue costs.

    .venv/bin/python -m benchmarks.gradio_queue             # about five minutes
    .venv/bin/python -m benchmarks.gradio_queue --browser   # also clicks a button in Chromium

Calls of ``/chat`` go through the queue; the page's own listeners do not. Three servers run side by side, each the whole
application with a scripted engine and one more button, whose listener is queued and returns the time at which it was
called: with Gradio's own polling, with a polling interval of half a second, and with
``app.ui.gradio_patches.wake_queue``. Clients join their queues in turns, at random times, so that other programs on the
machine disturb all alike. Prints medians and 95th percentiles of the time from the request (or the click) to the call
of the listener and to its result, then each server's CPU time while all three are idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.quantiles import quantile

MODES = ("Gradio's polling", "every 0.5 s", "woken")
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
Measurement = Callable[[], Awaitable[tuple[float, float]]]
"""Returns the seconds from a join to the call of the listener, and to its result."""


def _serve(mode: str, data_dir: str, ready: Connection) -> None:
    """Runs the application in this process, and sends its port and the listener's index when it is ready."""
    if mode != "woken":
        os.environ["DESKMATE_GRADIO_PATCHES"] = "off"
    import gradio as gr

    from app.server.serving import bind, serve
    from app.services.container import Services
    from app.settings import AppSettings
    from app.ui import mount
    from engine import ChatEngine
    from testing.databases import create_migrated_file
    from testing.fake_engine import FakeEngine

    build, listeners = mount._queued_page, []

    def page_with_listener(services: Callable[[], Services]) -> gr.Blocks:
        page = build(services)
        with page:
            button, called = gr.Button("Measure", elem_id="measure"), gr.Textbox(elem_id="called")
            button.click(lambda: str(time.monotonic()), None, called, show_progress="hidden", trigger_mode="multiple")
        listeners.append(max(page.fns))
        if mode == "every 0.5 s":
            page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = 0.5
        return page

    mount._queued_page = page_with_listener
    listener: socket.socket = bind("127.0.0.1", 0)
    settings = AppSettings(_env_file=None, data_dir=Path(data_dir), log_level="warning")
    create_migrated_file(settings.data_dir / "deskmate.db")

    @asynccontextmanager
    async def engine() -> AsyncIterator[ChatEngine]:
        yield FakeEngine()

    def on_ready(_path: str | None) -> None:
        ready.send((listener.getsockname()[1], listeners[0], os.getpid()))

    asyncio.run(serve(settings, engine(), listener, on_ready))


def joins(url: str, listener: int, http: httpx.AsyncClient) -> Measurement:
    """Measures joins of the queue through HTTP, as Gradio's client does them: join, then read the session's events."""

    async def measure() -> tuple[float, float]:
        session = uuid4().hex
        body = {"data": [], "fn_index": listener, "session_hash": session, "event_data": None, "trigger_id": None}
        begun = time.monotonic()
        (await http.post(f"{url}/gradio_api/queue/join", json=body)).raise_for_status()
        async with http.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}) as events:
            async for line in events.aiter_lines():
                event: dict[str, Any] = json.loads(line.removeprefix("data: ")) if line else {}
                if event.get("msg") == "process_completed":
                    ended = time.monotonic()
                    assert event["success"], event
                    return float(event["output"]["data"][0]) - begun, ended - begun
        raise RuntimeError("The stream ended without a result.")

    return measure


@asynccontextmanager
async def clicks(urls: Sequence[str]) -> AsyncIterator[list[Measurement]]:
    """Measures clicks on the button in Chromium, a tab for each server: until the result is on the page."""
    from playwright.async_api import Page, async_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)))
    script = """() => new Promise((resolve) => {
      const field = document.querySelector("#called textarea, #called input");
      const before = field.value, begun = performance.now(), clicked = performance.timeOrigin + begun;
      const look = () => {
        if (field.value === before) return setTimeout(look, 1);
        resolve([clicked / 1000, (performance.now() - begun) / 1000, Number(field.value)]);
      };
      document.querySelector("#measure").click();
      look();
    })"""

    def measurement(page: Page) -> Measurement:
        async def measure() -> tuple[float, float]:
            offset = time.time() - time.monotonic()  # the page knows the time of day only
            clicked, took, called = await page.evaluate(script)
            return called + offset - clicked, took

        return measure

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        measurements = []
        for url in urls:
            page = await (await browser.new_context()).new_page()
            await page.goto(url)
            await page.wait_for_selector("html.dm-ready", timeout=120_000)
            measurements.append(measurement(page))
        yield measurements
        await browser.close()


async def measure_in_turns(name: str, measurements: Sequence[Measurement], count: int) -> None:
    """Measures ``count`` times with each mode, in turns, and prints a line for each."""
    found: list[list[tuple[float, float]]] = [[] for _ in measurements]
    for at in range(count + 3):
        for measure, times in zip(measurements, found, strict=True):
            await asyncio.sleep(random.uniform(0, 0.05))
            took = await measure()
            if at >= 3:  # the first connect, and import modules
                times.append(took)
    for mode, times in zip(MODES, found, strict=True):
        called, ended = zip(*times, strict=True)
        figures = [1000 * quantile(of, share) for of in (called, ended) for share in (0.5, 0.95)]
        print(f"{name:8} {mode:18} {count:6}" + "".join(f"{value:9.1f} ms" for value in figures), flush=True)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_idle(pids: Sequence[int], seconds: float) -> None:
    before, begun = [_cpu_seconds(pid) for pid in pids], time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - begun
    for mode, pid, cpu in zip(MODES, pids, before, strict=True):
        print(f"idle     {mode:18} {100 * (_cpu_seconds(pid) - cpu) / took:6.2f} % of a core", flush=True)


async def run(count: int, idle_seconds: float, in_browser: bool, servers: Sequence[tuple[int, int, int]]) -> None:
    urls = [f"http://127.0.0.1:{port}" for port, _, _ in servers]
    columns = ("call, p50", "p95", "result, p50", "p95")
    print(f"{'':8} {'queue':18} {'events':>6}" + "".join(f"{column:>12}" for column in columns))
    async with httpx.AsyncClient(timeout=60) as http:
        at_http = [joins(url, index, http) for url, (_, index, _) in zip(urls, servers, strict=True)]
        await measure_in_turns("HTTP", at_http, count)
    if in_browser:
        async with clicks(urls) as in_tabs:
            await measure_in_turns("browser", in_tabs, count)
    await asyncio.sleep(5)  # for what the last events have left to do
    await measure_idle([pid for _, _, pid in servers], idle_seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="events of each kind of queue")
    parser.add_argument("--idle-seconds", type=float, default=30)
    parser.add_argument("--browser", action="store_true", help="also measure clicks in Chromium")
    args = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes, ends = [], []
        for at, mode in enumerate(MODES):
            data_dir = Path(folder) / str(at)
            data_dir.mkdir()
            here, there = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_serve, args=(mode, str(data_dir), there))
            process.start()
            there.close()
            processes.append(process)
            ends.append(here)
        try:
            servers = [end.recv() for end in ends]
            asyncio.run(run(args.count, args.idle_seconds, args.browser, servers))
        finally:
            for process in processes:
                process.terminate()
                process.join()


if __name__ == "__main__":
    main()
