"""One request and its life: waiting → running → finished, and back to waiting when preempted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.outputs import FinishReason, Timings
from engine.sampling_params import BACKGROUND_PRIORITY, SamplingParams

PRIORITY_SECONDS = 60.0

BACKGROUND_SECONDS = 1e9
"""Later than any other request ranks: 30 years."""


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Request:
    """What the scheduler knows of a request. Only the scheduler changes it, and speculation what counts guesses.

    ``num_computed_tokens`` chases ``len(token_ids)``: what is computed has its keys and values in the cache.
    Prefill, chunked prefill, prefix hits, decode and resuming after preemption are all that one race.

    Args:
        id: unique among requests in flight.
        prompt_token_ids: at least one token.
        params: every field set (see ``SamplingParams.with_defaults``).
        seed: fixes the noise of this reply together with the position.
        max_tokens: most tokens to generate, already limited by the context window.
        stop_token_ids: tokens that end the reply (the model's end-of-sequence tokens among them unless ignored).
        arrival: seconds on the engine's monotonic clock.
        deadline: on the same clock, when the reply must have ended; None for no limit.
        priority: lower comes first: each step ranks a request later by a minute. So a more urgent one overtakes those
            that came up to a minute earlier for each step, and nobody is overtaken for ever. Among the waiting requests
            of one user the same holds, whatever their turns. :data:`BACKGROUND_PRIORITY` comes after all others.
        cache_salt: only requests with equal salt share what is cached.
        private_salt: the same for what lies behind the shared tokens; empty shares it with every request without one.
        num_shared_tokens: so many of the first tokens depend on no user's text.
        user: users take turns, see :mod:`engine.scheduling.fairness`; None for requests of no user.
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

    rank: float = field(init=False)  #: requests are served in this order: seconds on the engine's clock
    turn: int = 0  #: how many requests of its user come before it
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)  #: prompt, then what was generated
    num_computed_tokens: int = 0
    num_launched_tokens: int = 0  #: behind those: in steps that were launched and have not landed
    num_awaited_tokens: int = 0  #: which those steps sample, and which will be computed in turn
    tables: list[list[int]] = field(default_factory=list)  #: a block table for each group of layers; none while waiting
    block_hashes: list[bytes] = field(default_factory=list)  #: addresses of the full blocks known so far
    num_registered_blocks: int = 0  #: how many blocks of a table were offered to the prefix index

    forks: list[Request] = field(default_factory=list)  #: more replies to the same prompt, begun when it is computed

    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    num_scored_tokens: int = 1  #: prompt tokens whose log-probability is known; nothing predicts the first
    num_cached_tokens: int = 0  #: prompt tokens found in the prefix cache when first scheduled
    num_preemptions: int = 0
    num_draft_tokens: int = 0  #: guesses that were computed for this reply
    num_accepted_draft_tokens: int = 0  #: of them those that were right, and so spared a step
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    last_gap: float | None = None  #: seconds between the last two tokens; None before the second

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError("a request needs at least one prompt token")
        self.token_ids = list(self.prompt_token_ids)
        self.rank = self.arrival + self.delay

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Once the steps that were launched have landed."""
        return len(self.token_ids) + self.num_awaited_tokens - self.num_computed_tokens - self.num_launched_tokens

    @property
    def scores_prompt(self) -> bool:
        """Log-probabilities of the prompt were asked for, and some are not known yet."""
        return self.params.prompt_logprobs is not None and self.num_scored_tokens < self.num_prompt_tokens

    @property
    def delay(self) -> float:
        """Seconds by which the priority ranks a request later, or earlier."""
        return self.priority * PRIORITY_SECONDS + (BACKGROUND_SECONDS if self.is_background else 0.0)

    @property
    def is_background(self) -> bool:
        """It runs on the seats and blocks that other requests leave, and is no turn of its user."""
        return self.priority >= BACKGROUND_PRIORITY

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def timings(self, now: float) -> Timings:
        """What was achieved; a phase that was never reached counts until ``now``."""
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
