"""Sets up speculative decoding as the settings ask for."""

from __future__ import annotations

from engine.execution.attention.selection import select_kernel
from engine.execution.speculation.draft_model import DraftModel
from engine.execution.speculation.drafting import Drafting
from engine.execution.speculation.prompt_lookup import PromptLookup
from engine.execution.speculation.proposer import Proposer
from engine.model.load import LoadedModel
from engine.scheduling.cache_layout import CacheLayout
from engine.scheduling.scheduler import Scheduler
from engine.settings import EngineSettings


def make_drafting(
    settings: EngineSettings,
    model: LoadedModel,
    layout: CacheLayout,
    scheduler: Scheduler,
    max_short_step_tokens: int | None,
) -> Drafting | None:
    """Returns the drafting of one engine; None if speculation is off.

    Args:
        model: with its draft model, if ``settings`` name one.
        layout: of the model's cache, whose size is that of the scheduler's pool.
        max_short_step_tokens: see :class:`Drafting`.

    Raises:
        ModelLoadError: the draft model cannot run on this cache; the message says why.
    """
    if settings.speculation == "off":
        return None
    proposer: Proposer
    if settings.draft_model is None:
        proposer = PromptLookup()
    else:
        draft, pool = model.draft, scheduler.pool
        assert draft is not None, "models are loaded with their draft model"
        kernel, _ = select_kernel(settings.attention, draft.needs, draft.device, pool.block_size)
        proposer = DraftModel(
            draft,
            kernel,
            layout,
            vocab_size=model.vocab_size,
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
        )
    return Drafting(
        proposer, scheduler, num_tokens=settings.speculative_tokens, max_short_step_tokens=max_short_step_tokens
    )
