"""Measures what the page's event streams cost, by how deltas are held in the engine and in the stream.

    .venv/bin/python -m benchmarks.event_streams     # about three minutes

Tabs read one reply each over a local socket, from a process of their own. The replies grow at a fixed rate, so that a
busy machine changes the figures less than under full load: a delta at a time, as from a remote engine, or as the
in-process engine delivers them, held for as long as its readers allow. Each is measured with and without the stream's
own interval. Prints the server's CPU time per token (the least of the repetitions: other programs only add to it), and
medians of the events per second and tab and of the time from a delta's delivery to the socket.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from app.api.chat import turn_events
from app.api.chat.turn_events import Position, ReaderFactory, TurnStream
from app.api.request_middleware import HttpMetrics
from app.turns.buffer import ReplyBuffer
from engine.scheduling.coalescing import max_hold_seconds

LOADS = ((1, 200), (8, 200), (32, 100), (60, 50), (60, 100))
"""Tabs, and tokens per second of each."""
INTERVALS = (0.0, turn_events.SSE_COALESCE_SECONDS)
DELIVERY = "deskmate_token_delivery_seconds"


@dataclass(frozen=True)
class StreamCost:
    cpu_us_per_token: float
    events_per_s: float  #: of each tab
    delay_ms: float  #: mean, from the delivery of a delta to the socket


def _read_all(path: str, tabs: int) -> None:
    async def read() -> None:
        reader, _writer = await asyncio.open_unix_connection(path)
        while await reader.read(65536):
            pass

    async def everyone() -> None:
        await asyncio.gather(*(read() for _ in range(tabs)))

    asyncio.run(everyone())


def _factory(buffer: ReplyBuffer) -> ReaderFactory:
    return lambda changed: buffer.reader(0, changed)


async def measure(tabs: int, rate: float, tokens_per_delivery: int, seconds: float) -> StreamCost:
    """Streams one reply to each of ``tabs``, with ``rate`` tokens per second."""
    metrics, buffers = HttpMetrics(), [ReplyBuffer() for _ in range(tabs)]
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    events = 0

    async def serve(buffer: ReplyBuffer) -> None:
        nonlocal events
        writer, stream = await writers.get(), TurnStream(metrics)
        stream.add("turn", Position(0), _factory(buffer))
        async for piece in stream.events():
            writer.write(piece)
            events += 1

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        server = await asyncio.start_unix_server(lambda _reader, writer: writers.put_nowait(writer), path)
        process = multiprocessing.get_context("spawn").Process(target=_read_all, args=(path, tabs))
        process.start()
        serving = [asyncio.create_task(serve(buffer)) for buffer in buffers]
        for buffer in buffers:
            buffer.append("first")
        while events < tabs:  # noqa: ASYNC110 - events are counted where every call costs
            await asyncio.sleep(0.01)
        events, cpu, begun = 0, process_time(), monotonic()
        period = tokens_per_delivery / rate
        deliveries = 0
        while (now := monotonic()) - begun < seconds:
            if now - begun >= (deliveries + 1) * period:
                deliveries += 1
                for buffer in buffers:
                    buffer.append(" word" * tokens_per_delivery, now)
            await asyncio.sleep(max(0.0, begun + (deliveries + 1) * period - monotonic()))
        cpu, wall = process_time() - cpu, monotonic() - begun
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        server.close()
        process.terminate()
        process.join()
    total, count = (metrics.registry.get_sample_value(f"{DELIVERY}_{kind}") or 0.0 for kind in ("sum", "count"))
    tokens = deliveries * tokens_per_delivery * tabs
    return StreamCost(1e6 * cpu / tokens, events / wall / tabs, 1000 * total / count)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="duration of each repetition")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(arguments)
    print("tabs tokens/s per delivery  interval  CPU/token  events/s    delay")
    for tabs, rate in LOADS:
        for held in sorted({1, 1 + int(max_hold_seconds(tabs) * rate)}):
            for interval in INTERVALS:
                turn_events.SSE_COALESCE_SECONDS = interval
                found = [asyncio.run(measure(tabs, rate, held, args.seconds)) for _ in range(args.repeats)]
                cpu = min(one.cpu_us_per_token for one in found)
                events, delay = median(one.events_per_s for one in found), median(one.delay_ms for one in found)
                figures = f"{1000 * interval:6.0f} ms {cpu:7.1f} us {events:9.1f} {delay:5.1f} ms"
                print(f"{tabs:4} {rate:8} {held:12} {figures}", flush=True)


if __name__ == "__main__":
    main()
