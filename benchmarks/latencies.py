"""Times single calls, and sums up what they took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter


async def time_calls(count: int, ask: Callable[[], Awaitable[object]]) -> list[float]:
    """Makes calls one after another, and returns the seconds that each took."""
    taken = []
    for _ in range(count):
        begin = perf_counter()
        await ask()
        taken.append(perf_counter() - begin)
    return taken


def spread(seconds: list[float]) -> dict[str, float]:
    """Returns the 50th and the 95th percentile in milliseconds."""
    return {"p50_ms": round(1000 * median(seconds), 2), "p95_ms": round(1000 * quantiles(seconds, n=20)[-1], 2)}
