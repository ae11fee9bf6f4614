"""Deltas on their way to their readers: those of several short steps cross over to an event loop together.

Each crossing has every reader that it brings something pass it on, which costs the processor more than the text is
worth: with many readers and a small model, more than the model's own steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from engine.outputs import Delta
from engine.runtime.reader import Reader
from engine.scheduling.coalescing import max_hold_seconds

OutputBatches = dict[asyncio.AbstractEventLoop, list[tuple[Reader, list[Delta]]]]
"""What crosses over to each event loop."""


class OutputBatcher:
    """Holds deltas until it is time. The first token of a reply, its end and how far its prompt is wait for nothing.

    Not locked: its owner uses it from one thread at a time.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: dict[Reader, list[Delta]] = {}
        self._urgent: set[Reader] = set()
        self._since = 0.0  # when the oldest of those came
        self._looked = 0.0  # when it was last looked whether it is time

    def put(self, reader: Reader, delta: Delta) -> None:
        """Hold one more."""
        if not self._held:
            self._since = self._clock() if delta.sampled_at is None else delta.sampled_at
        self._held.setdefault(reader, []).append(delta)
        if not reader.has_first_token or delta.finish_reason is not None or delta.progress is not None:
            self._urgent.add(reader)
            reader.has_first_token = reader.has_first_token or bool(delta.token_ids)

    def pop_due(self, num_readers: int) -> OutputBatches:
        """After each step: what must go now, because the next step would end too late or because it is urgent.

        Args:
            num_readers: in flight.
        """
        now = self._clock()
        step, self._looked = now - self._looked, now
        if not self._held:
            return {}
        if now + step - self._since > max_hold_seconds(num_readers):
            return self.pop_all()
        urgent, self._urgent = self._urgent, set()
        return _by_loop({reader: self._held.pop(reader) for reader in urgent})

    def pop_all(self) -> OutputBatches:
        """Everything that is held."""
        held, self._held = self._held, {}
        self._urgent.clear()
        return _by_loop(held)

    def pop(self, reader: Reader) -> OutputBatches:
        """What is held for one reader."""
        self._urgent.discard(reader)
        held = self._held.pop(reader, None)
        return {} if held is None else _by_loop({reader: held})


def _by_loop(held: dict[Reader, list[Delta]]) -> OutputBatches:
    batches: OutputBatches = {}
    for reader, deltas in held.items():
        batches.setdefault(reader.loop, []).append((reader, deltas))
    return batches
