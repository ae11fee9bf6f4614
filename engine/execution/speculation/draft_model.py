"""Proposes draft tokens with a smaller model with the same tokenizer: its greedy continuation, a token at a time.

Its keys and values use the same block numbers as the model's, in its own tensors with as many blocks. So whatever the
model finds in the prefix cache, shares with a fork, copies or recomputes is there for the draft model as well, and
needs no bookkeeping of its own. For that, the draft model computes every token that the model computes: a step's
chunks first, then its own draft tokens one by one. A wrong draft token is overwritten, as in the model's own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from engine.errors import ModelLoadError
from engine.execution.attention.base import AttentionKernel
from engine.execution.runner import Runner
from engine.model.loaded_model import LoadedModel
from engine.scheduling.block_pool import BlockCopy
from engine.scheduling.cache_layout import CacheLayout, LayerGroup
from engine.scheduling.step_plan import Chunk, StepPlan


def draft_layout(draft: LoadedModel) -> CacheLayout:
    """Returns a layout with one block table for all layers; sliding windows are only masked."""
    return CacheLayout(draft.layers, (LayerGroup(tuple(range(len(draft.layers))), None),))


class DraftModel:
    """A proposer that runs a draft model.

    Args:
        draft: the smaller model.
        kernel: computes its attention.
        layout: cache layout of the model that verifies the draft tokens.
        vocab_size: of that model; token ids beyond it are never proposed.
        num_blocks, block_size, kv_cache_dtype: of that model's cache.
        populates_cache: whether both caches take their memory now, see :class:`engine.execution.runner.Runner`.

    Raises:
        ModelLoadError: the draft model attends further back than that model's cache keeps tokens.
    """

    def __init__(
        self,
        draft: LoadedModel,
        kernel: AttentionKernel,
        layout: CacheLayout,
        *,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        kv_cache_dtype: str = "auto",
        populates_cache: bool = False,
    ) -> None:
        self._group = _widest_window_group(draft, layout)
        self._context = draft.max_position_embeddings
        self._vocab_size = draft.vocab_size
        self._has_smaller_vocabulary = draft.vocab_size < vocab_size  # the two may be padded to different sizes
        self._shared_vocab_size = min(vocab_size, draft.vocab_size)
        self._runner = Runner(
            draft,
            kernel,
            draft_layout(draft),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_cache_dtype=kv_cache_dtype,
            populates_cache=populates_cache,
            applies_adapters=False,
        )

    def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
        counts = [
            max(0, min(count, self._context - chunk.end)) for chunk, count in zip(plan.chunks, counts, strict=True)
        ]
        drafts: list[list[int]] = [[] for _ in plan.chunks]
        unfinished = [index for index, count in enumerate(counts) if count]
        read = [
            self._draft_chunk(chunk, samples=count > 0)
            for chunk, count in zip(plan.chunks, counts, strict=True)
            if chunk.start < self._context
        ]
        tokens = self._compute(read, plan.copies)
        while unfinished:
            for index, token in zip(unfinished, tokens, strict=True):
                drafts[index].append(token)
            unfinished = [index for index in unfinished if len(drafts[index]) < counts[index]]
            tokens = self._compute([self._next_chunk(plan.chunks[index], drafts[index]) for index in unfinished])
        return [tuple(draft) for draft in drafts]

    def confirm(self, chunks: Sequence[Chunk]) -> None:
        self._compute([self._draft_chunk(chunk, samples=False) for chunk in chunks])

    def _draft_chunk(self, chunk: Chunk, *, samples: bool) -> Chunk:
        """Returns a chunk as the draft model computes it, cut off at the end of its context."""
        end = min(chunk.end, self._context)
        token_ids = chunk.token_ids[: end - chunk.start]
        if self._has_smaller_vocabulary:
            token_ids = tuple([token if token < self._vocab_size else 0 for token in token_ids])
        tables = (chunk.block_tables[self._group],)
        return Chunk(chunk.request, chunk.start, end, token_ids, tables, samples)

    def _next_chunk(self, chunk: Chunk, draft: Sequence[int]) -> Chunk:
        """Returns the newest draft token as a chunk of its own."""
        end = chunk.end + len(draft)
        return Chunk(chunk.request, end - 1, end, (draft[-1],), (chunk.block_tables[self._group],), samples=True)

    def _compute(self, chunks: Sequence[Chunk], copies: tuple[BlockCopy, ...] = ()) -> list[int]:
        """Computes chunks; returns the likeliest next token of each chunk that samples."""
        if not chunks:
            return []
        logits = self._runner.execute(StepPlan(tuple(chunks), copies))
        tokens: list[int] = logits[:, : self._shared_vocab_size].argmax(-1).tolist()
        return tokens


def _widest_window_group(draft: LoadedModel, layout: CacheLayout) -> int:
    """Returns the group whose block tables the draft model uses: the one with the widest window."""

    def reach(window: int | None) -> float:
        return inf if window is None else window

    group = max(range(len(layout.groups)), key=lambda index: reach(layout.windows[index]))
    if max(reach(layer.sliding_window) for layer in draft.layers) > reach(layout.windows[group]):
        raise ModelLoadError(
            f"{draft.name} cannot be the draft model: it looks further back than the {layout.windows[group]} tokens "
            "that are kept for the model. Choose one whose sliding window is no longer, or speculation=prompt-lookup."
        )
    return group
