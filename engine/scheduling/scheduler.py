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
``n > 1``: they start when its prompt is computed. *Beams* are the sequences of a beam search: each computes a step, and
then continues any of them. Draft tokens are added to a plan by the caller, see
:mod:`engine.execution.speculation`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from engine.outputs import FinishReason
from engine.scheduling.block_pool import BlockCopy, BlockPool
from engine.scheduling.block_tables import BlockTables
from engine.scheduling.fairness import FairShare, can_preempt
from engine.scheduling.in_flight import InFlight
from engine.scheduling.request import Request, RequestStatus
from engine.scheduling.step_plan import PlanBuilder, StepPlan

SCORED_TOKENS_PER_STEP = 128
"""Maximum tokens per step from prompts with ``prompt_logprobs``, since each needs logits as wide as the vocabulary.
The rest of such prompts waits for later steps; other requests use the rest of the step."""


class Clock(Protocol):
    """Seconds that never go back."""

    def __call__(self) -> float: ...


class PacingPolicy(Protocol):
    """Limits the prompt tokens of a step while replies are being decoded."""

    def max_prompt_tokens(self, decodes: int, prompts: int, readers: int, steps: int) -> int:
        """Returns the maximum number of prompt tokens in a step, at least 1.

        Args:
            decodes: decodes in the step.
            prompts: requests with prompt tokens to compute, at least 1.
            readers: who wait for them, at least 1.
            steps: number of steps computed before prompt tokens can be computed again.
        """
        ...


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
        if self._fair_share.advance_turns(self._clock()):
            self._sort_queues()
        decodes = sum([request.num_uncomputed_tokens == 1 for request in self._running])
        builder = PlanBuilder(
            budget=self.max_batched_tokens,
            prompt_budget=self._max_prompt_tokens(decodes, steps),
            scoring_budget=SCORED_TOKENS_PER_STEP,
            reserved=decodes,
        )
        queue = _QueueState()
        for request in self._order():
            if request.status is RequestStatus.RUNNING:
                self._plan_running(request, builder, queue)
            elif queue.admits(request) and builder.available > 0:
                self._plan_waiting(request, builder, queue)
        self.counters.steps += bool(builder.chunks)
        return builder.build(must_drain=queue.lacks_blocks and bool(self.in_flight))

    def commit(self, plan: StepPlan, tokens: Mapping[str, int], at: float | None = None) -> list[Request]:
        """Applies the results of a step.

        Args:
            plan: the executed plan; requests aborted since are skipped.
            tokens: the sampled token of each request in ``plan.sampling``, and of its forks.
            at: when the tokens were sampled; None means now.

        Returns:
            The requests that got a token, in order; those that end with it are finished, see :meth:`finish`. Beams are
            not among them: call :meth:`regroup` or :meth:`park` for each that sampled, before the next plan.
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
            if not chunk.samples or request.is_beam:
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

    def park(self, beam: Request) -> None:
        """Takes a beam that has computed all of its tokens out of the queues, and releases its blocks.

        So beams that wait for their siblings hold nothing that others, or the siblings, may be waiting for.
        """
        self._running.remove(beam)
        self._tables.release(beam)
        beam.status = RequestStatus.PARKED

    def regroup(self, beams: Sequence[Request], parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Continues each beam from another one's tokens, which are all computed, with a new token.

        Beams share the blocks of the one that they continue. Beams without a seat wait, and so do those that continue a
        parked one: they find its tokens in the prefix cache.

        Args:
            beams: all of a request: running, parked, or forks that have not started.
            parents: for each beam, the index of the one that it continues.
            tokens: for each beam, its new token.
        """
        first = beams[0]
        first.forks = []
        for beam in beams:
            if beam.id not in self._requests:
                self._requests[beam.id] = beam
                self._enter(beam)
                beam.first_scheduled = first.first_scheduled
                beam.num_cached_tokens = first.num_cached_tokens
                beam.num_scored_tokens = first.num_scored_tokens
                beam.status = RequestStatus.PARKED
            elif beam.status is RequestStatus.RUNNING:
                self._running.remove(beam)
        self._tables.reassign(beams, parents, tokens)
        now = self._clock()
        for beam in beams:
            beam.first_token, beam.last_token = beam.first_token or now, now
            if beam.tables and len(self._running) < self.max_num_seqs:
                beam.status = RequestStatus.RUNNING
                insort(self._running, beam, key=_rank)
            else:
                self._tables.release(beam)
                beam.status = RequestStatus.WAITING
                insort(self._waiting, beam, key=_rank)
        self.counters.generation_tokens += len(beams)

    def pop_unusable_blocks(self) -> list[int]:
        """Returns the free blocks whose content may be NaN, once each. Zero them before the next plan uses them.

        A masked key is multiplied by zero, not skipped, so NaN would spread.
        """
        blocks, self._tables.unusable_blocks = self._tables.unusable_blocks, []
        return blocks

    def finish(self, request_id: str, reason: FinishReason, stop_reason: str | int | None = None) -> Request | None:
        """Ends a waiting or running request and releases its blocks, once no launched step writes to them.

        Returns:
            The request; None when it is not (or no longer) in flight.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is not RequestStatus.PARKED:
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

        With several users, that is by rank. With one user, running requests come first, since a waiting request may
        not preempt one of its own user. Background requests come last: only they can be preempted by the same user's.
        """
        order = [*self._running, *self._waiting]
        if self._waiting and self._fair_share.has_several_users:
            order.sort(key=_rank)
        elif self._waiting and self._fair_share.has_background:
            order.sort(key=_is_background)
        return order

    def _plan_running(self, request: Request, builder: PlanBuilder, queue: _QueueState) -> None:
        """Adds a running request's next tokens to the plan, unless budget or blocks are missing."""
        uncomputed = request.num_uncomputed_tokens
        is_decode = uncomputed == 1
        builder.reserved -= is_decode
        length = builder.chunk_length(request, uncomputed)
        if length == 0:
            return
        end = request.num_computed_tokens + request.num_launched_tokens + length
        missing = self._tables.num_missing_blocks(request, end)
        while missing > self.pool.num_free:
            queue.lacks_blocks = True
            if self.in_flight:
                return
            victim = self._running[-1]  # has no chunk in this plan: requests with chunks rank earlier
            builder.reserved -= victim is not request and victim.num_uncomputed_tokens == 1
            self._preempt(victim)
            if victim is request:
                return
            missing = self._tables.num_missing_blocks(request, end)
        if missing:
            builder.copies += self._tables.grow(request, end)
        builder.add(request, end, is_decode=is_decode)

    def _plan_waiting(self, request: Request, builder: PlanBuilder, queue: _QueueState) -> None:
        """Starts a waiting request and plans its first tokens, unless seats, budget or blocks are missing."""
        if request in queue.preempted or (request.scores_prompt and builder.scoring_budget == 0):
            queue.skipped_users.add(request.user)
            return
        budget = builder.available
        copies = self._start(request, budget)
        if copies is None:
            copies = self._preempt_for(request, budget, builder, queue)
        if copies is None:
            if self._waits_for_own_user(request, budget):
                queue.skipped_users.add(request.user)
            else:
                queue.is_open = False
            return
        builder.copies += copies
        self._waiting.remove(request)
        # Not more than ``budget``, though a preempted decode has left its token: the request has no blocks for it.
        length = builder.chunk_length(request, min(request.num_uncomputed_tokens, budget))
        builder.add(request, request.num_computed_tokens + length, is_decode=False)

    def _preempt_for(
        self, request: Request, budget: int, builder: PlanBuilder, queue: _QueueState
    ) -> list[BlockCopy] | None:
        """Starts a waiting request by preempting those that :func:`can_preempt` allows, the latest rank first.

        A request is preempted only for an earlier rank, so two requests cannot keep displacing each other. None is
        preempted if the blocks of all candidates together would not suffice.

        Returns:
            The copies that its first step needs; None if it was not started.
        """
        reusable, copies = self._reusable(request), None
        while copies is None:
            later = [other for other in self._running if can_preempt(request, other)]
            if not later or not self._tables.can_fit_without(later, request, reusable=reusable, budget=budget):
                return None
            if self.in_flight:  # preemption must wait until the launched steps have completed
                queue.lacks_blocks = True
                return None
            builder.reserved -= later[-1].num_uncomputed_tokens == 1
            self._preempt(later[-1])
            queue.preempted.add(later[-1])
            copies = self._start(request, budget)
        return copies

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
        prompts = [request for request in self._running if request.num_uncomputed_tokens != 1]
        prompts += self._waiting[:seats]
        if self._pacing is None or decodes == 0 or not prompts:
            return self.max_batched_tokens
        waited_for = [request for request in prompts if not request.is_background]
        # Among several users, each is one reader: many prompts of one user do not slow the others' replies down more.
        # Requests without a user are one reader's then, and so are those of all visitors of an inbox.
        several = self._fair_share.has_several_users
        readers = len({request.user for request in waited_for}) if several else len(waited_for)
        return self._pacing.max_prompt_tokens(decodes, len(prompts), max(readers, 1), steps)

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

    def _start(self, request: Request, budget: int) -> list[BlockCopy] | None:
        """Starts a waiting request, which stays in the queue for the caller to remove.

        Returns:
            The copies that its first step needs; None if there is no seat or not enough blocks.
        """
        if len(self._running) >= self.max_num_seqs:
            return None
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


@dataclass(slots=True)
class _QueueState:
    """What keeps waiting requests out of the plan under construction."""

    lacks_blocks: bool = False  #: a running request lacks blocks, or a preemption must wait for the steps in flight
    is_open: bool = True  #: False once a waiting request did not fit: no later one may start before it
    preempted: set[Request] = field(default_factory=set)  #: preempted for waiting requests; not readmitted in this plan
    skipped_users: set[str | None] = field(default_factory=set)
    """Users whose first waiting request cannot start, though other users' may. Their later ones do not overtake it."""

    def admits(self, request: Request) -> bool:
        # Once a running request lacks blocks, free ones are kept for running requests, not for the queue.
        return self.is_open and not self.lacks_blocks and request.user not in self.skipped_users


def _rank(request: Request) -> float:
    return request.rank


def _is_background(request: Request) -> bool:
    return request.is_background
