"""Who may join the running requests: everybody, but a suspect of a failed step only when it is alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from engine.execution.submission import Submission
from engine.outputs import FinishReason
from engine.runtime.quarantine import Suspects

PATIENCE_SECONDS = 30.0
"""So long a suspect is overtaken by others while the engine is busy; then the others queue behind it."""


class Solitude:
    """The way from the inbox to the core. Used by the worker's thread only.

    Without suspects everything passes straight through.
    """

    def __init__(self, suspects: Suspects, clock: Callable[[], float] = monotonic) -> None:
        self._suspects = suspects
        self._clock = clock
        self._arrived: deque[Submission] = deque()
        self._waiting: deque[tuple[float, Submission]] = deque()  # suspects, with when they came
        self._alone: Submission | None = None
        self._alone_until = 0

    def arrive(self, submission: Submission) -> None:
        self._arrived.append(submission)

    def leave(self, stream_id: str) -> bool:
        """Forget one that nobody waits for any more; False when it was not held here."""
        if self._alone is not None and self._alone.stream_id == stream_id:
            self._alone = None
        before = len(self._arrived) + len(self._waiting)
        self._arrived = deque(one for one in self._arrived if one.stream_id != stream_id)
        self._waiting = deque(pair for pair in self._waiting if pair[1].stream_id != stream_id)
        return len(self._arrived) + len(self._waiting) < before

    def take_overdue(self) -> list[Submission]:
        """Those held whose deadline has passed; they are held no more."""
        held = [*(one for _, one in self._waiting), *self._arrived]
        now = self._clock()
        overdue = [one for one in held if one.request.deadline is not None and one.request.deadline <= now]
        for submission in overdue:
            self.leave(submission.stream_id)
        return overdue

    def restart(self, submissions: Iterable[Submission]) -> None:
        """The core was made anew: these come before all that arrived since."""
        self._alone = None
        self._arrived.extendleft(reversed(list(submissions)))

    def let_in(self, *, busy: bool) -> Iterator[Submission]:
        """Those that go to the core now.

        Args:
            busy: the core has requests already.
        """
        if self._alone is not None:
            request = self._alone.request
            passed = len(request.token_ids) > self._alone_until
            if not passed and not request.is_finished:
                return
            if passed or request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self._suspects.clear(request.prompt_token_ids)
            self._alone = None
        while self._arrived and not self._overdue():
            submission = self._arrived.popleft()
            if self._suspects.must_pass(submission.request.prompt_token_ids) is None:
                busy = True
                yield submission
            else:
                self._waiting.append((self._clock(), submission))
        while self._waiting and not busy:
            _, submission = self._waiting.popleft()
            length = self._suspects.must_pass(submission.request.prompt_token_ids)
            if length is not None:
                self._alone, self._alone_until = submission, length
            busy = True
            yield submission

    def _overdue(self) -> bool:
        return bool(self._waiting) and self._clock() - self._waiting[0][0] > PATIENCE_SECONDS
