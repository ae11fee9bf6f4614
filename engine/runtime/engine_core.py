"""The synchronous core of the engine: scheduler, runner, sampler and output processing, one step per call."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from torch import Tensor

from engine.errors import EngineError, LogitsError, first_line
from engine.execution.attention.selection import select_kernel
from engine.execution.fault_isolation import as_request_error, find_failing_rows
from engine.execution.graphs import CudaRecorder, Recorder
from engine.execution.native.sampling import NativeSampling
from engine.execution.runner import Runner
from engine.execution.speculation.selection import make_drafting
from engine.execution.steps.multi_step import ComputedStep, MultiStep, MultiStepOutput, MultiStepRow
from engine.execution.steps.overlapped import CudaReadback, Overlap, Readback
from engine.execution.submission import Submission
from engine.model.load import LoadedModel
from engine.outputs import Delta, EngineStats, FinishReason, PrefillProgress
from engine.runtime.capacity import plan_capacity
from engine.runtime.metrics import EngineMetrics
from engine.runtime.output_processor import OutputProcessor
from engine.runtime.request_processor import RequestProcessor
from engine.runtime.utilisation import StepLoad
from engine.sampling.logprobs import named_scores, score
from engine.sampling.sampler import Sampler, SamplingRow, unusable_scores
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.block_tables import held_blocks
from engine.scheduling.cache_layout import CacheLayout
from engine.scheduling.pacing import Pacing
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler, SchedulerCounters, StepPlan
from engine.settings import EngineSettings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepResult:
    """Output of one step: at most one delta for each reply, and the streams that failed, with their errors."""

    deltas: list[Delta] = field(default_factory=list)
    failures: list[tuple[str, EngineError]] = field(default_factory=list)


class EngineCore:
    """Owns the model, the cache and every request in flight.

    A stream is the output of one call: its ``n`` replies are siblings, each a :class:`Request` wrapped in a
    :class:`Submission`.

    Used by one thread only, except for ``request_processor`` and :meth:`stats`, which any thread may use.

    Args:
        model: loaded and ready.
        settings: sizes and limits.
        recorder: records decodes; None means CUDA graphs on a GPU, and no recording elsewhere.
        readback: copies tokens to the host while the next step is computed; None means CUDA's on a GPU, and no
            overlapped steps elsewhere.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        recorder: Recorder | None = None,
        readback: Readback | None = None,
    ) -> None:
        layout = CacheLayout.of(model.layers)
        self.kernel, block_size = select_kernel(settings.attention, model.needs, model.device, settings.kv_block_size)
        capacity = plan_capacity(model, layout, settings, block_size)
        self.model = model
        self._pool = BlockPool(
            capacity.num_blocks,
            block_size,
            enable_prefix_caching=settings.enable_prefix_caching,
            contiguous=self.kernel.prefers_contiguous,
        )
        self._pacing = Pacing(settings.max_batched_tokens)
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
            max_model_len=capacity.max_model_len,
            windows=layout.windows,
            pacing=self._pacing,
        )
        self._runner = Runner(
            model,
            self.kernel,
            layout,
            num_blocks=capacity.num_blocks,
            block_size=block_size,
            batch_invariant=settings.batch_invariant,
        )
        self._drafting = make_drafting(settings, model, layout, self._scheduler, self._runner.max_short_step_tokens)
        self._multi_step: MultiStep | None = None
        if self._runner.max_native_tokens and self._drafting is None:
            self._multi_step = MultiStep(self._scheduler, self._pacing, self._runner.max_native_tokens)
        self._record_decodes(recorder, settings, capacity.max_model_len)
        # Where steps run in C++, sampling does too.
        self._sampler = Sampler(NativeSampling() if model.decoder is not None else None)
        self.request_processor = RequestProcessor(model, settings, capacity.max_model_len)
        self._overlap: Overlap | None = None
        can_overlap = readback is not None or model.device.type == "cuda"
        if settings.overlap and can_overlap and self._drafting is None:  # drafting needs the sampled tokens
            self._overlap = Overlap(self._runner, self._scheduler, readback or CudaReadback())
        self._output_processor = OutputProcessor(self._scheduler, EngineMetrics(self.stats))
        self._submissions = self._output_processor.submissions
        self._step_request_ids: tuple[str, ...] = ()  # requests in the latest step, or steps in flight

    @property
    def metrics(self) -> EngineMetrics:
        """Metrics of steps and replies."""
        return self._output_processor.metrics

    @metrics.setter
    def metrics(self, metrics: EngineMetrics) -> None:
        self._output_processor.metrics = metrics

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, submission: Submission) -> None:
        """Queues a request. Raises ``ValueError`` when it can never be served."""
        self._scheduler.add(submission.request)  # leaves nothing behind when it raises
        try:
            self._output_processor.add(submission)
        except BaseException:
            self._output_processor.discard(submission.stream_id)
            self._scheduler.finish(submission.request.id, FinishReason.ERROR)
            raise

    def abort(self, stream_id: str) -> bool:
        """Aborts all replies of a stream and releases their blocks; False when it is no longer in flight."""
        return bool(self._output_processor.end(stream_id, FinishReason.ABORT))

    def abort_all(self) -> None:
        """Aborts every request and releases its blocks."""
        for stream_id in self._output_processor.streams():
            self.abort(stream_id)
        while self._scheduler.has_work:  # a step on the device holds blocks until it is complete
            self.step()

    def evacuate(self) -> tuple[list[Submission], list[Submission]]:
        """Empties the core after a failed step, and releases its cache.

        The request processor stays usable until the next core replaces this one.

        Returns:
            The requests that were in the step, with their siblings, and all others, ready for another core.
        """
        submissions = [self._submissions[request.id] for request in self._scheduler.evacuate()]
        broken = {self._submissions[id_].stream_id for id_ in self._step_request_ids if id_ in self._submissions}
        failed = [one for one in submissions if one.stream_id in broken]
        self._output_processor.fail_all(len(failed))
        del self._runner, self._overlap
        self._drafting = None  # a draft model has a cache of its own
        return failed, [one for one in submissions if one.stream_id not in broken]

    def step(self) -> StepResult:
        """Computes one step, or several where the multi-step decoder can, and expires overdue requests first.

        With overlapped steps it launches the next step and returns the output of the one before it.

        Raises:
            Exception: the step failed. The core cannot go on: call :meth:`evacuate` and build another.
        """
        result = StepResult()
        for stream_id, ended in self._output_processor.expire_overdue():
            if isinstance(ended, EngineError):
                result.failures.append((stream_id, ended))
            else:
                result.deltas += ended
        max_steps = 1 if self._multi_step is None else self._multi_step.max_steps(self._submissions)
        plan = self._scheduler.plan(max_steps) if self._overlap is None else self._launch_next(self._overlap, result)
        if not plan.chunks:
            return result
        self._step_request_ids = tuple([chunk.request.id for chunk in plan.chunks])
        began = monotonic()
        fell_back = False
        if self._drafting is not None:
            plan = self._drafting.extend(plan)
        if self._multi_step is not None and max_steps > 1 and self._multi_step.can_run(plan, self._submissions):
            plan, replies = self._multi_step.extend(plan, max_steps, self._submissions)
            output = self._run_multi_step(plan, replies, max_steps)
            fell_back = output is None
            if output is not None and output.tokens:
                self._commit_steps(self._multi_step.computed_steps(plan, output, began), result)
                return result
            # Without tokens, the first step's logits were unusable: sampling row by row finds whose.
            logits = self._runner.execute(plan) if output is None else output.logits
        else:
            logits = self._runner.execute(plan)
        if len(logits) > plan.num_sampled_rows:  # the rows after them score prompt tokens
            self._score_prompts(plan, logits[plan.num_sampled_rows :])
            logits = logits[: plan.num_sampled_rows]
        seconds, num_generated = 0.0, 0
        deltas: dict[str, Delta] = {}  # by reply, in the order of their last tokens
        for part, rows in [(plan, None)] if self._drafting is None else self._drafting.verify(plan):
            tokens = self._sample(part, logits if rows is None else logits[rows], result)
            seconds += monotonic() - began
            advanced = self._scheduler.commit(part, tokens)
            num_generated += len(advanced)
            self._advance(advanced, deltas, result)
            began = monotonic()
        if fell_back and not result.failures:
            self._multi_step = None  # no request caused it, so it is our defect and would recur in each step
        self._measure(plan, seconds + monotonic() - began, num_generated)
        self._report_progress(plan, result)
        result.deltas += deltas.values()
        return result

    def _run_multi_step(
        self, plan: StepPlan, replies: Sequence[MultiStepRow], max_steps: int
    ) -> MultiStepOutput | None:
        """Computes several steps in one C++ call; None where a reply's parameters cannot be packed for it."""
        try:
            return self._runner.execute_steps(plan, replies, max_steps)
        except (struct.error, ArithmeticError, TypeError, ValueError):  # sampling row by row will find the request
            log.exception("multi-step decoding failed; computing a single step instead")
            return None

    def _commit_steps(self, steps: Iterable[ComputedStep], result: StepResult) -> None:
        """Commits several steps that were computed in one call."""
        deltas: dict[str, Delta] = {}  # by reply, in the order of their last tokens
        for plan, tokens, seconds, at in steps:
            advanced = self._scheduler.commit(plan, tokens, at)
            self._measure(plan, seconds, len(advanced))
            self._report_progress(plan, result)
            self._advance(advanced, deltas, result)
        result.deltas += deltas.values()

    def _launch_next(self, overlap: Overlap, result: StepResult) -> StepPlan:
        """Launches the next step before reading back the one in flight, where it can.

        Returns:
            What is left to compute synchronously: an empty plan when a step was launched.
        """
        if overlap.must_drain:
            self._complete_step(overlap, result)
        plan, before = self._scheduler.plan(), overlap.plans
        launches = bool(plan.chunks) and overlap.can_run(plan, self._submissions)
        if launches:
            # If the device fails now, either step may be the cause.
            self._step_request_ids = tuple([chunk.request.id for each in (*before, plan) for chunk in each.chunks])
            overlap.launch(plan, self._submissions)
        if before:
            self._complete_step(overlap, result)
        if launches:
            return StepPlan(())
        # Fills in the tokens that have become known, and drops requests that have just ended.
        return self._scheduler.in_flight.resolve(plan) if before else plan

    def _complete_step(self, overlap: Overlap, result: StepResult) -> None:
        """Reads back the tokens of the earliest launched step, and commits them.

        Failed streams end first, while their blocks still belong to the launched step: completing it releases them.
        """
        completed = overlap.complete_step()
        for stream_id in {self._submissions[id_].stream_id for id_ in completed.unusable}:
            self._output_processor.end(stream_id, FinishReason.ERROR)
            result.failures.append((stream_id, unusable_scores(completed.unusable)))
        for request_id, cause in completed.failed.items():
            self._fail(request_id, cause, result)
        tainted = self._scheduler.in_flight.complete_step(completed.launched, completed.invalidated)
        if tainted:
            self._runner.zero_blocks(tainted)
        self._measure(completed.plan, completed.seconds, len(completed.tokens))
        advanced = self._scheduler.commit(completed.plan, completed.tokens)
        self._report_progress(completed.plan, result)
        deltas: dict[str, Delta] = {}
        self._advance(advanced, deltas, result)
        result.deltas += deltas.values()

    def _advance(self, advanced: Sequence[Request], deltas: dict[str, Delta], result: StepResult) -> None:
        """Turns new tokens into deltas. A request whose detokenization fails ends alone."""
        self._output_processor.observe_latencies(advanced)
        for request_id, cause in self._output_processor.process(advanced, deltas).items():
            self._fail(request_id, cause, result)

    def _report_progress(self, plan: StepPlan, result: StepResult) -> None:
        """Adds a progress delta for each unfinished prefill in the step."""
        for chunk in plan.chunks if plan.num_prompt_tokens else ():
            request = chunk.request
            if not chunk.samples and request.num_output_tokens == 0 and not request.is_finished:
                progress = PrefillProgress(chunk.end, request.num_prompt_tokens)
                result.deltas.append(Delta(self._submissions[request.id].stream_id, progress=progress))

    def _measure(self, plan: StepPlan, seconds: float, num_generated: int) -> None:
        self._pacing.observe(plan.num_decodes, plan.num_prompt_tokens, seconds)
        self.metrics.observe_step(
            StepLoad(
                seconds=seconds,
                sequences=len(plan.chunks) / self._scheduler.max_num_seqs,
                tokens=plan.num_tokens / self._scheduler.max_batched_tokens,
                prompt_tokens=sum(
                    [
                        min(chunk.end, chunk.request.num_prompt_tokens) - chunk.start
                        for chunk in plan.chunks
                        if chunk.start < chunk.request.num_prompt_tokens
                    ]
                ),
                generated_tokens=num_generated,
            )
        )

    def _sample(self, plan: StepPlan, logits: Tensor, result: StepResult) -> dict[str, int]:
        """Samples the next token of each sampling request, by request id.

        A request with unusable logits or parameters fails alone, not the whole batch.
        """
        ids: list[str] = []
        origin: list[int] = []  # forks are sampled from the logits of the prompt they share
        for row, chunk in enumerate(plan.sampling):
            for one in (chunk.request, *chunk.request.forks):
                ids.append(one.id)
                origin.append(row)
        if len(ids) > len(plan.sampling):
            logits = logits[origin]
        while ids:
            rows = [self._submissions[id_].sampling for id_ in ids]
            try:
                return dict(zip(ids, self._sample_rows(logits, ids, rows), strict=True))
            except LogitsError as error:
                for stream_id in {self._submissions[id_].stream_id for id_ in error.request_ids}:
                    held = {
                        b for one in self._output_processor.submissions_of(stream_id) for b in held_blocks(one.request)
                    }
                    self._output_processor.end(stream_id, FinishReason.ERROR)
                    # Its KV may hold NaN, which would spread: masked keys are multiplied by zero, not skipped.
                    self._runner.zero_blocks(self._pool.evict(held))
                    result.failures.append((stream_id, error))
            except Exception as error:
                alone = partial(self._sample_alone, logits, ids, rows)
                for index, cause in find_failing_rows(error, logits, alone).items():
                    self._fail(ids[index], cause, result)
            kept = [index for index, id_ in enumerate(ids) if id_ in self._submissions]
            ids = [ids[index] for index in kept]
            logits = logits[kept]
        return {}

    def _sample_rows(self, logits: Tensor, ids: Sequence[str], rows: Sequence[SamplingRow]) -> list[int]:
        tokens = self._sampler.sample(logits, rows)
        self._score(logits, ids, tokens)
        return tokens

    def _sample_alone(self, logits: Tensor, ids: Sequence[str], rows: Sequence[SamplingRow], index: int) -> None:
        one = slice(index, index + 1)
        self._sample_rows(logits[one], ids[one], rows[one])

    def _fail(self, request_id: str, cause: Exception, result: StepResult) -> None:
        """Ends the whole stream of a request whose own parameters failed, siblings included."""
        submission = self._submissions.get(request_id)
        if submission is not None:  # a sibling may have ended the stream
            self._output_processor.end(submission.stream_id, FinishReason.ERROR)
            result.failures.append((submission.stream_id, as_request_error(submission.stream_id, cause)))

    def _score(self, logits: Tensor, ids: Sequence[str], tokens: Sequence[int]) -> None:
        """Computes the log-probabilities of sampled tokens, only for the requests that asked for them."""
        wanted = [
            (index, submission, count)
            for index, id_ in enumerate(ids)
            if (count := (submission := self._submissions[id_]).request.params.logprobs) is not None
        ]
        if not wanted:
            return
        rows = [index for index, _, _ in wanted]
        scored = score(logits[rows], [tokens[index] for index in rows], [count for _, _, count in wanted])
        for (_, submission, _), scores in zip(wanted, scored, strict=True):
            submission.logprobs = (named_scores(self.request_processor.vocabulary, scores),)

    def _score_prompts(self, plan: StepPlan, logits: Tensor) -> None:
        """Computes the log-probabilities of this step's prompt tokens, from the logits of the tokens before them."""
        chunks = [chunk for chunk in plan.chunks if chunk.scored]
        tokens: list[int] = []
        counts: list[int] = []
        for chunk in chunks:
            tokens += chunk.request.prompt_token_ids[chunk.scored.start + 1 : chunk.scored.stop + 1]
            counts += [chunk.request.params.prompt_logprobs or 0] * len(chunk.scored)
        scored = iter(score(logits, tokens, counts))
        for chunk in chunks:
            prompt_logprobs = self._submissions[chunk.request.id].prompt_logprobs
            prompt_logprobs += (named_scores(self.request_processor.vocabulary, next(scored)) for _ in chunk.scored)

    def reset(self) -> None:
        """Clears the prefix cache, the counters and the metrics, after warming up."""
        self._pool.reset_prefix_cache()
        self._scheduler.counters = SchedulerCounters()
        self._output_processor.finished = dict.fromkeys(self._output_processor.finished, 0)
        self.metrics = EngineMetrics(self.stats)

    def check(self) -> None:
        """Verifies the block pool's accounting: with no request in flight, every block must be free."""
        self._scheduler.check()

    def stats(self) -> EngineStats:
        """Returns counters and gauges. Only reads plain values, so any thread may call it."""
        counters = self._scheduler.counters
        return EngineStats(
            num_requests_running=self._scheduler.num_running,
            num_requests_waiting=self._scheduler.num_waiting,
            kv_cache_usage=self._pool.usage,
            num_kv_blocks=self._pool.num_usable,
            kv_block_size=self._pool.block_size,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            generation_tokens=counters.generation_tokens,
            num_preemptions=counters.preemptions,
            num_steps=counters.steps,
            requests_finished=dict(self._output_processor.finished),
            draft_tokens=counters.draft_tokens,
            accepted_draft_tokens=counters.accepted_draft_tokens,
        )

    # -- internals --------------------------------------------------------------------------------------

    def _record_decodes(self, recorder: Recorder | None, settings: EngineSettings, max_model_len: int) -> None:
        """Records CUDA graphs of decodes. Where that fails, the engine serves more slowly, and the log says why."""
        if not settings.cuda_graphs or (recorder is None and self.model.device.type != "cuda"):
            return
        reason = None
        if settings.batch_invariant:
            reason = "batch invariance computes token by token"
        elif not self.kernel.supports_graphs:
            reason = f"the attention kernel {self.kernel.name} does not support them"
        elif self.model.rotary is not None:
            reason = "the model's rotary embedding depends on each sequence's length"
        else:
            try:
                sizes = self._runner.record_decodes(
                    recorder or CudaRecorder(), max_rows=settings.max_sampled_rows, max_model_len=max_model_len
                )
                log.info("CUDA graphs: decodes of %s tokens", ", ".join(map(str, sizes)))
            except RuntimeError as error:
                reason = first_line(error)
        if reason is not None:
            log.warning("no CUDA graphs: %s", reason)
