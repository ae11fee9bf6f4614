"""The engine without its thread: scheduler, runner, sampler and text streams, one synchronous step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import torch

from engine.attention.selection import select_kernel
from engine.capacity import plan_capacity
from engine.kv_cache import BlockPool
from engine.metrics import EngineMetrics
from engine.model.loading import LoadedModel, Progress
from engine.outputs import Delta, EngineStats, FinishReason, PrefillProgress
from engine.request import Request
from engine.runner import Runner
from engine.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.settings import EngineSettings
from engine.text import TextStream


@dataclass(slots=True)
class Submission:
    """A request, with what turns its logits into tokens and its tokens into text."""

    request: Request
    sampling: SamplingRow
    text: TextStream


class EngineCore:
    """Owns the model, the cache and every request in flight. Used by one thread only.

    Args:
        model: loaded and ready.
        settings: sizes and limits.
    """

    def __init__(self, model: LoadedModel, settings: EngineSettings) -> None:
        capacity = plan_capacity(model, settings)
        self.model = model
        self.max_model_len = capacity.max_model_len
        self.kernel = select_kernel(settings.attention, model.needs, model.device, settings.kv_block_size)
        self._pool = BlockPool(
            capacity.num_blocks, settings.kv_block_size, enable_prefix_caching=settings.enable_prefix_caching
        )
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
            max_model_len=capacity.max_model_len,
        )
        self._runner = Runner(model, self.kernel, num_blocks=capacity.num_blocks, block_size=settings.kv_block_size)
        self._sampler = Sampler()
        self._submissions: dict[str, Submission] = {}
        self._finished: dict[str, int] = {reason.value: 0 for reason in FinishReason}
        self.metrics = EngineMetrics(self.stats)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, submission: Submission) -> None:
        """Queue a request; ``ValueError`` when it can never be served."""
        self._scheduler.add(submission.request)
        self._submissions[submission.request.id] = submission

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks; False when it is no longer in flight."""
        return self._end(request_id, FinishReason.ABORT)

    def step(self) -> list[Delta]:
        """Compute one step and return what it brought, at most one delta for each request."""
        plan = self._scheduler.plan()
        if not plan.chunks:
            return []
        logits = self._runner.execute(plan)
        sampling = plan.sampling
        rows = [self._submissions[chunk.request.id].sampling for chunk in sampling]
        tokens = self._sampler.sample(logits, rows) if rows else []
        previous = {chunk.request.id: chunk.request.last_token for chunk in sampling}
        sampled = {chunk.request.id: token for chunk, token in zip(sampling, tokens, strict=True)}
        advanced = self._scheduler.commit(plan, sampled)

        deltas = [
            Delta(chunk.request.id, progress=PrefillProgress(chunk.end, chunk.request.num_prompt_tokens))
            for chunk in plan.chunks
            if not chunk.samples and chunk.request.num_output_tokens == 0
        ]
        for request in advanced:
            self._observe(request, previous[request.id])
            deltas.append(self._advance(request))
        return deltas

    def check(self) -> None:
        """Verify the books of the block pool; with nothing in flight every block must be free."""
        self._scheduler.check()

    def stats(self) -> EngineStats:
        """Counters and gauges. Plain reads, safe from any thread."""
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
            requests_finished=dict(self._finished),
        )

    # -- inner workings ---------------------------------------------------------------------------------

    def _advance(self, request: Request) -> Delta:
        """Turn a request's newest token into text, and end the request where that completes a stop string."""
        token = request.token_ids[-1]
        submission = self._submissions[request.id]
        text, stop_string = "", None
        if request.finish_reason is FinishReason.STOP:
            text = submission.text.finish()  # the stop token itself is not part of the text
        else:
            piece = submission.text.push([token])
            text, stop_string = piece.text, piece.stop
            if stop_string is not None:
                self._scheduler.finish(request.id, FinishReason.STOP, stop_string)
                request.finish_reason, request.stop_reason = FinishReason.STOP, stop_string
            elif request.is_finished:
                text += submission.text.finish()
        if not request.is_finished:
            return Delta(request.id, text, (token,))
        return self._last_delta(request, text, (token,))

    def _end(self, request_id: str, reason: FinishReason) -> bool:
        request = self._scheduler.finish(request_id, reason)
        if request is None:
            return False
        self._last_delta(request, "", ())
        return True

    def _last_delta(self, request: Request, text: str, token_ids: tuple[int, ...]) -> Delta:
        del self._submissions[request.id]
        assert request.finish_reason is not None
        timings = request.timings(monotonic())
        self._finished[request.finish_reason.value] += 1
        self.metrics.finished(request.finish_reason, timings)
        return Delta(
            request.id,
            text,
            token_ids,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            timings=timings,
        )

    def _observe(self, request: Request, previous_token: float | None) -> None:
        assert request.last_token is not None
        if previous_token is None:
            self.metrics.first_token(request.last_token - request.arrival)
        else:
            self.metrics.token_gap(request.last_token - previous_token)
