"""Builds an engine's step strategy: its runner, its cache, and the strategy that fits the model and the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from engine.errors import first_line
from engine.execution.capacity import Capacity
from engine.execution.graphs import CudaRecorder, Recorder
from engine.execution.native.sampling import NativeSampling
from engine.execution.runner import Runner
from engine.execution.speculation.forced_tokens import MIN_SAMPLED_ROWS, ForcedTokens
from engine.execution.speculation.selection import make_proposer
from engine.execution.step_sampler import StepSampler
from engine.execution.steps.multi_step import DecodeTimes, MultiSteps
from engine.execution.steps.overlapped import CudaReadback, OverlappedSteps, Readback
from engine.execution.steps.speculative import SpeculativeSteps
from engine.execution.steps.strategy import StepStrategy
from engine.execution.submission import Submission
from engine.model.loaded_model import LoadedModel
from engine.sampling.sampler import Sampler
from engine.scheduling.scheduler import Scheduler
from engine.settings import EngineSettings
from engine.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def make_strategy(
    model: LoadedModel,
    settings: EngineSettings,
    capacity: Capacity,
    scheduler: Scheduler,
    *,
    submissions: Mapping[str, Submission],
    vocabulary: Vocabulary,
    times: DecodeTimes,
    recorder: Recorder | None = None,
    readback: Readback | None = None,
) -> StepStrategy:
    """Allocates the cache and returns the strategy: speculative, multi-step, overlapped or sequential.

    Speculation excludes the others: drafting needs the sampled tokens on the host. Each strategy falls back to a
    sequential step where a plan is not eligible for its own way.

    Args:
        submissions: the replies in flight, by request id. The output processor adds and removes them.
        vocabulary: names the tokens in log-probabilities.
        times: step durations.
        recorder, readback: see :class:`engine.runtime.engine_core.EngineCore`.

    Raises:
        ModelLoadError: the draft model cannot run on this cache; the message says why.
    """
    runner = Runner(
        model,
        capacity.kernel,
        capacity.layout,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        batch_invariant=settings.batch_invariant,
        kv_cache_dtype=settings.kv_cache_dtype,
        populates_cache=settings.kv_cache_memory is not None,
    )
    # Where steps run in C++, sampling does too.
    sampler = StepSampler(submissions, vocabulary, Sampler(NativeSampling() if model.decoder is not None else None))
    proposer = make_proposer(settings, model, capacity)
    _record_decodes(runner, model, settings, capacity, recorder)
    if settings.draft_model is not None:
        assert proposer is not None
        return SpeculativeSteps(scheduler, runner, sampler, proposer, settings.speculative_tokens)
    forced = ForcedTokens(sampler.sampling_row, proposer)
    if proposer is not None:
        return SpeculativeSteps(scheduler, runner, sampler, forced, settings.speculative_tokens)
    if settings.overlap and not runner.max_native_tokens and (readback is not None or model.device.type == "cuda"):
        return OverlappedSteps(scheduler, runner, sampler, readback or CudaReadback())
    # Only what a grammar forces is drafted, in about as many rows as a step may have without drafts.
    max_rows = max(settings.max_sampled_rows, MIN_SAMPLED_ROWS)
    single = SpeculativeSteps(scheduler, runner, sampler, forced, forced.count, max_rows)
    return MultiSteps(scheduler, runner, sampler, times, single) if runner.max_native_tokens else single


def _record_decodes(
    runner: Runner, model: LoadedModel, settings: EngineSettings, capacity: Capacity, recorder: Recorder | None
) -> None:
    """Records CUDA graphs of decodes. Where that fails, the engine serves more slowly, and the log says why."""
    if not settings.cuda_graphs or (recorder is None and model.device.type != "cuda"):
        return
    reason = None
    if settings.batch_invariant:
        reason = "batch invariance computes token by token"
    elif not capacity.kernel.supports_graphs:
        reason = f"the attention kernel {capacity.kernel.name} does not support them"
    elif model.rotary is not None:
        reason = "the model's rotary embedding depends on each sequence's length"
    else:
        try:
            sizes = runner.record_decodes(
                recorder or CudaRecorder(), max_rows=settings.max_sampled_rows, max_model_len=capacity.max_model_len
            )
            log.info("CUDA graphs: decodes of %s tokens", ", ".join(map(str, sizes)))
        except RuntimeError as error:
            reason = first_line(error)
    if reason is not None:
        log.warning("no CUDA graphs: %s", reason)
