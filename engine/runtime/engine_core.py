"""The synchronous core of the engine: schedules, computes, samples and outputs, one step after another."""

from __future__ import annotations

from engine.execution.capacity import plan_capacity
from engine.execution.graphs import Recorder
from engine.execution.steps.overlapped import Readback
from engine.execution.steps.selection import make_strategy
from engine.execution.steps.strategy import ComputedStep, StepStrategy
from engine.execution.submission import Submission
from engine.model.loaded_model import LoadedModel
from engine.outputs import EngineStats, FinishReason
from engine.runtime.metrics import EngineMetrics
from engine.runtime.output_processor import OutputProcessor, StepOutput
from engine.runtime.request_processor import RequestProcessor
from engine.runtime.utilisation import StepLoad
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.pacing import TILE_ROWS, Pacing
from engine.scheduling.scheduler import Scheduler, SchedulerCounters
from engine.settings import EngineSettings


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
        capacity = plan_capacity(model, settings)
        self.model = model
        self.kernel = capacity.kernel
        self._pool = BlockPool(
            capacity.num_blocks,
            capacity.block_size,
            enable_prefix_caching=settings.enable_prefix_caching,
            contiguous=capacity.kernel.prefers_contiguous,
        )
        self._pacing = Pacing(settings.max_batched_tokens, model.decoder.tile_rows if model.decoder else TILE_ROWS)
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
            max_model_len=capacity.max_model_len,
            windows=capacity.layout.windows,
            pacing=self._pacing,
        )
        self.request_processor = RequestProcessor(model, settings, capacity.max_model_len)
        self._output_processor = OutputProcessor(self._scheduler, EngineMetrics(self.stats))
        self._submissions = self._output_processor.submissions  # the same dict, which only the processor changes
        self._strategy: StepStrategy | None = make_strategy(
            model,
            settings,
            capacity,
            self._scheduler,
            submissions=self._submissions,
            vocabulary=self.request_processor.vocabulary,
            times=self._pacing,
            recorder=recorder,
            readback=readback,
        )

    @property
    def strategy(self) -> StepStrategy:
        """Computes the steps. Raises ``RuntimeError`` after :meth:`evacuate`, which releases it with its cache."""
        if self._strategy is None:
            raise RuntimeError("this core was evacuated after a failed step; build another")
        return self._strategy

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
        in_step = self.strategy.request_ids
        broken = {self._submissions[id_].stream_id for id_ in in_step if id_ in self._submissions}
        # Of a search that has begun, some beams may be parked: they would wait for siblings that are admitted later.
        broken |= {one.stream_id for one in submissions if one.beams is not None and one.beams.has_begun}
        failed = [one for one in submissions if one.stream_id in broken]
        # If ending a stream is what failed, it has left the scheduler, and its reader is still waiting.
        scheduled = {one.stream_id for one in submissions}
        failed += [one for one in self._submissions.values() if one.stream_id not in scheduled]
        self._output_processor.forget_all(num_failed=len(failed))
        self._strategy = None
        return failed, [one for one in submissions if one.stream_id not in broken]

    def step(self, output: StepOutput | None = None) -> StepOutput:
        """Ends overdue requests, then computes a step, or several steps in one call if the strategy can.

        With overlapped steps it launches the next step, and returns the output of the one before it.

        Args:
            output: receives the output, and is returned; None means a new one. After a failure it holds what was ready
                before. Deliver that as well: replies that ended before the failure are no longer in the core.

        Raises:
            Exception: the step failed. The core cannot go on: call :meth:`evacuate` and build another.
        """
        output = StepOutput() if output is None else output
        self._output_processor.expire_overdue(output)
        try:
            for computed in self.strategy.advance():
                if not computed.is_continuation:
                    self._output_processor.end_call(output)
                elif computed.failures:
                    self._output_processor.add_texts(output)  # of the steps before, which a failed stream gets, too
                self._output_processor.fail(computed.failures, output)
                advanced = self._scheduler.commit(computed.plan, computed.tokens, computed.sampled_at)
                self._measure(computed, num_generated=len(advanced) + len(computed.candidates))
                self._output_processor.process(computed, advanced, output)
        finally:
            self._output_processor.end_call(output)
        return output

    def _measure(self, computed: ComputedStep, num_generated: int) -> None:
        plan = computed.plan
        if computed.has_forward_pass:
            self._pacing.observe(plan.num_decodes, plan.num_prompt_tokens, computed.seconds)
        self.metrics.observe_step(
            StepLoad(
                seconds=computed.seconds,
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
                has_forward_pass=computed.has_forward_pass,
            )
        )

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
