"""Turns the sampled tokens of the replies in flight into text and deltas, and tracks which stream each belongs to."""

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
    """Returns the error for a request whose deadline passed before its first token."""
    assert request.deadline is not None
    return DeadlineError(
        f"The reply had not begun within its deadline of {request.deadline - request.arrival:g} seconds. Try again "
        "when fewer requests are waiting, or allow more time."
    )


def _last_text(submission: Submission, reason: FinishReason) -> str:
    """Returns the held-back text of a reply; empty where detokenizing fails, for that must not fail the step."""
    if reason is FinishReason.ERROR:
        return ""
    try:
        return submission.detokenizer.finish()
    except Exception:
        log.exception("request %s: cannot detokenize the end of the reply, so it is lost", submission.request.id)
        return ""


class OutputProcessor:
    """Holds every reply in flight, by request and by stream. Used by one thread only.

    A stream is one call's output: its request and the forks for ``n`` > 1.

    Args:
        scheduler: finishes requests here when their reply ends.
        metrics: observes latencies and finished requests.
    """

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        self.submissions: dict[str, Submission] = {}  #: by request id
        self.finished: dict[str, int] = {reason.value: 0 for reason in FinishReason}  #: number of replies so far
        self._scheduler = scheduler
        self._streams: dict[str, set[str]] = {}  # unfinished request ids, by stream id
        self._deadlines: dict[str, float] = {}  # by stream id, for streams with one

    def add(self, submission: Submission) -> None:
        """Adds a request that the scheduler has accepted, with its forks."""
        for one in (submission, *submission.forks):
            self._streams.setdefault(one.stream_id, set()).add(one.request.id)
            self.submissions[one.request.id] = one
        if submission.request.deadline is not None:
            self._deadlines[submission.stream_id] = submission.request.deadline

    def discard(self, stream_id: str) -> None:
        """Undoes :meth:`add` of a stream's first request, even where that failed halfway."""
        for request_id in self._streams.pop(stream_id, ()):
            self.submissions.pop(request_id, None)
        self._deadlines.pop(stream_id, None)

    def streams(self) -> list[str]:
        """Returns the ids of the streams that have not ended."""
        return list(self._streams)

    def submissions_of(self, stream_id: str) -> list[Submission]:
        """Returns the unfinished replies of a stream."""
        return [self.submissions[id_] for id_ in sorted(self._streams.get(stream_id, ()))]

    def process(self, advanced: Sequence[Request], deltas: dict[str, Delta]) -> dict[str, Exception]:
        """Turns the newest token of each request into text, and finishes requests whose text completes a stop string.

        Args:
            deltas: the step's deltas by request id, in the order of their last tokens; added to in place.

        Returns:
            The errors of the requests whose text failed. They have no delta, and the caller must end them.
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
        submission.forks = []  # from here on they run as replies of their own
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
            # Reported at once, for a user who stops the reply never gets its timings.
            delta.prompt_tokens = request.num_prompt_tokens
            delta.cached_prompt_tokens = request.num_cached_tokens
            delta.prompt_logprobs = tuple(submission.prompt_logprobs)
            submission.prompt_logprobs.clear()
        delta.num_unfinished = len(self._streams[submission.stream_id])
        if request.is_finished:
            self._finalize(request, delta)

    def observe_latencies(self, advanced: Sequence[Request]) -> None:
        """Observes how long each request waited for its newest token."""
        gaps = []
        for request in advanced:
            if request.last_gap is not None:
                gaps.append(request.last_gap)
            else:
                assert request.last_token is not None
                self.metrics.observe_first_token(request.last_token - request.arrival)
        self.metrics.observe_token_gaps(gaps)

    def end(self, stream_id: str, reason: FinishReason) -> list[tuple[Request, Delta]]:
        """Ends all replies of a stream and releases their blocks.

        Returns:
            The requests with their last deltas; empty when the stream has ended.
        """
        ended = []
        for submission in self.submissions_of(stream_id):
            request = self._scheduler.finish(submission.request.id, reason) or submission.request
            request.finish_reason = reason  # the scheduler does not know forks before their first token
            delta = Delta(stream_id, _last_text(submission, reason), index=submission.index)
            self._finalize(request, delta)
            ended.append((request, delta))
        return ended

    def expire_overdue(self) -> Iterator[tuple[str, list[Delta] | EngineError]]:
        """Ends each stream whose deadline has passed.

        Yields:
            The stream id, with the last deltas of the replies that have tokens, or an error when none has any.
        """
        if not self._deadlines:
            return
        now = monotonic()
        for stream_id in [id_ for id_, deadline in self._deadlines.items() if deadline <= now]:
            ended = self.end(stream_id, FinishReason.DEADLINE)
            begun = [delta for request, delta in ended if request.num_output_tokens]
            yield stream_id, begun or deadline_error(ended[0][0])

    def fail_all(self, lost: int) -> None:
        """Forgets all replies in flight, and counts ``lost`` of them as failed."""
        self.finished[FinishReason.ERROR.value] += lost
        self.submissions.clear()
        self._streams.clear()
        self._deadlines.clear()

    def _finalize(self, request: Request, delta: Delta) -> None:
        """Removes a finished reply, counts it, and fills in ``delta`` as its last one."""
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
