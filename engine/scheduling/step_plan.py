"""The plan of a step: which tokens of which requests it computes, and where their keys and values are stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from engine.scheduling.block_pool import BlockCopy
from engine.scheduling.request import Request

PLACEHOLDER_TOKEN_ID = 0
"""Stands in a plan for a token that an earlier step samples. Any valid id: it is replaced before it is computed."""
INSPECTED_TOKENS_PER_STEP = 8
"""Maximum tokens per step that a request has inspected. Each takes up to 7 ms with 150,000 tokens in the vocabulary,
and the other replies of the step wait for it."""


class Chunk(NamedTuple):
    """A request's part of one step: tokens ``start`` to ``end`` (exclusive) of its sequence."""

    request: Request
    start: int  #: position of the first token; all earlier ones are in the cache
    end: int  #: position after the last token, draft tokens excluded
    token_ids: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]  #: one for each layer group; covers at least positions 0 to ``end``
    samples: bool  #: whether the chunk reaches the end of the sequence, so that its last row gives the next token
    scored: range = range(0)  #: positions whose logits score the prompt token that follows each of them
    draft: tuple[int, ...] = ()  #: draft tokens after ``end``: computed in the same step, verified by sampling

    @property
    def computed_end(self) -> int:
        """Position after the last computed token, draft tokens included."""
        return self.end + len(self.draft)


@dataclass(frozen=True)
class StepPlan:
    """One forward pass: decodes and prompt chunks, packed."""

    chunks: tuple[Chunk, ...]
    copies: tuple[BlockCopy, ...] = ()  #: block copies to make before the forward pass, in this order
    num_decodes: int = 0  #: chunks of running requests with a single token left to compute
    num_prompt_tokens: int = 0  #: tokens of all other chunks: prompts, and preempted replies being recomputed
    must_drain: bool = False  #: a preemption, for blocks or a seat, must wait until launched steps complete

    @cached_property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) + len(chunk.draft) for chunk in self.chunks)

    @cached_property
    def num_sampled_rows(self) -> int:
        """Rows of logits for sampling: one for each chunk in :attr:`sampling`, and one for each draft token."""
        return sum([1 + len(chunk.draft) for chunk in self.sampling])

    @cached_property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that sample a token, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)


@dataclass(slots=True)
class PlanBuilder:
    """Builds a plan within its remaining budgets, in tokens."""

    budget: int  #: tokens left in total
    prompt_budget: int  #: of prompts, as pacing allows
    reserved: int  #: part of ``budget`` for decodes that are still to come, one token each
    scoring_budget: int  #: of prompts that are scored
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    num_decodes: int = 0
    num_prompt_tokens: int = 0

    @property
    def available(self) -> int:
        """Tokens of prompts that the plan may still take; below 1 for none."""
        return min(self.budget - self.reserved, self.prompt_budget)

    def chunk_length(self, request: Request, uncomputed: int) -> int:
        """Returns how many tokens of a request the plan may take now.

        Args:
            uncomputed: its uncomputed tokens. If it is 1 and the request is running, the caller has already
                subtracted it from ``reserved``.
        """
        length = uncomputed if uncomputed == 1 else min(uncomputed, self.available)
        if not request.scores_prompt:
            return length
        if request.is_inspected:
            not_scored = request.num_scored_tokens - 1 - request.num_computed_tokens - request.num_launched_tokens
            length = min(length, max(not_scored, 0) + INSPECTED_TOKENS_PER_STEP)
        return min(length, self.scoring_budget)

    def add(self, request: Request, end: int, *, is_decode: bool) -> None:
        """Adds the next tokens of a running request, up to ``end``. Its block tables must cover them."""
        start = request.num_computed_tokens + request.num_launched_tokens
        length = end - start
        token_ids = tuple(request.token_ids[start:end])
        if len(token_ids) < length:
            token_ids = (*token_ids, PLACEHOLDER_TOKEN_ID)
        scored = range(0)
        if request.scores_prompt:
            scored = range(max(start, request.num_scored_tokens - 1), min(end, request.num_prompt_tokens - 1))
            self.scoring_budget -= length
        samples = end == len(request.token_ids) + request.num_awaited_tokens
        block_tables = tuple(map(tuple, request.tables))
        self.chunks.append(Chunk(request, start, end, token_ids, block_tables, samples, scored))
        self.budget -= length
        if is_decode:
            self.num_decodes += 1
        else:
            self.prompt_budget -= length
            self.num_prompt_tokens += length

    def build(self, *, must_drain: bool) -> StepPlan:
        """Returns the plan.

        Args:
            must_drain: see :attr:`StepPlan.must_drain`.
        """
        return StepPlan(tuple(self.chunks), tuple(self.copies), self.num_decodes, self.num_prompt_tokens, must_drain)
