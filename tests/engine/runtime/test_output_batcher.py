"""Which deltas wait for others on their way to their readers, for how long, and that none is lost or overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine import Delta, FinishReason
from engine.outputs import PrefillProgress
from engine.runtime.output_batcher import Outbox, Parcels
from engine.runtime.reader import Reader
from engine.scheduling.coalescing import LONGEST_SECONDS, SECONDS_PER_READER

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


def texts(parcels: Parcels) -> dict[str, str]:
    """By request, what crosses over."""
    return {
        reader.request_id: "".join(delta.text for delta in deltas)
        for handed in parcels.values()
        for reader, deltas in handed
    }


def steps(clock: Clock, outbox: Outbox, num_readers: int, readers: list[Reader], seconds: float) -> list[int]:
    """Which steps hand something over, of those in a tenth of a second, each with a token for every reader."""
    crossings = []
    for step in range(round(0.1 / seconds)):
        clock.now += seconds
        for reader in readers:
            outbox.put(reader, Delta(reader.request_id, f"{step} ", (step,)))
        if outbox.take_due(num_readers):
            crossings.append(step)
    return crossings


def test_short_steps_share_a_crossing_and_long_ones_do_not(loop: asyncio.AbstractEventLoop) -> None:
    clock = Clock()
    outbox, reader = Outbox(clock), Reader("r", loop)
    assert steps(clock, outbox, MANY, [reader], 0.006)[:3] == [0, 5, 10]  # the first token at once
    outbox.take_all()
    assert steps(clock, outbox, MANY, [reader], LONGEST_SECONDS) == list(range(4))
    few = round(0.004 / SECONDS_PER_READER)
    assert steps(clock, outbox, few, [reader], 0.005) == list(range(20))


def test_beginnings_and_ends_wait_for_nobody_and_take_along_what_came_before_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    clock = Clock()
    outbox, early, late = Outbox(clock), Reader("early", loop), Reader("late", loop)
    outbox.put(early, Delta("early", progress=PrefillProgress(1, 2)))
    assert texts(outbox.take_due(MANY)) == {"early": ""}
    outbox.put(early, Delta("early", "a", (1,)))
    assert texts(outbox.take_due(MANY)) == {"early": "a"}
    outbox.put(early, Delta("early", "b", (2,)))
    assert texts(outbox.take_due(MANY)) == {}
    outbox.put(early, Delta("early", "c", (3,)))
    outbox.put(late, Delta("late", "z", (4,)))
    assert texts(outbox.take_due(MANY)) == {"late": "z"}
    outbox.put(early, Delta("early", "d", (5,), finish_reason=FinishReason.STOP, num_unfinished=0))
    outbox.put(late, Delta("late", "y", (6,)))
    assert texts(outbox.take_due(MANY)) == {"early": "bcd"}
    assert texts(outbox.take(early)) == {}
    assert texts(outbox.take(late)) == {"late": "y"}
    assert texts(outbox.take_all()) == {}


def test_each_loop_gets_its_own() -> None:
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        outbox = Outbox()
        for reader in (Reader("a", one), Reader("b", other), Reader("c", one)):
            outbox.put(reader, Delta(reader.request_id, "x", (1,)))
        parcels = outbox.take_due(MANY)
        assert {loop: [reader.request_id for reader, _ in handed] for loop, handed in parcels.items()} == {
            one: ["a", "c"],
            other: ["b"],
        }
    finally:
        one.close()
        other.close()
