"""Which deltas wait for others on their way to their readers, for how long, and that none is lost or overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine import Delta, FinishReason
from engine.outputs import PrefillProgress
from engine.runtime.output_batcher import OutputBatcher, OutputBatches
from engine.runtime.reader import Reader
from engine.scheduling.coalescing import HOLD_SECONDS_PER_READER, MAX_HOLD_SECONDS

MANY = 1000
"""Readers: deltas wait as long as they may."""


class Clock:
    """Stands still until it is told otherwise."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def texts(batches: OutputBatches) -> dict[str, str]:
    """By request, what crosses over."""
    return {
        reader.request_id: "".join(delta.text for delta in deltas)
        for handed in batches.values()
        for reader, deltas in handed
    }


def steps(clock: Clock, batcher: OutputBatcher, num_readers: int, readers: list[Reader], seconds: float) -> list[int]:
    """Which steps hand something over, of those in a tenth of a second, each with a token for every reader."""
    crossings = []
    for step in range(round(0.1 / seconds)):
        clock.now += seconds
        for reader in readers:
            batcher.put(reader, Delta(reader.request_id, f"{step} ", (step,)))
        if batcher.pop_due(num_readers):
            crossings.append(step)
    return crossings


def test_short_steps_share_a_crossing_and_long_ones_do_not(loop: asyncio.AbstractEventLoop) -> None:
    clock = Clock()
    batcher, reader = OutputBatcher(clock), Reader("r", loop)
    assert steps(clock, batcher, MANY, [reader], 0.006)[:3] == [0, 5, 10]  # the first token at once
    batcher.pop_all()
    assert steps(clock, batcher, MANY, [reader], 1.1 * MAX_HOLD_SECONDS) == list(range(3))
    few = round(0.004 / HOLD_SECONDS_PER_READER)
    assert steps(clock, batcher, few, [reader], 0.005) == list(range(20))


def test_beginnings_and_ends_wait_for_nobody_and_take_along_what_came_before_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    clock = Clock()
    batcher, early, late = OutputBatcher(clock), Reader("early", loop), Reader("late", loop)
    batcher.put(early, Delta("early", progress=PrefillProgress(1, 2)))
    assert texts(batcher.pop_due(MANY)) == {"early": ""}
    batcher.put(early, Delta("early", "a", (1,)))
    assert texts(batcher.pop_due(MANY)) == {"early": "a"}
    batcher.put(early, Delta("early", "b", (2,)))
    assert texts(batcher.pop_due(MANY)) == {}
    batcher.put(early, Delta("early", "c", (3,)))
    batcher.put(late, Delta("late", "z", (4,)))
    assert texts(batcher.pop_due(MANY)) == {"late": "z"}
    batcher.put(early, Delta("early", "d", (5,), finish_reason=FinishReason.STOP, num_unfinished=0))
    batcher.put(late, Delta("late", "y", (6,)))
    assert texts(batcher.pop_due(MANY)) == {"early": "bcd"}
    assert texts(batcher.pop(early)) == {}
    assert texts(batcher.pop(late)) == {"late": "y"}
    assert texts(batcher.pop_all()) == {}


def test_each_loop_gets_its_own() -> None:
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        batcher = OutputBatcher()
        for reader in (Reader("a", one), Reader("b", other), Reader("c", one)):
            batcher.put(reader, Delta(reader.request_id, "x", (1,)))
        batches = batcher.pop_due(MANY)
        assert {loop: [reader.request_id for reader, _ in handed] for loop, handed in batches.items()} == {
            one: ["a", "c"],
            other: ["b"],
        }
    finally:
        one.close()
        other.close()
