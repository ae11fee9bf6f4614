"""Quarantine for prompts that were in a step that failed: tried again alone, and refused once they fail again.

Which request of a step broke it cannot be seen. So after a failure each prompt of that step is a suspect: when it
comes again it runs without company until it is past where it broke, and so whoever breaks the engine a second time
stands there alone. Two failed steps, and the prompt is refused. Both are forgotten after a while: a failure may
have had causes of its own (memory that another program took), and a fixed fault should need no restart.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from engine.errors import PoisonedPromptError
from engine.execution.submission import Submission
from engine.outputs import FinishReason

RECORD_TTL_SECONDS = 600.0
MAX_RECORDS = 1024
MAX_FAILURES = 2
MAX_QUARANTINE_WAIT_SECONDS = 30.0
"""So long a suspect is overtaken by others while the engine is busy; then the others queue behind it."""


@dataclass(slots=True)
class _Record:
    failures: int
    num_tokens: int  #: longest the sequence was when its step failed
    expires: float


class Quarantine:
    """Safe to use from any thread.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[bytes, _Record] = OrderedDict()  # the longest unseen first

    def record_failure(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Its step failed when the sequence, prompt and reply, had ``num_tokens``."""
        key = _key(prompt)
        with self._lock:
            now = self._clock()
            record = self._find(key) or _Record(0, 0, now)
            record.failures += 1
            record.num_tokens = max(record.num_tokens, num_tokens)
            record.expires = now + RECORD_TTL_SECONDS
            self._records[key] = record
            self._records.move_to_end(key)
            if len(self._records) > MAX_RECORDS:
                self._records.popitem(last=False)

    def clear(self, prompt: Sequence[int]) -> None:
        """It got past where it broke: the fault was another's."""
        with self._lock:
            self._records.pop(_key(prompt), None)

    def failed_length(self, prompt: Sequence[int]) -> int | None:
        """None for a prompt without suspicion, else the length at which its step failed."""
        if not self._records:  # as good as always: hash nothing
            return None
        with self._lock:
            record = self._find(_key(prompt))
            return None if record is None else record.num_tokens

    def raise_if_poisoned(self, prompt: Sequence[int]) -> None:
        """Raises :class:`PoisonedPromptError` for a prompt that was in two failed steps."""
        if not self._records:
            return
        with self._lock:
            record = self._find(_key(prompt))
            if record is None or record.failures < MAX_FAILURES:
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


class AdmissionGate:
    """The way from the inbox to the core. Used by the worker's thread only.

    Without suspects everything passes straight through.
    """

    def __init__(self, quarantine: Quarantine, clock: Callable[[], float] = monotonic) -> None:
        self._quarantine = quarantine
        self._clock = clock
        self._arrived: deque[Submission] = deque()
        self._quarantined: deque[tuple[float, Submission]] = deque()  # suspects, with when they came
        self._isolated: Submission | None = None
        self._isolated_until = 0

    def enqueue(self, submission: Submission) -> None:
        self._arrived.append(submission)

    def discard(self, stream_id: str) -> bool:
        """Forget one that nobody waits for any more; False when it was not held here."""
        if self._isolated is not None and self._isolated.stream_id == stream_id:
            self._isolated = None
        before = len(self._arrived) + len(self._quarantined)
        self._arrived = deque(one for one in self._arrived if one.stream_id != stream_id)
        self._quarantined = deque(pair for pair in self._quarantined if pair[1].stream_id != stream_id)
        return len(self._arrived) + len(self._quarantined) < before

    def pop_expired(self) -> list[Submission]:
        """Those held whose deadline has passed; they are held no more."""
        held = [*(one for _, one in self._quarantined), *self._arrived]
        now = self._clock()
        overdue = [one for one in held if one.request.deadline is not None and one.request.deadline <= now]
        for submission in overdue:
            self.discard(submission.stream_id)
        return overdue

    def requeue(self, submissions: Iterable[Submission]) -> None:
        """The core was made anew: these come before all that arrived since."""
        self._isolated = None
        self._arrived.extendleft(reversed(list(submissions)))

    def admit(self, *, busy: bool) -> Iterator[Submission]:
        """Those that go to the core now.

        Args:
            busy: the core has requests already.
        """
        if self._isolated is not None:
            request = self._isolated.request
            passed = len(request.token_ids) > self._isolated_until
            if not passed and not request.is_finished:
                return
            if passed or request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self._quarantine.clear(request.prompt_token_ids)
            self._isolated = None
        while self._arrived and not self._is_wait_exceeded():
            submission = self._arrived.popleft()
            if self._quarantine.failed_length(submission.request.prompt_token_ids) is None:
                busy = True
                yield submission
            else:
                self._quarantined.append((self._clock(), submission))
        while self._quarantined and not busy:
            _, submission = self._quarantined.popleft()
            length = self._quarantine.failed_length(submission.request.prompt_token_ids)
            if length is not None:
                self._isolated, self._isolated_until = submission, length
            busy = True
            yield submission

    def _is_wait_exceeded(self) -> bool:
        return bool(self._quarantined) and self._clock() - self._quarantined[0][0] > MAX_QUARANTINE_WAIT_SECONDS


def _key(prompt: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16).digest()
