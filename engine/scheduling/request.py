"""A request in the scheduler: waiting → running → finished, and back to waiting when preempted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.outputs import FinishReason, Timings
from engine.sampling_params import BACKGROUND_PRIORITY, SamplingParams
from engine.scheduling.adapter import Adapter

PRIORITY_SECONDS = 60.0
"""Seconds by which each unit of ``priority`` ranks a request later."""

BACKGROUND_SECONDS = 1e9
"""Seconds by which a background request ranks later: 30 years, so that it ranks after all others."""


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    PARKED = auto()  #: a beam that waits, without blocks, for its siblings' step
    FINISHED = auto()


@dataclass(eq=False)
class Request:
    """Scheduling state of a request. Only the scheduler changes it, except for the draft token counts.

    ``num_computed_tokens`` catches up with ``len(token_ids)``; computed tokens have their keys and values in the cache.
    Prefill, chunked prefill, prefix hits, decode and resuming after preemption are all cases of this.

    Args:
        id: unique among requests in flight.
        prompt_token_ids: at least one token.
        params: every field set (see ``SamplingParams.with_defaults``).
        seed: determines, together with the position, the random numbers of this reply.
        max_tokens: maximum number of tokens to generate, already limited by the context window.
        stop_token_ids: tokens that end the reply (including the model's end-of-sequence tokens unless ignored).
        arrival: seconds on the engine's monotonic clock.
        deadline: time on the same clock by which the reply must have ended; None for no limit.
        priority: lower is served first. Each unit ranks a request a minute later, so a request whose priority is lower
            by n overtakes only those that arrived up to n minutes earlier, and none is overtaken for ever. The same
            order holds among one user's waiting requests, whatever their turns. :data:`BACKGROUND_PRIORITY` comes
            after all others.
        cache_salt: only requests with equal salts share cached blocks.
        private_salt: the same, for tokens after the shared ones; with an empty salt they are shared with every other
            request whose salt is empty.
        num_shared_tokens: length of the prompt's prefix that depends on no user's text.
        adapter: changes the weights that compute this request; its content id is part of ``cache_salt``.
        user: users take turns, see :mod:`engine.scheduling.fairness`; None for a request without a user.
        is_beam: its tokens come from :meth:`Scheduler.regroup`, not from sampling.

    Raises:
        ValueError: the prompt is empty.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    arrival: float
    deadline: float | None = None
    priority: int = 0
    cache_salt: bytes = b""
    private_salt: bytes = b""
    num_shared_tokens: int = 0
    user: str | None = None
    is_beam: bool = False
    adapter: Adapter | None = None

    rank: float = field(init=False)  #: order of service, lowest first: seconds on the engine's clock
    turn: int = 0  #: number of its user's requests that come before it
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)  #: prompt, then what was generated
    num_computed_tokens: int = 0
    num_launched_tokens: int = 0  #: tokens after those, in launched steps that have not completed
    num_awaited_tokens: int = 0  #: tokens that those steps sample and later steps will compute
    tables: list[list[int]] = field(default_factory=list)  #: a block table for each layer group; empty while waiting
    block_hashes: list[bytes] = field(default_factory=list)  #: content hashes of the full blocks of ``token_ids``
    num_registered_blocks: int = 0  #: number of blocks of a table that were registered in the prefix cache

    forks: list[Request] = field(default_factory=list)  #: more replies to this prompt, started once it is computed

    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    num_scored_tokens: int = 1  #: prompt tokens whose log-probability is known; nothing predicts the first
    is_inspected: bool = False  #: the scored tokens are inspected, too, which takes longer than to score them
    num_cached_tokens: int = 0  #: prompt tokens found in the prefix cache when first scheduled
    num_preemptions: int = 0
    num_draft_tokens: int = 0  #: draft tokens that were computed for this reply
    num_accepted_draft_tokens: int = 0  #: draft tokens that were accepted; each saved a decode step
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    last_gap: float | None = None  #: seconds between the last two tokens; None before the second

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError("a request needs at least one prompt token")
        self.token_ids = list(self.prompt_token_ids)
        self.rank = self.arrival + self.rank_offset_seconds

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens left to compute once all launched steps have completed; 1 for a decode."""
        return len(self.token_ids) + self.num_awaited_tokens - self.num_computed_tokens - self.num_launched_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt log-probabilities were requested and some are not computed yet."""
        return self.params.prompt_logprobs is not None and self.num_scored_tokens < self.num_prompt_tokens

    @property
    def rank_offset_seconds(self) -> float:
        """Seconds by which the priority ranks the request later; negative for earlier."""
        return self.priority * PRIORITY_SECONDS + (BACKGROUND_SECONDS if self.is_background else 0.0)

    @property
    def is_background(self) -> bool:
        """Whether it runs only on seats and blocks that other requests leave free. It is then no turn of its user."""
        return self.priority >= BACKGROUND_PRIORITY

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def timings(self, now: float) -> Timings:
        """Returns token counts and durations. A phase that has not been reached counts until ``now``."""
        first_token = self.first_token if self.first_token is not None else now
        last_token = self.last_token if self.last_token is not None else now
        gaps = self.num_output_tokens - 1
        return Timings(
            prompt_tokens=self.num_prompt_tokens,
            cached_prompt_tokens=self.num_cached_tokens,
            completion_tokens=self.num_output_tokens,
            queue_seconds=(self.first_scheduled if self.first_scheduled is not None else now) - self.arrival,
            time_to_first_token_seconds=first_token - self.arrival,
            inter_token_latency_seconds=(last_token - first_token) / gaps if gaps > 0 else 0.0,
            total_seconds=last_token - self.arrival,
            num_preemptions=self.num_preemptions,
            draft_tokens=self.num_draft_tokens,
            accepted_draft_tokens=self.num_accepted_draft_tokens,
        )
