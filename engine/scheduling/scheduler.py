"""The continuous-batching scheduler: ``plan()`` chooses the next step, ``commit()`` applies its tokens. No torch.

There is no prefill phase and no decode phase (as in vLLM's V1 scheduler): a step distributes a budget of tokens, and
each request's ``num_computed_tokens`` catches up with its length. One token of the budget is reserved for each decode,
because a reader waits for it. Prompts get the rest, in order of rank, limited by the pacing policy while replies are
being decoded.

Requests are ranked by arrival, priority and their user's turns (``engine/scheduling/fairness.py``). Blocks are
allocated in order of rank. No waiting request is overtaken by a later rank of the same user. When blocks run out, the
latest rank is preempted. So the request with the earliest rank always advances, and every request becomes the earliest
in time.

A *seat* is one of the ``max_num_seqs`` places for running requests. *Forks* are the other replies of a request with
``n > 1``: they start when its prompt is computed. Draft tokens are added to a plan by the caller, see
:mod:`engine.execution.speculation`.
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
"""Maximum tokens per step from prompts with ``prompt_logprobs``, since each needs logits as wide as the vocabulary.
The rest of such prompts waits for later steps; other requests use the rest of the step."""


PLACEHOLDER_TOKEN_ID = 0
"""Stands in a plan for a token that an earlier step samples. Any valid id: it is replaced before it is computed."""


class Clock(Protocol):
    """Seconds that never go back."""

    def __call__(self) -> float: ...


class PacingPolicy(Protocol):
    """Limits the prompt tokens of a step while replies are being decoded."""

    def max_prompt_tokens(self, decodes: int, prompts: int, steps: int) -> int:
        """Returns the maximum number of prompt tokens in a step, at least 1.

        Args:
            decodes: decodes in the step.
            prompts: requests with prompt tokens to compute.
            steps: number of steps computed before prompt tokens can be computed again.
        """
        ...


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
class SchedulerCounters:
    """Totals since the start, read by the metrics."""

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
        max_num_seqs: maximum number of running requests.
        max_batched_tokens: token budget of a step; at least ``max_num_seqs``, so that every decode fits.
        max_model_len: maximum length of a sequence in tokens, prompt and reply together.
        windows: attention window of each layer group in tokens, the token itself included; None for full attention.
        pacing: limits prompt tokens in steps with decodes; None lets prompts use the rest of the budget.
        clock: in seconds; must never go back.

    Raises:
        ValueError: the budget or the pool is too small.
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
        """The running requests, by rank."""
        return self._running

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self.in_flight)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request in flight, running ones first."""
        return (*self._running, *self._waiting)

    def get(self, request_id: str) -> Request | None:
        """Returns the request if it is in flight."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            ValueError: the request can never be served, or its id is already in flight.
        """
        if request.id in self._requests:
            raise ValueError(f"request id {request.id!r} is already in flight")
        if request.num_prompt_tokens + 1 > self.max_model_len:
            raise ValueError(
                f"the prompt is {request.num_prompt_tokens} tokens long; "
                f"the context of {self.max_model_len} tokens must also hold at least one token of the reply"
            )
        self._requests[request.id] = request
        self._enter(request)
        insort(self._waiting, request, key=_rank)

    def plan(self, steps: int = 1) -> StepPlan:
        """Plans the next step and allocates its blocks.

        The plan is empty only when no request is in flight, or while a launched step has not completed.

        Args:
            steps: number of steps that may be computed before the next call, see multi-step decoding.
        """
        budget = self.max_batched_tokens  # tokens that this plan may still take
        scoring_budget = SCORED_TOKENS_PER_STEP  # of these, from prompts that are scored
        chunks: list[Chunk] = []
        copies: list[BlockCopy] = []
        num_decodes = 0
        lacks_blocks = False  # a running request lacks blocks, or a preemption must wait for the steps in flight
        is_queue_open = True  # until a waiting request does not fit: no later one may start before it
        preempted_requests: set[Request] = set()  # preempted for waiting requests in this plan; not readmitted in it
        skipped_users: set[str | None] = set()  # users whose next request waits without holding up other users

        if self._fair_share.move_up(self._clock()):
            self._sort_queues()
        # Budget reserved for decodes that are still to come in this plan, one token each.
        reserved = sum([request.num_uncomputed_tokens == 1 for request in self._running])
        # Prompt tokens that pacing still allows in this plan.
        prompt_budget = max_prompt_tokens = self._max_prompt_tokens(reserved, steps)
        order = self._order()
        for request in order:
            if request.status is RequestStatus.WAITING:
                # Once a running request lacks blocks, free ones are kept for running requests, not for the queue.
                chunk_budget = min(budget - reserved, prompt_budget)
                if lacks_blocks or not is_queue_open or chunk_budget <= 0 or request.user in skipped_users:
                    continue
                if request in preempted_requests:
                    skipped_users.add(request.user)  # no later rank of its user takes the blocks it gave up
                    continue
                if request.scores_prompt and scoring_budget == 0:
                    skipped_users.add(request.user)
                    continue
                admission = self._admit_preempting(request, chunk_budget)
                reserved -= admission.num_decodes
                preempted_requests |= admission.preempted
                lacks_blocks |= admission.must_drain
                if admission.copies is None:
                    if self._waits_for_own_user(request, chunk_budget):
                        skipped_users.add(request.user)
                    else:
                        is_queue_open = False
                    continue
                copies += admission.copies
                self._waiting.remove(request)
                length = self._chunk_length(request, chunk_budget, scoring_budget)
                chunks.append(self._chunk(request, request.num_computed_tokens + length))
                budget -= length
                prompt_budget -= length
                scoring_budget -= length * request.scores_prompt
                continue
            uncomputed = request.num_uncomputed_tokens
            if uncomputed == 1:
                reserved -= 1
                length = 1 if scoring_budget or not request.scores_prompt else 0
            else:
                length = self._chunk_length(request, min(budget - reserved, prompt_budget), scoring_budget)
            if length == 0:
                continue
            end = request.num_computed_tokens + request.num_launched_tokens + length
            while request.status is RequestStatus.RUNNING:  # ends when it has its blocks, or was itself preempted
                missing = self._tables.num_missing_blocks(request, end)
                if missing <= self.pool.num_free:
                    if missing:
                        copies += self._tables.grow(request, end)
                    chunks.append(self._chunk(request, end))
                    budget -= length
                    if uncomputed == 1:
                        num_decodes += 1
                    else:
                        prompt_budget -= length
                    if request.params.prompt_logprobs is not None:
                        scoring_budget -= length * request.scores_prompt
                    break
                lacks_blocks = True
                if self.in_flight:
                    break
                victim = self._running[-1]  # has no chunk in this plan: requests with chunks rank earlier
                reserved -= victim is not request and victim.num_uncomputed_tokens == 1
                self._preempt(victim)

        self.counters.steps += bool(chunks)
        must_drain = lacks_blocks and bool(self.in_flight)
        return StepPlan(tuple(chunks), tuple(copies), num_decodes, max_prompt_tokens - prompt_budget, must_drain)

    def commit(self, plan: StepPlan, tokens: Mapping[str, int], at: float | None = None) -> list[Request]:
        """Applies the results of a step.

        Args:
            plan: the executed plan; requests aborted since are skipped.
            tokens: the sampled token of each request in ``plan.sampling``, and of its forks.
            at: when the tokens were sampled; None means now.

        Returns:
            The requests that got a token, in order; those that end with it are finished, see :meth:`finish`.
        """
        now = self._clock() if at is None else at
        advanced: list[Request] = []
        for chunk in plan.chunks:
            request = chunk.request
            if request.status is not RequestStatus.RUNNING:
                continue
            self._tables.advance(request, chunk.end)  # sets num_computed_tokens
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
        """Ends a waiting or running request and releases its blocks, once no launched step writes to them.

        Returns:
            The request; None when it is not (or no longer) in flight.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        (self._running if request.status is RequestStatus.RUNNING else self._waiting).remove(request)
        self._fair_share.remove(request)
        keep = reason is not FinishReason.ERROR  # the blocks of a failed request may hold the cause, such as NaN
        self.in_flight.release(request, keep=keep)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        return request

    def evacuate(self) -> list[Request]:
        """Removes and returns all requests in flight, by rank. They keep their tokens, and have nothing computed.

        For moving them to another scheduler with a new cache after a failed step. This scheduler's pool is not updated
        and must not be used again.
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
        """Verifies that pool and requests agree on who holds which block. With nothing in flight, all must be free.

        Raises:
            IntegrityError: they disagree.
        """
        self._tables.check([*self._requests.values(), *self.in_flight.deferred_frees])

    # -- internal ---------------------------------------------------------------------------------------

    def _order(self) -> Sequence[Request]:
        """Returns the requests in the order in which a step serves them.

        With several users, that is by rank. With one user, running requests come first, since waiting ones may not
        preempt their own user's. Background requests come last: only they can be preempted by the same user's.
        """
        order = [*self._running, *self._waiting]
        if self._waiting and self._fair_share.has_several_users:
            order.sort(key=_rank)
        elif self._waiting and self._fair_share.has_background:
            order.sort(key=_is_background)
        return order

    def _admit_preempting(self, request: Request, budget: int) -> _Admission:
        """Starts a waiting request. If seats or blocks are missing, preempts requests that :func:`can_preempt` allows.

        A request is preempted only for an earlier rank, so two requests cannot keep displacing each other. None is
        preempted if the blocks of all candidates together would not suffice.
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
        """Whether a request that could not start would fit without its own user's later-ranked running requests.

        A request may not preempt its own user's, but other users' requests behind it in the queue may. So it does not
        close the queue. It is not overtaken for ever: it closes the queue once those replies have ended, and no
        later-ranked request of its user starts before it.
        """
        later = [other for other in self._running if other.user == request.user and other.rank > request.rank]
        if not later:
            return False
        later += [other for other in self._running if can_preempt(request, other)]
        return self._tables.can_fit_without(later, request, reusable=self._reusable(request), budget=budget)

    def _max_prompt_tokens(self, decodes: int, steps: int) -> int:
        """Returns the maximum number of prompt tokens in the next step, by the pacing policy if it applies."""
        seats = self.max_num_seqs - len(self._running)
        prompts = len(self._running) - decodes + min(seats, len(self._waiting))
        if self._pacing is None or decodes == 0 or prompts == 0:
            return self.max_batched_tokens
        return self._pacing.max_prompt_tokens(decodes, prompts, steps)

    def _append(self, request: Request, token: int, now: float) -> None:
        """Appends a sampled token, and finishes the request if it is a stop token or the last one allowed."""
        request.token_ids.append(token)
        self.counters.generation_tokens += 1
        if request.last_token is None:
            request.first_token = now
        else:
            request.last_gap = now - request.last_token
        request.last_token = now
        if token in request.stop_token_ids and request.num_output_tokens >= request.params.min_tokens:
            # As in vLLM, the stop reason is None for the model's own end of sequence.
            asked_for = token in request.params.stop_token_ids
            self.finish(request.id, FinishReason.STOP, token if asked_for else None)
        elif request.num_output_tokens >= request.max_tokens:
            self.finish(request.id, FinishReason.LENGTH)

    def _start_fork(self, fork: Request, parent: Request) -> None:
        """Starts a fork with its parent's computed tokens. Without a free seat it waits, and finds them cached."""
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
        """Returns a running request to the queue and releases its blocks. It resumes from what is still cached then."""
        self._running.remove(request)
        self._tables.release(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.counters.preemptions += 1
        insort(self._waiting, request, key=_rank)

    def _admit(self, request: Request, budget: int) -> list[BlockCopy] | None:
        """Starts a waiting request. Returns the copies its first step needs; None if there are not enough blocks."""
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
        """Returns how many tokens may come from the cache. The last one never does: its logits give the next token."""
        reusable = len(request.token_ids) - 1
        if request.scores_prompt:  # cached tokens have no logits
            reusable = min(reusable, request.num_scored_tokens - 1)
        return reusable

    def _chunk_length(self, request: Request, budget: int, scoring_budget: int) -> int:
        if request.scores_prompt:
            budget = min(budget, scoring_budget)
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
    """Outcome of an attempt to start a waiting request."""

    preempted: set[Request]  #: requests that were preempted for it
    num_decodes: int  #: how many of these were decodes
    copies: list[BlockCopy] | None  #: copies its first step needs; None if it was not started
    must_drain: bool = False  #: it needs preemption, which must wait until the launched steps have completed


def _rank(request: Request) -> float:
    return request.rank


def _is_background(request: Request) -> bool:
    return request.is_background
