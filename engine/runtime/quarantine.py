"""Prompts that were in a step that failed: tried again alone, and refused once they fail again.

Which request of a step broke it cannot be seen. So after a failure each prompt of that step is a suspect: when it
comes again it runs without company until it is past where it broke, and so whoever breaks the engine a second time
stands there alone. Two failed steps, and the prompt is refused. Both are forgotten after a while: a failure may
have had causes of its own (memory that another program took), and a fixed fault should need no restart.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from engine.errors import PoisonedPromptError

KEEP_SECONDS = 600.0
CAPACITY = 1024
MOST_FAILURES = 2


@dataclass(slots=True)
class _Record:
    failures: int
    num_tokens: int  #: longest the sequence was when its step failed
    expires: float


class Suspects:
    """Safe to use from any thread.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[bytes, _Record] = OrderedDict()  # the longest unseen first

    def accuse(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Its step failed when the sequence, prompt and reply, had ``num_tokens``."""
        key = _key(prompt)
        with self._lock:
            now = self._clock()
            record = self._find(key) or _Record(0, 0, now)
            record.failures += 1
            record.num_tokens = max(record.num_tokens, num_tokens)
            record.expires = now + KEEP_SECONDS
            self._records[key] = record
            self._records.move_to_end(key)
            if len(self._records) > CAPACITY:
                self._records.popitem(last=False)

    def clear(self, prompt: Sequence[int]) -> None:
        """It got past where it broke: the fault was another's."""
        with self._lock:
            self._records.pop(_key(prompt), None)

    def must_pass(self, prompt: Sequence[int]) -> int | None:
        """None for a prompt without suspicion, else the length at which its step failed."""
        if not self._records:  # as good as always: hash nothing
            return None
        with self._lock:
            record = self._find(_key(prompt))
            return None if record is None else record.num_tokens

    def refuse(self, prompt: Sequence[int]) -> None:
        """Raises :class:`PoisonedPromptError` for a prompt that was in two failed steps."""
        if not self._records:
            return
        with self._lock:
            record = self._find(_key(prompt))
            if record is None or record.failures < MOST_FAILURES:
                return
            minutes = max(1, round((record.expires - self._clock()) / 60))
            span = "minute" if minutes == 1 else f"{minutes} minutes"
        raise PoisonedPromptError(
            f"This message made the engine fail {record.failures} times, so it is not tried again for the next "
            f"{span}. Change it, or begin a new chat."
        )

    def _find(self, key: bytes) -> _Record | None:
        """Called with the lock held."""
        record = self._records.get(key)
        if record is not None and record.expires <= self._clock():
            del self._records[key]
            return None
        return record


def _key(prompt: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16).digest()
