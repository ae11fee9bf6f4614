"""Turns the sampled tokens of the replies in flight into text and deltas, and tracks which stream each belongs to."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from engine.errors import DeadlineError, EngineError
from engine.execution.beam_stream import BeamStream
from engine.execution.fault_isolation import as_request_error
from engine.execution.steps.strategy import ComputedStep
from engine.execution.submission import Submission
from engine.outputs import Delta, FinishReason, PrefillProgress
from engine.runtime.metrics import EngineMetrics
from engine.sampling.beam_search import Beam
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.text.detokenizer import DetokenizedText

log = logging.getLogger(__name__)


def deadline_error(request: Request) -> DeadlineError:
    """Returns the error for a request whose deadline passed before its first token."""
    assert request.deadline is not None
    return DeadlineError(
        f"The reply had not begun within its deadline of {request.deadline - request.arrival:g} seconds. Try again "
        "when fewer requests are waiting, or allow more time."
    )


def _add_piece(delta: Delta, piece: DetokenizedText) -> None:
    delta.text += piece.text
    if piece.reasoning:
        delta.reasoning += piece.reasoning
    if piece.tool_calls:
        delta.tool_calls += piece.tool_calls


def _report_prompt(delta: Delta, submission: Submission) -> None:
    """Adds what is known of the prompt, with the first token: a user who stops the reply never gets its timings."""
    request = submission.request
    delta.prompt_tokens = request.num_prompt_tokens
    delta.cached_prompt_tokens = request.num_cached_tokens
    if request.first_scheduled is not None:
        delta.queue_seconds = request.first_scheduled - request.arrival
    delta.prompt_logprobs = tuple(submission.prompt_logprobs)
    submission.prompt_logprobs.clear()


def _last_text(submission: Submission, reason: FinishReason) -> DetokenizedText:
    """Returns the held-back text of a reply; empty where detokenizing fails, for that must not fail the step."""
    if reason is FinishReason.ERROR:
        return DetokenizedText()
    try:
        return submission.detokenizer.finish()
    except Exception:
        log.exception("request %s: cannot detokenize the end of the reply, so it is lost", submission.request.id)
        return DetokenizedText()


def _beam_delta(beams: BeamStream, submission: Submission, reply: Beam) -> Delta:
    """Returns the only delta of a reply found by beam search, as complete as the search knows it."""
    request = submission.request
    token_ids = tuple([scores.token_id for scores in reply.scores()])
    ends = bool(token_ids) and token_ids[-1] in request.stop_token_ids
    piece = submission.detokenizer.push(token_ids[:-1] if ends else token_ids)  # the stop token is not part of the text
    stop: str | int | None = piece.stop
    if ends and stop is None and token_ids[-1] in request.params.stop_token_ids:
        stop = token_ids[-1]
    is_first = submission.index == 0
    delta = Delta(
        submission.stream_id,
        token_ids=token_ids,
        finish_reason=FinishReason.STOP if ends or piece.stop is not None else FinishReason.LENGTH,
        stop_reason=stop,
        logprobs=beams.logprobs(reply),
        prompt_logprobs=tuple(submission.prompt_logprobs) if is_first else (),
        prompt_tokens=request.num_prompt_tokens if is_first else None,
        cached_prompt_tokens=request.num_cached_tokens if is_first else None,
        index=submission.index,
        beam_score=reply.score,
        sampled_at=request.last_token,
    )
    _add_piece(delta, piece)
    _add_piece(delta, submission.detokenizer.finish())
    return delta


class StepOutput:
    """The output of one :meth:`EngineCore.step`: deltas, one for each reply and call of the runner, and failures."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, EngineError]] = []  #: streams that failed, with their errors
        self._closed: list[Delta] = []
        self._open: dict[str, Delta] = {}  # by request id, in the order of their last tokens

    @property
    def deltas(self) -> list[Delta]:
        return [*self._closed, *self._open.values()]

    def add(self, delta: Delta) -> None:
        """Adds a delta that carries no token."""
        self._closed.append(delta)

    def close_deltas(self) -> None:
        """Closes the open deltas: a reply's next token starts a new one."""
        self._closed += self._open.values()
        self._open.clear()

    def delta_of(self, submission: Submission) -> Delta:
        """Returns the delta for the next token of a reply, which becomes the last one in order."""
        request = submission.request
        delta = self._open.pop(request.id, None)
        if delta is None:
            delta = Delta(submission.stream_id, index=submission.index, sampled_at=request.last_token)
        self._open[request.id] = delta
        return delta

    def drop_delta(self, request_id: str) -> None:
        """Drops the delta of a reply whose newest tokens could not be turned into text."""
        self._open.pop(request_id, None)


@dataclass(slots=True)
class _Pending:
    """The newest tokens of a reply, which have no text yet."""

    delta: Delta  #: of the call that sampled them
    token_ids: list[int] = field(default_factory=list)
    has_last: bool = False  #: whether the last of them ended the reply


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
        self._pending: dict[str, _Pending] = {}  # by request id, in the order of their last tokens
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

    def process(self, computed: ComputedStep, advanced: Sequence[Request], output: StepOutput) -> None:
        """Adds the deltas of a committed step: prefill progress, and the text of the newest tokens.

        Finishes requests whose text completes a stop string. A request whose text fails ends alone. The text of replies
        that no text can end is left to :meth:`end_call`.

        Args:
            advanced: the requests that got a token, as from :meth:`Scheduler.commit`.
        """
        for request_id, scores in computed.prompt_logprobs.items():
            if request_id in self.submissions:
                self.submissions[request_id].prompt_logprobs += scores
        self._report_progress(computed, output)
        self._observe_latencies(advanced)
        if computed.candidates:
            self._process_beams(computed, output)
        failed: dict[str, Exception] = {}  # by stream
        for request in advanced:
            submission = self.submissions[request.id]
            delta = output.delta_of(submission)
            if request.num_output_tokens == 1:
                _report_prompt(delta, submission)
            if request.id in computed.logprobs:
                delta.logprobs += (computed.logprobs[request.id],)
            pending = self._pending.pop(request.id, None) or _Pending(delta)
            pending.token_ids.append(request.token_ids[-1])
            pending.has_last = request.is_finished
            if submission.may_end_by_text:
                self._try_to_add_text(submission, pending, output, failed)
            else:
                self._pending[request.id] = pending
        self._fail_all(failed, output)

    def end_call(self, output: StepOutput) -> None:
        """Ends the deltas of a call of the runner: the tokens of all of its steps get their text at once."""
        self.add_texts(output)
        output.close_deltas()

    def add_texts(self, output: StepOutput) -> None:
        """Adds the text of the tokens that have none yet."""
        failed: dict[str, Exception] = {}  # by stream
        pending, self._pending = self._pending, {}
        for request_id, of_reply in pending.items():
            if (submission := self.submissions.get(request_id)) is not None:  # else its stream has failed
                self._try_to_add_text(submission, of_reply, output, failed)
        self._fail_all(failed, output)

    def _try_to_add_text(
        self, submission: Submission, pending: _Pending, output: StepOutput, failed: dict[str, Exception]
    ) -> None:
        try:
            self._add_text(submission, pending)
        except Exception as error:
            if submission.request.id not in self.submissions:  # already finalized, so its text is not the cause
                raise
            output.drop_delta(submission.request.id)
            failed.setdefault(submission.stream_id, error)

    def _fail_all(self, failed: Mapping[str, Exception], output: StepOutput) -> None:
        self.fail({stream_id: as_request_error(stream_id, error) for stream_id, error in failed.items()}, output)

    def _report_progress(self, computed: ComputedStep, output: StepOutput) -> None:
        """Adds a progress delta for each unfinished prefill in the step."""
        for chunk in computed.plan.chunks if computed.plan.num_prompt_tokens else ():
            request = chunk.request
            if not chunk.samples and request.num_output_tokens == 0 and not request.is_finished:
                progress = PrefillProgress(chunk.end, request.num_prompt_tokens)
                output.add(Delta(self.submissions[request.id].stream_id, progress=progress))

    def _add_text(self, submission: Submission, pending: _Pending) -> None:
        """Adds tokens and their text to the delta of a reply, and finalizes the reply if it ends with them."""
        request, delta = submission.request, pending.delta
        submission.forks = []  # from here on they run as replies of their own
        text_tokens = pending.token_ids
        if pending.has_last and request.finish_reason is FinishReason.STOP:
            text_tokens = text_tokens[:-1]  # the stop token itself is not part of the text
        piece = submission.detokenizer.push(text_tokens) if text_tokens else DetokenizedText()
        _add_piece(delta, piece)
        is_last = pending.has_last
        if piece.stop is not None or (not is_last and submission.sampling.is_complete):
            self._scheduler.finish(request.id, FinishReason.STOP, piece.stop)
            request.finish_reason, request.stop_reason = FinishReason.STOP, piece.stop
            is_last = True
        if is_last:
            _add_piece(delta, submission.detokenizer.finish())  # empty after a stop string
        delta.token_ids += tuple(pending.token_ids)
        delta.num_unfinished = len(self._streams[submission.stream_id])
        if is_last:
            self._finalize(request, delta)

    def _process_beams(self, computed: ComputedStep, output: StepOutput) -> None:
        """Continues the beam searches whose beams have all computed their step, and ends those that are over."""
        reported: dict[str, list[Submission]] = {}  # by stream
        for request_id, candidates in computed.candidates.items():
            submission = self.submissions.get(request_id)
            if submission is not None and submission.beams is not None:
                submission.beams.report({submission.index: candidates})
                reported.setdefault(submission.stream_id, []).append(submission)
        for stream_id, submissions in reported.items():
            beams = submissions[0].beams
            assert beams is not None
            if not beams.is_complete:
                for submission in submissions:
                    self._scheduler.park(submission.request)
                continue
            beams.submissions[0].forks = []
            choices = beams.advance()
            if choices is not None:
                requests = [submission.request for submission in beams.submissions]
                parents, tokens = zip(*choices, strict=True)
                self._scheduler.regroup(requests, parents, tokens)
                continue
            try:
                for _request, delta in self._end_beams(beams, None):
                    output.add(delta)
            except Exception as error:
                self.fail({stream_id: as_request_error(stream_id, error)}, output)

    def _end_beams(self, beams: BeamStream, reason: FinishReason | None) -> list[tuple[Request, Delta]]:
        """Ends all beams of a search, and returns the requests of its replies with their deltas.

        Args:
            reason: why it ends; None if it is over, and each reply has its own reason. The best replies are returned in
                this case and for a deadline; else there are none, and the deltas are empty.
        """
        returned = beams.submissions[: beams.num_replies]
        replies = beams.replies() if reason in (None, FinishReason.DEADLINE) else ()
        # All that can fail comes first: a failed search is ended again, with the error.
        deltas = [_beam_delta(beams, *pair) for pair in zip(returned, replies, strict=True)] if replies else []
        for submission in beams.submissions:
            self._scheduler.finish(submission.request.id, reason or FinishReason.STOP)
        for submission in beams.submissions[beams.num_replies :]:
            del self.submissions[submission.request.id]
            self._streams[submission.stream_id].remove(submission.request.id)
        ended = []
        for index, submission in enumerate(returned):
            request, delta = submission.request, Delta(submission.stream_id, index=index)
            if deltas:
                delta = deltas[index]
                request.token_ids[request.num_prompt_tokens :] = delta.token_ids
            request.finish_reason, request.stop_reason = reason or delta.finish_reason, delta.stop_reason
            self._finalize(request, delta)
            ended.append((request, delta))
        return ended

    def _observe_latencies(self, advanced: Sequence[Request]) -> None:
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
        submissions = self.submissions_of(stream_id)
        if submissions and submissions[0].beams is not None:
            return self._end_beams(submissions[0].beams, reason)
        ended = []
        for submission in submissions:
            request = self._scheduler.finish(submission.request.id, reason) or submission.request
            request.finish_reason = reason  # the scheduler does not know forks before their first token
            delta = Delta(stream_id, index=submission.index)
            _add_piece(delta, _last_text(submission, reason))
            self._finalize(request, delta)
            ended.append((request, delta))
        return ended

    def fail(self, failures: Mapping[str, EngineError], output: StepOutput) -> None:
        """Ends streams with their errors. Those that have ended already are left out."""
        for stream_id, error in failures.items():
            if self.end(stream_id, FinishReason.ERROR):
                output.failures.append((stream_id, error))

    def expire_overdue(self, output: StepOutput) -> None:
        """Ends each stream whose deadline has passed: with what its replies have, or an error where none has begun."""
        if not self._deadlines:
            return
        now = monotonic()
        for stream_id in [id_ for id_, deadline in self._deadlines.items() if deadline <= now]:
            ended = self.end(stream_id, FinishReason.DEADLINE)
            begun = [delta for request, delta in ended if request.num_output_tokens]
            for delta in begun:
                output.add(delta)
            if not begun:
                output.failures.append((stream_id, deadline_error(ended[0][0])))

    def forget_all(self, num_failed: int) -> None:
        """Forgets all replies in flight, and counts ``num_failed`` of them as failed."""
        self.finished[FinishReason.ERROR.value] += num_failed
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
