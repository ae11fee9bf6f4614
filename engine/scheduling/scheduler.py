"""Who computes what in the next step. Pure CPU, no torch: ``plan()`` gives a plan, ``commit()`` applies its tokens.

There is no prefill phase and no decode phase (the idea is vLLM's V1 scheduler): a step hands out a budget of
tokens, and each request's ``num_computed_tokens`` chases its length. Each decode has its token of the budget, for
somebody is reading; prompts fill what is left, in order of rank, as far as the pace beside decodes allows.

Order is the fairness: requests are ranked by arrival, priority and their user's turns (``engine/scheduling/fairness.py``), blocks
are taken in that order, nobody in the queue is overtaken by a later rank of the same user, and when blocks run out the
latest rank gives way. So the earliest request always advances, and every request is the earliest one day.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import NamedTuple, Protocol

from engine.outputs import FinishReason
from engine.scheduling.block_pool import BlockCopy, BlockPool
from engine.scheduling.block_tables import BlockTables
from engine.scheduling.fairness import FairShare, can_preempt
from engine.scheduling.in_flight import InFlight
from engine.scheduling.request import Request, RequestStatus

SCORED_TOKENS_PER_STEP = 128
"""Most tokens of a step from prompts whose log-probabilities are asked for: each has logits as wide as the
vocabulary."""


PLACEHOLDER_TOKEN_ID = 0
"""Stands in a plan for a token that a step before it samples. Any id that exists: it is never computed."""


class Clock(Protocol):
    """Seconds that never go back."""

    def __call__(self) -> float: ...


class PacingPolicy(Protocol):
    """How much of the prompts a step reads while replies are being written."""

    def max_prompt_tokens(self, decodes: int, prompts: int, steps: int) -> int:
        """Most prompt tokens of a step, at least 1: with so many decodes, and so many requests with prompts to read.

        Args:
            steps: that are computed before the next prompts can be read.
        """
        ...


class Chunk(NamedTuple):
    """A request's share of one step: tokens ``start .. end`` of its sequence."""

    request: Request
    start: int  #: position of the first token; all before it are in the cache
    end: int  #: behind the last token
    token_ids: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]  #: for each group of layers the blocks of positions 0 .. end, or more
    samples: bool  #: the chunk reaches the end of the sequence, so its last row gives the next token
    scored: range = range(0)  #: positions whose logits are needed to tell how likely the prompt's next token was
    draft: tuple[int, ...] = ()  #: guesses of what follows, computed too and verified by sampling at each of them

    @property
    def computed_end(self) -> int:
        """Behind the last token that is computed, guesses included."""
        return self.end + len(self.draft)


@dataclass(frozen=True)
class StepPlan:
    """One forward pass: decodes and prompt chunks, packed."""

    chunks: tuple[Chunk, ...]
    copies: tuple[BlockCopy, ...] = ()  #: to be made first, in this order
    num_decodes: int = 0  #: chunks that continue a reply by its newest token
    num_prompt_tokens: int = 0  #: of all other chunks, which catch up, some of them with replies that gave way
    lacks_blocks: bool = False  #: some who run are not in it, because blocks are lacking and a step has not landed

    @cached_property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) + len(chunk.draft) for chunk in self.chunks)

    @cached_property
    def num_sampled_rows(self) -> int:
        """Logits that sampling needs: one for each chunk in :attr:`sampling`, and for each of its guesses."""
        return sum([1 + len(chunk.draft) for chunk in self.sampling])

    @cached_property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that need logits, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)


@dataclass(slots=True)
class SchedulerCounters:
    """Grow from start; read by metrics."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


class Scheduler:
    """Continuous batching under a token budget, with prefix reuse and preemption by recompute.

    Args:
        pool: the KV blocks. It must hold one sequence of ``max_model_len`` tokens.
        max_num_seqs: most requests running at once.
        max_batched_tokens: token budget of a step; at least ``max_num_seqs``, so that every decode has its turn.
        max_model_len: longest sequence, prompt and reply together.
        windows: for each group of layers how far a token sees, itself included; None for all.
        pacing: of prompts beside decodes; None for all that the budget leaves.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_model_len: int,
        windows: Sequence[int | None] = (None,),
        pacing: PacingPolicy | None = None,
        clock: Clock = monotonic,
    ) -> None:
        if max_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_batched_tokens ({max_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}): "
                "every running request needs one token of the budget"
            )
        tables = BlockTables(pool, windows)
        if tables.max_blocks(max_model_len, max_batched_tokens) > pool.num_usable:
            raise ValueError(
                f"{pool.num_usable} KV blocks of {pool.block_size} tokens cannot hold "
                f"one sequence of {max_model_len} tokens"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.counters = SchedulerCounters()
        self._pacing = pacing
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._tables = tables
        self._waiting: list[Request] = []  # by rank
        self._running: list[Request] = []  # by rank
        self._fair_share = FairShare()
        self.in_flight = InFlight(tables)

    @property
    def tables(self) -> BlockTables:
        return self._tables

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Sequence[Request]:
        """By rank."""
        return self._running

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self.in_flight)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request in flight, running ones first."""
        return (*self._running, *self._waiting)

    def get(self, request_id: str) -> Request | None:
        """A request in flight."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: it can never be served, or its id is taken.
        """
        if request.id in self._requests:
            raise ValueError(f"request id {request.id!r} is already in flight")
        if request.num_prompt_tokens + 1 > self.max_model_len:
            raise ValueError(
                f"the prompt is {request.num_prompt_tokens} tokens long; with at least one token of reply "
                f"at most {self.max_model_len} fit"
            )
        self._requests[request.id] = request
        self._enter(request)
        insort(self._waiting, request, key=_rank)

    def plan(self, steps: int = 1) -> StepPlan:
        """Choose the next step and take the blocks it needs. Empty only when nothing is in flight, or not landed.

        Args:
            steps: so many may be computed before the next plan.
        """
        budget = self.max_batched_tokens
        scorable = SCORED_TOKENS_PER_STEP
        chunks: list[Chunk] = []
        copies: list[BlockCopy] = []
        num_decodes = 0
        short = False
        is_queue_open = True
        preempted_requests: set[Request] = set()  # who gave way in this step
        skipped_users: set[str | None] = set()  # users whose next request waits without holding up other users

        if self._fair_share.move_up(self._clock()):
            self._sort_queues()
        reserved = sum([request.num_uncomputed_tokens == 1 for request in self._running])  # a token for each decode
        readable = max_prompt_tokens = self._max_prompt_tokens(reserved, steps)
        order = self._order()
        for request in order:
            if request.status is RequestStatus.WAITING:
                # Blocks that somebody lacks are for those who run, not for the next in the queue.
                room = min(budget - reserved, readable)
                if (
                    short
                    or not is_queue_open
                    or room <= 0
                    or request in preempted_requests
                    or request.user in skipped_users
                ):
                    continue
                if request.scores_prompt and scorable == 0:
                    skipped_users.add(request.user)
                    continue
                admission = self._admit_preempting(request, room)
                reserved -= admission.num_decodes
                preempted_requests |= admission.preempted
                short |= admission.must_drain
                if admission.copies is None:
                    if self._waits_for_own_user(request, room):
                        skipped_users.add(request.user)
                    else:
                        is_queue_open = False
                    continue
                copies += admission.copies
                self._waiting.remove(request)
                length = self._chunk_length(request, room, scorable)
                chunks.append(self._chunk(request, request.num_computed_tokens + length))
                budget -= length
                readable -= length
                scorable -= length * request.scores_prompt
                continue
            uncomputed = request.num_uncomputed_tokens
            if uncomputed == 1:
                reserved -= 1
                length = 1 if scorable or not request.scores_prompt else 0
            else:
                length = self._chunk_length(request, min(budget - reserved, readable), scorable)
            if length == 0:
                continue
            end = request.num_computed_tokens + request.num_launched_tokens + length
            while request.status is RequestStatus.RUNNING:
                missing = self._tables.num_missing_blocks(request, end)
                if missing <= self.pool.num_free:
                    if missing:
                        copies += self._tables.grow(request, end)
                    chunks.append(self._chunk(request, end))
                    budget -= length
                    if uncomputed == 1:
                        num_decodes += 1
                    else:
                        readable -= length
                    if request.params.prompt_logprobs is not None:
                        scorable -= length * request.scores_prompt
                    break
                short = True
                if self.in_flight:
                    break
                victim = self._running[-1]  # none of those in this step: they come earlier
                reserved -= victim is not request and victim.num_uncomputed_tokens == 1
                self._preempt(victim)

        self.counters.steps += bool(chunks)
        lacks_blocks = short and bool(self.in_flight)
        return StepPlan(tuple(chunks), tuple(copies), num_decodes, max_prompt_tokens - readable, lacks_blocks)

    def commit(self, plan: StepPlan, tokens: Mapping[str, int], at: float | None = None) -> list[Request]:
        """Apply what a step computed.

        Args:
            plan: the plan that was executed; requests aborted since are passed over.
            tokens: the sampled token of each request in ``plan.sampling``, and of its forks.
            at: when they were sampled; None for now.

        Returns:
            The requests that got a token, in order; finished ones have given up their blocks.
        """
        now = self._clock() if at is None else at
        advanced: list[Request] = []
        for chunk in plan.chunks:
            request = chunk.request
            if request.status is not RequestStatus.RUNNING:
                continue
            self._tables.advance(request, chunk.end)
            if chunk.scored:
                request.num_scored_tokens = chunk.scored.stop + 1
            if not chunk.samples:
                continue
            sampled = [request]
            if request.forks:
                sampled += request.forks
                request.forks = []
                for fork in sampled[1:]:
                    self._start_fork(fork, request)
            for one in sampled:
                self._append(one, tokens[one.id], now)
            advanced += sampled
        return advanced

    def finish(self, request_id: str, reason: FinishReason, stop_reason: str | int | None = None) -> Request | None:
        """End a request wherever it stands and free its blocks. None when it is not (or no longer) in flight."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        (self._running if request.status is RequestStatus.RUNNING else self._waiting).remove(request)
        self._fair_share.remove(request)
        keep = reason is not FinishReason.ERROR  # what made a request fail may be in its blocks
        self.in_flight.release(request, keep=keep)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        return request

    def evacuate(self) -> list[Request]:
        """Take out everything in flight, by rank, as it was before its first step but with the tokens it has.

        For another scheduler with a cache of its own: this one's pool has failed, and its books are abandoned.
        """
        requests = sorted(self._requests.values(), key=_rank)
        for request in requests:
            request.tables = []
            request.num_computed_tokens = 0
            request.num_registered_blocks = 0
            request.status = RequestStatus.WAITING
        self.in_flight.abandon(requests)
        self._requests.clear()
        self._fair_share.clear()
        self._running.clear()
        self._waiting.clear()
        return requests

    def check(self) -> None:
        """Verify that blocks and requests agree (``IntegrityError`` if not). With nothing in flight, all are free."""
        self._tables.check([*self._requests.values(), *self.in_flight.deferred_frees])

    # -- inner workings ---------------------------------------------------------------------------------

    def _order(self) -> Sequence[Request]:
        """Requests in the order in which a step serves them: by rank, where there are several users.

        With one of them those who run come first: the others are the same user's, and take no seat of theirs. Only
        background requests give theirs up to the same user's, so they come behind all others.
        """
        order = [*self._running, *self._waiting]
        if self._waiting and self._fair_share.has_several_users:
            order.sort(key=_rank)
        elif self._waiting and self._fair_share.has_background:
            order.sort(key=_is_background)
        return order

    def _admit_preempting(self, request: Request, budget: int) -> _Admission:
        """Start a waiting request. Where seats or blocks are lacking, later turns of other users give theirs up.

        None gives way to a later rank, so no two requests take each other's place, and none where the blocks of all of
        them would not do.
        """
        preempted: set[Request] = set()
        num_decodes = 0
        while True:
            copies = self._admit(request, budget) if len(self._running) < self.max_num_seqs else None
            later = [other for other in self._running if can_preempt(request, other)] if copies is None else []
            if not later or not self._tables.can_fit_without(
                later, request, reusable=self._reusable(request), budget=budget
            ):
                return _Admission(preempted, num_decodes, copies)
            if self.in_flight:
                return _Admission(preempted, num_decodes, None, must_drain=True)
            last = later[-1]
            num_decodes += last.num_uncomputed_tokens == 1
            self._preempt(last)
            preempted.add(last)

    def _waits_for_own_user(self, request: Request, budget: int) -> bool:
        """Whether a request that found no room would have it without its own user's later ranks.

        A request takes no seat of its own user, but those behind it in the queue may take these seats, so it does not
        close the queue. It is not overtaken for ever: it closes the queue as soon as those replies have ended, and no
        request of its user that ranks later starts before it.
        """
        later = [other for other in self._running if other.user == request.user and other.rank > request.rank]
        if not later:
            return False
        later += [other for other in self._running if can_preempt(request, other)]
        return self._tables.can_fit_without(later, request, reusable=self._reusable(request), budget=budget)

    def _max_prompt_tokens(self, decodes: int, steps: int) -> int:
        seats = self.max_num_seqs - len(self._running)
        prompts = len(self._running) - decodes + min(seats, len(self._waiting))
        if self._pacing is None or decodes == 0 or prompts == 0:
            return self.max_batched_tokens
        return self._pacing.max_prompt_tokens(decodes, prompts, steps)

    def _append(self, request: Request, token: int, now: float) -> None:
        request.token_ids.append(token)
        self.counters.generation_tokens += 1
        if request.last_token is None:
            request.first_token = now
        else:
            request.last_gap = now - request.last_token
        request.last_token = now
        if token in request.stop_token_ids and request.num_output_tokens >= request.params.min_tokens:
            # None at the model's own end of sequence, as in vLLM.
            asked_for = token in request.params.stop_token_ids
            self.finish(request.id, FinishReason.STOP, token if asked_for else None)
        elif request.num_output_tokens >= request.max_tokens:
            self.finish(request.id, FinishReason.LENGTH)

    def _start_fork(self, fork: Request, parent: Request) -> None:
        """Start a fork with all that its parent has computed; without a seat it waits, and finds that cached."""
        self._requests[fork.id] = fork
        self._enter(fork)
        fork.first_scheduled = parent.first_scheduled
        fork.num_cached_tokens = parent.num_cached_tokens
        fork.num_scored_tokens = parent.num_scored_tokens
        if len(self._running) < self.max_num_seqs:
            self._tables.fork(parent, fork)
            fork.status = RequestStatus.RUNNING
            insort(self._running, fork, key=_rank)
        else:
            insort(self._waiting, fork, key=_rank)

    def _enter(self, request: Request) -> None:
        if self._fair_share.add(request, self._clock()):
            self._sort_queues()

    def _sort_queues(self) -> None:
        self._running.sort(key=_rank)
        self._waiting.sort(key=_rank)

    def _preempt(self, request: Request) -> None:
        """Take a request's seat and its blocks. It will be computed again, from what the cache still holds."""
        self._running.remove(request)
        self._tables.release(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.counters.preemptions += 1
        insort(self._waiting, request, key=_rank)

    def _admit(self, request: Request, budget: int) -> list[BlockCopy] | None:
        """Start a waiting request if blocks for it can be had now; returns the copies its first step needs."""
        copies = self._tables.attach(request, reusable=self._reusable(request), budget=budget)
        if copies is None:
            return None
        request.status = RequestStatus.RUNNING
        insort(self._running, request, key=_rank)
        if request.first_scheduled is None:
            request.first_scheduled = self._clock()
            request.num_cached_tokens = request.num_computed_tokens
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_prompt_tokens += request.num_cached_tokens
        return copies

    def _reusable(self, request: Request) -> int:
        """Most tokens that may come from the cache. The last is always computed: its logits are what we are after."""
        reusable = len(request.token_ids) - 1
        if request.scores_prompt:  # what the cache holds has no logits
            reusable = min(reusable, request.num_scored_tokens - 1)
        return reusable

    def _chunk_length(self, request: Request, budget: int, scorable: int) -> int:
        if request.scores_prompt:
            budget = min(budget, scorable)
        return min(budget, request.num_uncomputed_tokens)

    def _chunk(self, request: Request, end: int) -> Chunk:
        start = request.num_computed_tokens + request.num_launched_tokens
        token_ids = tuple(request.token_ids[start:end])
        if len(token_ids) < end - start:
            token_ids = (*token_ids, PLACEHOLDER_TOKEN_ID)
        scored = range(0)
        if request.scores_prompt:
            scored = range(max(start, request.num_scored_tokens - 1), min(end, request.num_prompt_tokens - 1))
        return Chunk(
            request,
            start,
            end,
            token_ids,
            tuple(map(tuple, request.tables)),
            end == len(request.token_ids) + request.num_awaited_tokens,
            scored,
        )


@dataclass(frozen=True, slots=True)
class _Admission:
    """What it took to start a waiting request."""

    preempted: set[Request]  #: wait again
    num_decodes: int  #: of these, how many were to continue a reply
    copies: list[BlockCopy] | None  #: that its first step needs; None where it was not started
    must_drain: bool = False  #: nobody can give way before the steps that were launched have landed


def _rank(request: Request) -> float:
    return request.rank


def _is_background(request: Request) -> bool:
    return request.is_background
