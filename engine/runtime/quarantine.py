"""Quarantine for prompts that were in a failed step: they are retried alone, and refused if they fail again.

The engine cannot see which request of a batch made a step fail, so it quarantines every prompt of that step. A
quarantined prompt runs alone until it is past the length at which its step failed, so a second failure identifies the
prompt. After two failed steps the prompt is refused. Failures are forgotten after a while: one may have had an outside
cause (memory that another program took), and a fixed fault should need no restart.
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
"""Seconds after a prompt's last failure when its failures are forgotten."""
MAX_RECORDS = 1024
"""Quarantined prompts; beyond that, the one whose last failure is oldest is forgotten."""
MAX_FAILURES = 2
"""A prompt that was in this many failed steps is refused."""
MAX_QUARANTINE_WAIT_SECONDS = 30.0
"""How long other requests may overtake a quarantined prompt while the engine is busy; then they queue behind it."""


@dataclass(slots=True)
class _Record:
    failures: int
    num_tokens: int  #: length of the sequence, prompt and reply, when its step failed; the maximum over its failures
    expires: float  #: by the quarantine's clock


class Quarantine:
    """Remembers the prompts that were in failed steps. Safe to use from any thread.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[bytes, _Record] = OrderedDict()  # the oldest failure first

    def record_failure(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Records that a step failed in which the sequence, prompt and reply, had ``num_tokens`` tokens."""
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
        """Forgets a prompt that got past the length at which its step failed: another one was the cause."""
        with self._lock:
            self._records.pop(_key(prompt), None)

    def failed_length(self, prompt: Sequence[int]) -> int | None:
        """Returns the length at which a quarantined prompt's step failed; None if it is not quarantined."""
        if not self._records:  # the normal case: skip the hash
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
            f"{span}. Change it, or start a new chat."
        )

    def _find(self, key: bytes) -> _Record | None:
        """Returns an unexpired record. Called with the lock held."""
        record = self._records.get(key)
        if record is not None and record.expires <= self._clock():
            del self._records[key]
            return None
        return record


class AdmissionGate:
    """Decides which requests of the inbox enter the core. Used by the worker's thread only.

    Requests with quarantined prompts enter alone; while there are none, every request enters at once.
    """

    def __init__(self, quarantine: Quarantine, clock: Callable[[], float] = monotonic) -> None:
        self._quarantine = quarantine
        self._clock = clock
        self._arrived: deque[Submission] = deque()
        self._quarantined: deque[tuple[float, Submission]] = deque()  # with their arrival times
        self._isolated: Submission | None = None
        self._isolated_until = 0

    def enqueue(self, submission: Submission) -> None:
        self._arrived.append(submission)

    def discard(self, stream_id: str) -> bool:
        """Removes a request whose reader left; False when it was not held here."""
        if self._isolated is not None and self._isolated.stream_id == stream_id:
            self._isolated = None
        before = len(self._arrived) + len(self._quarantined)
        self._arrived = deque(one for one in self._arrived if one.stream_id != stream_id)
        self._quarantined = deque(pair for pair in self._quarantined if pair[1].stream_id != stream_id)
        return len(self._arrived) + len(self._quarantined) < before

    def pop_expired(self) -> list[Submission]:
        """Removes and returns the held requests whose deadline has passed."""
        held = [*(one for _, one in self._quarantined), *self._arrived]
        now = self._clock()
        overdue = [one for one in held if one.request.deadline is not None and one.request.deadline <= now]
        for submission in overdue:
            self.discard(submission.stream_id)
        return overdue

    def requeue(self, submissions: Iterable[Submission]) -> None:
        """Puts the requests of a failed core in front of all that arrived since."""
        self._isolated = None
        self._arrived.extendleft(reversed(list(submissions)))

    def admit(self, *, busy: bool) -> Iterator[Submission]:
        """Yields the requests that enter the core now.

        Args:
            busy: the core already has requests.
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
