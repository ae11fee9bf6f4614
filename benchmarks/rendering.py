"""Measures the chat page in Chromium: frames while a long reply streams, layout shift, and a first visit's bytes.

    .venv/bin/python -m benchmarks.rendering --repeats 3

A scripted model server streams replies of 100 KB, in pieces of 60 characters: Markdown with formulas, code of several
languages, tables and lists; one code block; one list; one table; one paragraph. The server and the browser share this
machine. For each reply: the longest time between two frames, their 95th percentile, the longest task of the page's
thread, by the clock and by the processor, and the unexpected layout shift. Where other programs hold the cores, only
the processor's time says what the page itself takes. The first visit is a new browser's at an empty chat: bytes as they
were transferred, headers included. Each figure is the median of the repeats, whose own figures are in the file, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from benchmarks import machine
from benchmarks.result_files import write_result
from testing.scripted_server import DONE, Piece, ScriptedResponse, ScriptedServer, chunk, usage

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
BYTES = 100_000  #: of each reply
PIECE = 60  #: characters of a piece
PAUSE_S = 0.012  #: between two pieces: 5 KB a second
READY_MS = 120_000
REPLY_MS = 300_000
START_S = 120

_SECTION = """## Part {n}

The area is \\(a^2 + {n}\\), and **its** integral is $\\int_0^{n} x^2\\,dx$; see `code({n})` and the note[^{n}].

$$
\\sum_{{k=1}}^{{{n}}} k = \\frac{{{n}({n}+1)}}{{2}}
$$

```python
def area(side: float = {n}.5) -> str:
    \"\"\"The area of a square.\"\"\"
    return f"{{side ** 2:.2f}} m²"  # rounded
```

- [x] done {n}
- [ ] open, with a [link](https://example.com/{n})

| Item | Price |
| :--- | ----: |
| Tea | {n}.50 |

```js
const price = async (id) => (await fetch(`/prices/${{id}}`)).json(); // {n}
```

[^{n}]: A note.

"""


def replies() -> dict[str, str]:
    """The replies by name, each of 100 KB."""
    mixed = "".join(_SECTION.format(n=n) for n in range(1, 400))
    line = 'def area_{n}(side: float = {n}.5) -> str:\n    return f"{{side ** 2:.2f}} m²"  # rounded\n\n\n'
    code = "```python\n" + "".join(line.format(n=n) for n in range(2000))
    entries = "".join(f"- entry {n} with **bold** words, `code` and \\(x_{n}\\)\n" for n in range(3000))
    rows = "".join(f"| tea {n} | {n}.50 | **good**, `x{n}` |\n" for n in range(4000))
    table = f"| Item | Price | Note |\n| :--- | ----: | --- |\n{rows}"
    return {
        "mixed": mixed[:BYTES],
        "one code block": code[:BYTES] + "\n```\n",
        "one list": entries[:BYTES],
        "one table": table[:BYTES],
        "one paragraph": ("words and more words without any end, " * 3000)[:BYTES],
    }


def _paced(text: str) -> Iterator[Piece]:
    """The events of a streamed reply with pauses between them, made as they are sent."""
    yield chunk()
    loop = asyncio.get_running_loop()
    for start in range(0, len(text), PIECE):
        yield chunk(text[start : start + PIECE])
        pause = asyncio.Event()
        loop.call_later(PAUSE_S, pause.set)
        yield pause
    yield chunk(None, "stop")
    yield usage(10, len(text) // PIECE)
    yield DONE


_WATCH = """() => {
  const watch = (window.watch = { frames: [], tasks: [], shift: 0, on: true });
  let last = performance.now();
  const frame = (now) => {
    watch.frames.push(now - last);
    last = now;
    if (watch.on) requestAnimationFrame(frame);
  };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(frame); });
  new PerformanceObserver((list) => list.getEntries().forEach(({ duration }) => watch.tasks.push(duration)))
    .observe({ type: "longtask" });
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => {
    if (!entry.hadRecentInput) watch.shift += entry.value;
  })).observe({ type: "layout-shift" });
}"""
_RESULT = """() => {
  const { frames, tasks, shift } = window.watch;
  window.watch.on = false;
  const sorted = [...frames].sort((a, b) => a - b);
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  return {
    frames: frames.length, longest_frame_ms: sorted.at(-1), p95_frame_ms: at(0.95), median_frame_ms: at(0.5),
    longest_task_ms: Math.max(0, ...tasks), layout_shift: shift,
    coloured: document.querySelectorAll("[class^=dm-code-]").length,
    formulas: document.querySelectorAll(".dm-math-typeset").length,
  };
}"""


async def _open(page: Page, url: str) -> None:
    await page.goto(url)
    await page.wait_for_selector("html.dm-ready", timeout=READY_MS)


async def first_visit(browser: Browser, url: str) -> dict[str, Any]:
    """The bytes that a new browser's first visit transfers, and the layout shift of the page's start."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    await session.send("Network.enable")
    await page.add_init_script(f"({_WATCH})()")
    await _open(page, url)
    await page.wait_for_timeout(3000)
    shift = await page.evaluate("window.watch.shift")
    await context.close()
    return {"transferred_bytes": sum(sizes), "requests": len(sizes), "layout_shift": shift}


async def stream(browser: Browser, url: str, model: ScriptedServer, text: str) -> dict[str, Any]:
    """Figures of one reply, from its first to its last character and a second more."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    await _open(page, url)
    model.say(ScriptedResponse(_paced(text)))
    box = page.get_by_label("Message", exact=True)
    await box.fill("Write")
    await page.evaluate(_WATCH)
    await browser.start_tracing(page=page, categories=["toplevel"])
    await box.press("Enter")
    await page.wait_for_selector(".dm-reply[data-status=complete]", timeout=REPLY_MS)
    await page.wait_for_timeout(1000)
    tasks = _cpu_ms(await browser.stop_tracing())
    result: dict[str, Any] = await page.evaluate(_RESULT)
    await context.close()
    return result | {"longest_task_cpu_ms": tasks[-1], "tasks_of_100_ms_cpu": sum(task >= 100 for task in tasks)}


def _cpu_ms(trace: bytes) -> list[float]:
    """The processor's time of each task of the page's thread, shortest first."""
    events = json.loads(trace)["traceEvents"]
    named = [event for event in events if event.get("name") == "thread_name"]
    main = {(event["pid"], event["tid"]) for event in named if event["args"]["name"] == "CrRendererMain"}
    tasks = [event for event in events if event.get("name") == "ThreadControllerImpl::RunTask"]
    return sorted(event.get("tdur", 0) / 1000 for event in tasks if (event["pid"], event["tid"]) in main)


@asynccontextmanager
async def _deskmate(model: ScriptedServer, folder: Path) -> AsyncIterator[str]:
    """A server that is ready; ends it.

    Raises:
        RuntimeError: it has ended, or is not ready in time; the message has its log.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    flags = ("--port", port, "--data-dir", str(folder / "data"), "--remote-url", model.url, "--no-auto-titles")
    log = folder / "server.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app", "serve", *flags, stdout=output, stderr=output
        )
    try:
        if not await _answers(process, int(port)):
            raise RuntimeError(f"The server is not ready. Its log:\n{log.read_text(errors='replace')}")
        yield f"http://127.0.0.1:{port}/"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _answers(process: Process, port: int) -> bool:
    """Waits until the server accepts connections; False if it ends or takes too long."""
    clock = asyncio.get_running_loop()
    end = clock.time() + START_S
    while process.returncode is None and clock.time() < end:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.5)
        else:
            writer.close()
            return True
    return False


async def measure(names: list[str], repeats: int) -> dict[str, Any]:
    """Starts the servers and the browser, and measures the replies of these names."""
    program = next(path for name in BROWSERS if (path := shutil.which(name)))
    load = round(os.getloadavg()[0], 1)  # what other programs had the cores do before
    result: dict[str, Any] = {"machine": machine.describe(), "load_average_before": load, "repeats": repeats}
    texts = replies()
    async with ScriptedServer("scripted", max_model_len=200_000) as model, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        result["chromium"] = browser.version
        with tempfile.TemporaryDirectory() as folder:
            async with _deskmate(model, Path(folder)) as url:
                result["first_visit"] = _medians([await first_visit(browser, url) for _ in range(repeats)])
                result["replies"] = {}
                for name in names:
                    runs = [await stream(browser, url, model, texts[name]) for _ in range(repeats)]
                    result["replies"][name] = _medians(runs)
                    print(f"{name}: {result['replies'][name]['median']}", file=sys.stderr)
        await browser.close()
    return result


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"median": {key: round(median(run[key] for run in runs), 5) for key in runs[0]}, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reply", choices=list(replies()), action="append", help="this one, which may be repeated; default: all"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement; default: 3")
    parser.add_argument("--output", type=Path, help="the JSON file; a new one in benchmarks/results/ otherwise")
    args = parser.parse_args()
    result = asyncio.run(measure(args.reply or list(replies()), args.repeats))
    write_result(result, "rendering", args.output)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
