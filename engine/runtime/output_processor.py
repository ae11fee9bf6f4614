"""The replies in flight: their tokens become text and deltas here, and it is known which stream each belongs to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import monotonic

from engine.errors import DeadlineError, EngineError
from engine.execution.submission import Submission
from engine.outputs import Delta, FinishReason
from engine.runtime.metrics import EngineMetrics
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)


def deadline_error(request: Request) -> DeadlineError:
    """For a request whose deadline passed before its first token."""
    assert request.deadline is not None
    return DeadlineError(
        f"The reply had not begun when its {request.deadline - request.arrival:g} seconds were over. Try again when "
        "fewer requests are waiting, or allow more time."
    )


def _last_text(submission: Submission, reason: FinishReason) -> str:
    """What is held back of a text; nothing where the text itself fails, for that must not fail the step."""
    if reason is FinishReason.ERROR:
        return ""
    try:
        return submission.detokenizer.finish()
    except Exception:
        log.exception("the end of the text of %s is lost", submission.request.id)
        return ""


class OutputProcessor:
    """Every reply in flight, by its request and by its stream. Used by one thread only.

    Args:
        scheduler: is told of those that end.
        metrics: what is observed of them.
    """

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        self.submissions: dict[str, Submission] = {}  #: by the request's id
        self.finished: dict[str, int] = {reason.value: 0 for reason in FinishReason}  #: how many so far
        self._scheduler = scheduler
        self._streams: dict[str, set[str]] = {}  # of each stream the replies that are still being written
        self._deadlines: dict[str, float] = {}  # of those in flight that have one

    def add(self, submission: Submission) -> None:
        """Of a request that the scheduler has taken."""
        for one in (submission, *submission.forks):
            self._streams.setdefault(one.stream_id, set()).add(one.request.id)
            self.submissions[one.request.id] = one
        if submission.request.deadline is not None:
            self._deadlines[submission.stream_id] = submission.request.deadline

    def discard(self, stream_id: str) -> None:
        """Undo :meth:`add` of a stream's first request, as far as it came."""
        for request_id in self._streams.pop(stream_id, ()):
            self.submissions.pop(request_id, None)
        self._deadlines.pop(stream_id, None)

    def streams(self) -> list[str]:
        """Ids of the streams that have not ended."""
        return list(self._streams)

    def submissions_of(self, stream_id: str) -> list[Submission]:
        """Those of a stream that are still being written."""
        return [self.submissions[id_] for id_ in sorted(self._streams.get(stream_id, ()))]

    def process(self, advanced: Sequence[Request], deltas: dict[str, Delta]) -> dict[str, Exception]:
        """Turn the newest token of each request into text, and end it where that completes a stop string.

        Args:
            deltas: what this step brings each reply, in the order of their last tokens; to be added to.

        Returns:
            The requests whose text failed, which bring no delta and are to be ended.
        """
        failed: dict[str, Exception] = {}
        for request in advanced:
            try:
                self._process(request, deltas)
            except Exception as error:
                failed[request.id] = error
                deltas.pop(request.id, None)
        return failed

    def _process(self, request: Request, deltas: dict[str, Delta]) -> None:
        token = request.token_ids[-1]
        submission = self.submissions[request.id]
        delta = deltas.pop(request.id, None)
        if delta is None:
            delta = Delta(submission.stream_id, index=submission.index, sampled_at=request.last_token)
        deltas[request.id] = delta
        submission.forks = []  # they have begun
        if request.finish_reason is FinishReason.STOP:
            delta.text += submission.detokenizer.finish()  # the stop token itself is not part of the text
        else:
            piece = submission.detokenizer.push((token,))
            delta.text += piece.text
            if piece.stop is not None:
                self._scheduler.finish(request.id, FinishReason.STOP, piece.stop)
                request.finish_reason, request.stop_reason = FinishReason.STOP, piece.stop
            elif request.is_finished:
                delta.text += submission.detokenizer.finish()
        delta.token_ids += (token,)
        delta.logprobs += submission.logprobs
        if request.num_output_tokens == 1:
            # Told at once, for whoever stops the reply and so never sees its timings.
            delta.prompt_tokens = request.num_prompt_tokens
            delta.cached_prompt_tokens = request.num_cached_tokens
            delta.prompt_logprobs = tuple(submission.prompt_logprobs)
            submission.prompt_logprobs.clear()
        delta.num_unfinished = len(self._streams[submission.stream_id])
        if request.is_finished:
            self._finalize(request, delta)

    def observe_latencies(self, advanced: Sequence[Request]) -> None:
        """Measure how long each had to wait for its newest token."""
        gaps = []
        for request in advanced:
            if request.last_gap is not None:
                gaps.append(request.last_gap)
            else:
                assert request.last_token is not None
                self.metrics.observe_first_token(request.last_token - request.arrival)
        self.metrics.observe_token_gaps(gaps)

    def end(self, stream_id: str, reason: FinishReason) -> list[tuple[Request, Delta]]:
        """End all replies of a stream, and free their blocks; each with its last delta, none when it has ended."""
        ended = []
        for submission in self.submissions_of(stream_id):
            request = self._scheduler.finish(submission.request.id, reason) or submission.request
            request.finish_reason = reason  # a fork that had not begun is unknown to the scheduler
            delta = Delta(stream_id, _last_text(submission, reason), index=submission.index)
            self._finalize(request, delta)
            ended.append((request, delta))
        return ended

    def expire_overdue(self) -> Iterator[tuple[str, list[Delta] | EngineError]]:
        """A reply whose time is over ends with what it has; a request that has nothing fails with a sentence."""
        if not self._deadlines:
            return
        now = monotonic()
        for stream_id in [id_ for id_, deadline in self._deadlines.items() if deadline <= now]:
            ended = self.end(stream_id, FinishReason.DEADLINE)
            begun = [delta for request, delta in ended if request.num_output_tokens]
            yield stream_id, begun or deadline_error(ended[0][0])

    def fail_all(self, lost: int) -> None:
        """Forget all of them, of which so many have failed."""
        self.finished[FinishReason.ERROR.value] += lost
        self.submissions.clear()
        self._streams.clear()
        self._deadlines.clear()

    def _finalize(self, request: Request, delta: Delta) -> None:
        """Close the books on a reply, and have ``delta`` say what a last one says."""
        stream_id = self.submissions.pop(request.id).stream_id
        siblings = self._streams[stream_id]
        siblings.remove(request.id)
        if not siblings:
            del self._streams[stream_id]
            self._deadlines.pop(stream_id, None)
        assert request.finish_reason is not None
        delta.finish_reason = request.finish_reason
        delta.stop_reason = request.stop_reason
        delta.timings = request.timings(monotonic())
        delta.num_unfinished = len(siblings)
        self.finished[request.finish_reason.value] += 1
        self.metrics.observe_finished(request.finish_reason, delta.timings)
