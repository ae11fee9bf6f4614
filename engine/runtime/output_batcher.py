"""Batches deltas on their way to the event loops: those of several short steps are delivered together.

Each delivery makes every reader in it forward its delta. With many readers and a small model, delivering after every
step would cost more CPU time than the model's own steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from engine.outputs import Delta
from engine.runtime.reader import Reader
from engine.scheduling.coalescing import max_hold_seconds

OutputBatches = dict[asyncio.AbstractEventLoop, list[tuple[Reader, list[Delta]]]]
"""Deltas to deliver, by event loop and reader."""


class OutputBatcher:
    """Holds deltas until they are due. A reply's first token, its end and prefill progress are due at once.

    Not locked: its owner calls it from one thread at a time.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: dict[Reader, list[Delta]] = {}
        self._urgent: set[Reader] = set()
        self._oldest_sampled_at = 0.0
        self._last_pop_at = 0.0

    def put(self, reader: Reader, delta: Delta) -> None:
        """Holds one more delta."""
        if not self._held:
            self._oldest_sampled_at = self._clock() if delta.sampled_at is None else delta.sampled_at
        self._held.setdefault(reader, []).append(delta)
        if not reader.has_first_token or delta.finish_reason is not None or delta.progress is not None:
            self._urgent.add(reader)
            reader.has_first_token = reader.has_first_token or bool(delta.token_ids)

    def pop_due(self, num_readers: int) -> OutputBatches:
        """Removes and returns the due deltas. Called after each step.

        All deltas are due when the oldest would be held for too long by the end of the next step, which is taken to be
        as long as the last one. Otherwise only the urgent ones are.

        Args:
            num_readers: readers in flight; more readers allow a longer hold.
        """
        now = self._clock()
        step, self._last_pop_at = now - self._last_pop_at, now
        if not self._held:
            return {}
        if now + step - self._oldest_sampled_at > max_hold_seconds(num_readers):
            return self.pop_all()
        urgent, self._urgent = self._urgent, set()
        return _by_loop({reader: self._held.pop(reader) for reader in urgent})

    def pop_all(self) -> OutputBatches:
        """Removes and returns everything that is held."""
        held, self._held = self._held, {}
        self._urgent.clear()
        return _by_loop(held)

    def pop(self, reader: Reader) -> OutputBatches:
        """Removes and returns the deltas held for one reader."""
        self._urgent.discard(reader)
        held = self._held.pop(reader, None)
        return {} if held is None else _by_loop({reader: held})


def _by_loop(held: dict[Reader, list[Delta]]) -> OutputBatches:
    batches: OutputBatches = {}
    for reader, deltas in held.items():
        batches.setdefault(reader.loop, []).append((reader, deltas))
    return batches
