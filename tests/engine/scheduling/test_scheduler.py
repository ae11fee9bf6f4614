"""Scheduler and block pool against a simulated cache, under whatever order of events hypothesis finds.

The simulated cache remembers, for each slot, the whole sequence of tokens that its key and value stand for.
Every chunk of every plan must find in the cache exactly its own sequence: a block shared wrongly, reused too
early or never written shows up at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from random import Random
from time import monotonic
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.outputs import FinishReason
from engine.sampling_params import BACKGROUND_PRIORITY, SamplingParams
from engine.scheduling.block_pool import NULL_BLOCK, BlockPool, IntegrityError
from engine.scheduling.cache_layout import blocks_for_sequence
from engine.scheduling.request import Request, RequestStatus
from engine.scheduling.scheduler import Clock, PacingPolicy, Scheduler
from engine.scheduling.step_plan import StepPlan

STOP_TOKEN = 9


def make_request(
    id_: str, prompt: list[int], max_tokens: int, arrival: float = 0.0, *, prompt_logprobs: int | None = None
) -> Request:
    return Request(
        id=id_,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs),
        seed=0,
        max_tokens=max_tokens,
        stop_token_ids=frozenset({STOP_TOKEN}),
        arrival=arrival,
    )


def make_scheduler(
    num_blocks: int = 17,
    block_size: int = 4,
    *,
    seqs: int = 4,
    budget: int = 8,
    max_len: int = 32,
    caching: bool = True,
    contiguous: bool = False,
    windows: tuple[int | None, ...] = (None,),
    pacing: PacingPolicy | None = None,
    clock: Clock = monotonic,
) -> Scheduler:
    return Scheduler(
        BlockPool(num_blocks, block_size, enable_prefix_caching=caching, contiguous=contiguous),
        max_num_seqs=seqs,
        max_batched_tokens=budget,
        max_model_len=max_len,
        windows=windows,
        pacing=pacing,
        clock=clock,
    )


class ArbitraryPacing:
    """Returns any number that a pacing policy may return, and remembers the last one."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._random = Random(budget)
        self.given: int | None = None

    def max_prompt_tokens(self, decodes: int, prompts: int, readers: int, steps: int) -> int:
        assert decodes >= 1
        assert prompts >= readers >= 1
        self.given = self._random.randint(1, self._budget - decodes)
        return self.given


def sampled(plan: StepPlan) -> list[str]:
    """Ids of the requests that get a token: those whose chunk ends their sequence, and their forks."""
    return [one.id for chunk in plan.sampling for one in (chunk.request, *chunk.request.forks)]


class SimulatedCache:
    """What the runner would have in its tensors: for each slot, the group and the sequence up to that token."""

    def __init__(self, block_size: int, windows: tuple[int | None, ...] = (None,)) -> None:
        self._block_size = block_size
        self._windows = windows
        self._slots: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def execute(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            assert 0 < copy.num_rows < self._block_size or self._block_size == 1
            for row in range(copy.num_rows):
                self._slots[copy.destination, row] = self._slots[copy.source, row]
        written: set[tuple[int, int]] = set()
        for chunk in plan.chunks:
            sequence = tuple(chunk.request.token_ids[: chunk.end])
            assert sequence[chunk.start :] == chunk.token_ids
            for group in range(len(self._windows)):
                for position in range(chunk.start, chunk.end):
                    slot = self._slot(chunk.block_tables[group], position)
                    assert slot[0] != NULL_BLOCK
                    assert slot not in written, "two requests write the same row"
                    written.add(slot)
                    self._slots[slot] = (group, sequence[: position + 1])
        for chunk in plan.chunks:
            sequence = tuple(chunk.request.token_ids[: chunk.end])
            for group, window in enumerate(self._windows):
                first = 0 if window is None else max(0, chunk.start - window + 1)
                for position in range(first, chunk.end):
                    held = self._slots.get(self._slot(chunk.block_tables[group], position))
                    expected = (group, sequence[: position + 1])
                    assert held == expected, f"position {position} of {chunk.request.id} reads {held}"

    def _slot(self, table: tuple[int, ...], position: int) -> tuple[int, int]:
        return table[position // self._block_size], position % self._block_size


class SchedulerMachine(RuleBasedStateMachine):
    users: ClassVar[tuple[str | None, ...]] = (None,)
    clock: float

    @initialize(
        num_blocks=st.integers(6, 20),
        block_size=st.sampled_from([1, 2, 3, 4]),
        seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 8),
        caching=st.booleans(),
        contiguous=st.booleans(),
        windows=st.sampled_from([(None,), (None,), (5,), (None, 3), (None, 1, 6)]),
        paced=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        seqs: int,
        extra_budget: int,
        caching: bool,
        contiguous: bool,
        windows: tuple[int | None, ...],
        paced: bool,
    ) -> None:
        budget = seqs + extra_budget
        lengths = range(2, 61)
        fits = bisect_right(
            lengths, num_blocks - 1, key=lambda length: blocks_for_sequence(windows, length, budget, block_size)
        )
        assume(fits > 0)
        self.max_len = lengths[fits - 1]
        self.pacing = ArbitraryPacing(budget) if paced else None
        self.scheduler = make_scheduler(
            num_blocks,
            block_size,
            seqs=seqs,
            budget=budget,
            max_len=self.max_len,
            caching=caching,
            contiguous=contiguous,
            windows=windows,
            pacing=self.pacing,
            clock=lambda: self.clock,
        )
        self.cache = SimulatedCache(block_size, windows)
        self.clock = 0.0
        self.known: list[list[int]] = []
        self.scored: dict[str, int] = {}  # positions of each prompt whose logits were asked for

    @rule(
        data=st.data(),
        max_tokens=st.integers(1, 12),
        priority=st.sampled_from([0, 0, 0, -1, 1, 20, 200, BACKGROUND_PRIORITY]),
        num_forks=st.sampled_from([0, 0, 0, 1, 3]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        user_number=st.integers(0, 9),
        seconds=st.sampled_from([1.0, 1.0, 1000.0, 4000.0]),
    )
    def add(
        self,
        data: st.DataObject,
        max_tokens: int,
        priority: int,
        num_forks: int,
        prompt_logprobs: int | None,
        user_number: int,
        seconds: float,
    ) -> None:
        # Two tokens only, so that prompts often share a prefix; many are the next turn of an earlier one.
        again: bool = bool(self.known) and data.draw(st.booleans())
        earlier: list[int] = data.draw(st.sampled_from(self.known)) if again else []
        stem = earlier[: data.draw(st.integers(0, min(len(earlier), self.max_len - 2)))] if earlier else []
        rest = st.lists(st.integers(0, 1), min_size=1, max_size=self.max_len - 1 - len(stem))
        prompt = [*stem, *data.draw(rest)]
        self.clock += seconds
        family = []
        for index in range(1 + num_forks):
            name = f"r{self.clock:.0f}.{index}"
            length = min(max_tokens, self.max_len - len(prompt))
            one = make_request(name, prompt, length, self.clock, prompt_logprobs=prompt_logprobs)
            one.priority = priority
            one.user = self.users[user_number % len(self.users)]
            one.private_salt = (one.user or "").encode()
            one.num_shared_tokens = min(user_number, len(prompt))
            self.known.append(one.token_ids)
            family.append(one)
        family[0].forks = family[1:]
        self.scheduler.add(family[0])

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self._step(lambda: data.draw(st.sampled_from([0, 1, 1, STOP_TOKEN])))

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data(), mid_step=st.booleans())
    def abort(self, data: st.DataObject, mid_step: bool) -> None:
        victim = data.draw(st.sampled_from(self.scheduler.requests))
        if mid_step:  # the abort arrives after the plan was made; commit must skip the request
            plan = self.scheduler.plan()
            self._execute(plan)
            self.scheduler.finish(victim.id, FinishReason.ABORT)
            self.scheduler.commit(plan, dict.fromkeys(sampled(plan), 1))
        else:
            self.scheduler.finish(victim.id, FinishReason.ABORT)
        assert victim.is_finished
        assert not victim.tables

    def _step(self, next_token: Callable[[], int]) -> None:
        before = list(self.scheduler._running)
        preemptions = {request.id: request.num_preemptions for request in self.scheduler.requests}
        decodes = {request.id for request in before if request.num_uncomputed_tokens == 1}
        if self.pacing is not None:
            self.pacing.given = None
        plan = self.scheduler.plan()
        assert plan.chunks, "requests are in flight, but nothing is planned"
        assert plan.num_decodes == sum(chunk.request.id in decodes for chunk in plan.chunks)
        assert plan.num_prompt_tokens == plan.num_tokens - plan.num_decodes
        if self.pacing is not None and self.pacing.given is not None:
            assert plan.num_prompt_tokens <= self.pacing.given
        first = min(self.scheduler.requests, key=lambda request: request.rank)
        assert first.num_preemptions == preemptions[first.id], "the earliest request was preempted"
        planned = {chunk.request.id for chunk in plan.chunks}
        left_out = [request.id for request in before if request.id not in planned and not request.is_background]
        if left_out and plan.num_tokens < self.scheduler.max_batched_tokens and len(self.users) == 1:
            assert planned <= {request.id for request in before}, f"others started while {left_out} lacked blocks"
        assert plan.num_tokens <= self.scheduler.max_batched_tokens
        assert self.scheduler.num_running <= self.scheduler.max_num_seqs
        assert len({chunk.request.id for chunk in plan.chunks}) == len(plan.chunks)
        self._execute(plan)
        tokens = {id_: next_token() for id_ in sampled(plan)}
        for request in self.scheduler.commit(plan, tokens):
            assert request.num_output_tokens <= request.max_tokens
            assert len(request.token_ids) <= self.max_len
            if request.token_ids[-1] == STOP_TOKEN:
                assert request.finish_reason is FinishReason.STOP

    def _execute(self, plan: StepPlan) -> None:
        """Each position of a scored prompt gives its logits once, whatever was cached or preempted."""
        self.cache.execute(plan)
        for chunk in plan.chunks:
            known = self.scored.get(chunk.request.id, 0)
            if chunk.scored:
                assert chunk.start <= chunk.scored.start == known
                assert chunk.scored.stop <= chunk.end
                self.scored[chunk.request.id] = known = chunk.scored.stop
            is_first = chunk.request.id.endswith(".0")
            if chunk.samples and is_first and chunk.request.params.prompt_logprobs is not None:
                assert known == chunk.request.num_prompt_tokens - 1

    @invariant()
    def blocks_are_consistent(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    @invariant()
    def queues_are_in_rank_order(self) -> None:
        if hasattr(self, "scheduler"):
            for queue in (self.scheduler._running, self.scheduler._waiting):
                ranks = [request.rank for request in queue]
                assert ranks == sorted(ranks)

    def teardown(self) -> None:
        """No request starves: without new arrivals all finish, in a number of steps that the work explains."""
        if not hasattr(self, "scheduler"):
            return
        requests = [one for request in self.scheduler.requests for one in (request, *request.forks)]
        work = sum(len(request.token_ids) + request.max_tokens for request in requests)
        steps_left = 4 * (work + 1) * (len(requests) + 1)
        while self.scheduler.has_work:
            assert steps_left > 0, "requests starve"
            steps_left -= 1
            self._step(lambda: 1)
        self.scheduler.check()
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_usable


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class SeveralUsersMachine(SchedulerMachine):
    users = ("ann", "bob", "carl", None)


TestSeveralUsersMachine = SeveralUsersMachine.TestCase
TestSeveralUsersMachine.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.full
@pytest.mark.timeout(900)
class TestSeveralUsersMachineLong(SeveralUsersMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=800, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.full
@pytest.mark.timeout(900)
class TestSchedulerMachineLong(SchedulerMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=800, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
    )


def run_to_end(scheduler: Scheduler, cache: SimulatedCache | None = None) -> None:
    for _ in range(10_000):
        if not scheduler.has_work:
            return
        plan = scheduler.plan()
        if cache is not None:
            cache.execute(plan)
        scheduler.commit(plan, {chunk.request.id: 1 for chunk in plan.sampling})
    raise AssertionError("requests starve")


def test_decodes_come_before_prompts_and_prompts_are_chunked() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(make_request("talker", [1, 2, 3], 10, 1.0))
    scheduler.commit(scheduler.plan(), {"talker": 5})
    scheduler.add(make_request("reader", list(range(20)), 4, 2.0))
    shapes = []
    for _ in range(3):
        plan = scheduler.plan()
        shapes.append([(chunk.request.id, len(chunk.token_ids), chunk.samples) for chunk in plan.chunks])
        scheduler.commit(plan, {chunk.request.id: 5 for chunk in plan.sampling})
    assert shapes == [
        [("talker", 1, True), ("reader", 7, False)],
        [("talker", 1, True), ("reader", 7, False)],
        [("talker", 1, True), ("reader", 6, True)],
    ]


def test_prompts_keep_to_the_pace_while_somebody_is_being_written_to() -> None:
    class PacingPolicy:
        calls: ClassVar[list[tuple[int, int]]] = []

        def max_prompt_tokens(self, decodes: int, prompts: int, readers: int, steps: int) -> int:
            self.calls.append((decodes, prompts))
            return 3

    scheduler = make_scheduler(40, budget=16, pacing=PacingPolicy())
    scheduler.add(make_request("talker", list(range(16)), 6, 1.0))
    shapes = []
    for turn in range(5):
        plan = scheduler.plan()
        shapes.append([(chunk.request.id, len(chunk.token_ids)) for chunk in plan.chunks])
        scheduler.commit(plan, {chunk.request.id: 5 for chunk in plan.sampling})
        if turn == 0:
            scheduler.add(make_request("first", list(range(20, 24)), 4, 2.0))
            scheduler.add(make_request("second", list(range(30, 35)), 4, 3.0))
    assert shapes == [
        [("talker", 16)],
        [("talker", 1), ("first", 3)],
        [("talker", 1), ("first", 1), ("second", 3)],
        [("talker", 1), ("first", 1), ("second", 2)],
        [("talker", 1), ("first", 1), ("second", 1)],
    ]
    assert PacingPolicy.calls == [(1, 2), (2, 1), (2, 1)]


def test_of_several_users_each_who_waits_is_one_reader() -> None:
    """So nobody slows the others' replies down more by sending many prompts, or by work in the background."""

    class PacingPolicy:
        calls: ClassVar[list[int]] = []

        def max_prompt_tokens(self, decodes: int, prompts: int, readers: int, steps: int) -> int:
            self.calls.append(readers)
            return 1

    scheduler = make_scheduler(60, seqs=8, budget=16, pacing=PacingPolicy())

    def add(name: str, user: str, priority: int = 0) -> None:
        prompt = tuple(range(4 * len(name), 4 * len(name) + 8))
        scheduler.add(replace(make_request(name, list(prompt), 20), user=user, priority=priority))

    def step() -> None:
        plan = scheduler.plan()
        scheduler.commit(plan, {chunk.request.id: 5 for chunk in plan.sampling})

    add("reply", "ann")
    step()
    add("second", "ann")
    add("third one", "ann")
    step()
    add("of another", "bob")
    add("the second one", "bob")
    step()
    add("a title in the background", "carl", BACKGROUND_PRIORITY)
    step()
    assert PacingPolicy.calls == [2, 2, 2]


def test_prompts_that_are_scored_share_a_bounded_part_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of their tokens has logits as wide as the vocabulary. Other requests get the rest of the step."""
    monkeypatch.setattr("engine.scheduling.scheduler.SCORED_TOKENS_PER_STEP", 10)
    scheduler = make_scheduler(60, budget=40)
    for number in range(3):
        scheduler.add(make_request(f"scored {number}", [number] * 30, 2, number, prompt_logprobs=0))
    scheduler.add(make_request("plain", [7] * 30, 2, 3.0))
    scored, steps = 0, 0
    while scheduler.has_work:
        plan = scheduler.plan()
        assert sum(len(chunk.scored) for chunk in plan.chunks) <= 10
        scored += sum(len(chunk.scored) for chunk in plan.chunks)
        scheduler.commit(plan, {chunk.request.id: 1 for chunk in plan.sampling})
        steps += 1
    assert scored == 3 * 29
    assert steps <= 14


def test_of_an_inspected_reply_few_tokens_are_in_a_step_and_of_what_stands_before_it_many() -> None:
    scheduler = make_scheduler(60, budget=40)
    request = make_request("inspected", [1] * 30, 2, 1.0, prompt_logprobs=0)
    request.num_scored_tokens, request.is_inspected = 11, True
    scheduler.add(request)
    scored = []
    while scheduler.has_work:
        plan = scheduler.plan()
        scored += [len(chunk.scored) for chunk in plan.chunks]
        scheduler.commit(plan, {chunk.request.id: 1 for chunk in plan.sampling})
    assert scored == [8, 8, 3, 0], "those before it are computed at once"


def test_a_second_turn_computes_only_what_is_new() -> None:
    scheduler = make_scheduler(block_size=4, budget=32)
    first = make_request("first", [1] * 10, 3, 1.0)
    scheduler.add(first)
    run_to_end(scheduler)
    second = make_request("second", [*first.token_ids, 7, 7], 1, 2.0)
    scheduler.add(second)
    plan = scheduler.plan()
    # 12 of the 13 earlier tokens were computed; the last sampled one never is.
    assert second.num_cached_tokens == 12
    assert plan.chunks[0].start == 12


def test_a_wholly_cached_prompt_still_computes_its_last_token() -> None:
    scheduler = make_scheduler(block_size=4, budget=32)
    scheduler.add(make_request("first", [1] * 8, 1, 1.0))
    run_to_end(scheduler)
    scheduler.add(make_request("again", [1] * 8, 1, 2.0))
    plan = scheduler.plan()
    (chunk,) = plan.chunks
    assert chunk.start == 7
    assert chunk.samples
    # The cached block is copied, because the last of its rows is written again.
    assert [copy.num_rows for copy in plan.copies] == [3]


def test_when_blocks_run_out_the_latest_gives_way_and_returns() -> None:
    scheduler = make_scheduler(num_blocks=7, block_size=4, budget=32, max_len=24)
    cache = SimulatedCache(4)
    early = make_request("early", [1] * 8, 12, 1.0)
    late = make_request("late", [2] * 8, 12, 2.0)
    scheduler.add(early)
    scheduler.add(late)
    run_to_end(scheduler, cache)
    assert early.num_preemptions == 0
    assert late.num_preemptions > 0
    assert late.num_output_tokens == 12
    assert late.finish_reason is FinishReason.LENGTH


def test_an_early_prompt_in_want_of_blocks_takes_them_from_a_later_decode() -> None:
    """Window groups allocate blocks as they advance, so a later request may have taken what a started prompt needs."""
    scheduler = make_scheduler(9, 3, seqs=2, budget=4, max_len=6, caching=False, windows=(None, 1, 6))
    cache = SimulatedCache(3, (None, 1, 6))
    parent, fork = make_request("parent", [0] * 4, 2, 1.0), make_request("fork", [0] * 4, 2, 1.0)
    parent.forks = [fork]
    scheduler.add(make_request("first", [0], 1, 0.0))
    scheduler.add(parent)
    scheduler.add(make_request("late", [1], 4, 2.0))
    starved = 0
    while scheduler.has_work:
        first = min(scheduler.requests, key=lambda request: request.rank)
        plan = scheduler.plan()
        starved += first not in [chunk.request for chunk in plan.chunks]
        cache.execute(plan)
        scheduler.commit(plan, dict.fromkeys(sampled(plan), 1))
    assert starved == 0
    assert (parent.num_preemptions, fork.num_preemptions) == (0, 0)


def test_a_more_urgent_request_overtakes_for_a_minute_and_no_longer() -> None:
    scheduler = make_scheduler(seqs=1, budget=40)
    for name, arrival, priority in [("first", 0.0, 0), ("idle", 1.0, 1), ("urgent", 30.0, -1), ("later", 62.0, 0)]:
        request = make_request(name, [1], 1, arrival)
        request.priority = priority
        scheduler.add(request)
    order = []
    while scheduler.has_work:
        plan = scheduler.plan()
        order += [chunk.request.id for chunk in plan.chunks]
        scheduler.commit(plan, {chunk.request.id: 1 for chunk in plan.sampling})
    assert order == ["urgent", "first", "idle", "later"]


def test_what_can_never_be_served_is_refused_with_numbers() -> None:
    scheduler = make_scheduler(max_len=32)
    with pytest.raises(ValueError, match=r"40 tokens long.*32"):
        scheduler.add(make_request("long", [1] * 40, 1))
    scheduler.add(make_request("twin", [1], 1))
    with pytest.raises(ValueError, match="already in flight"):
        scheduler.add(make_request("twin", [1], 1))
    with pytest.raises(ValueError, match=r"2 KV blocks of 4 tokens cannot hold one sequence of 32"):
        make_scheduler(num_blocks=3, max_len=32)
    with pytest.raises(ValueError, match="must be at least max_num_seqs"):
        make_scheduler(seqs=10, budget=9)


def test_stop_tokens_wait_for_the_minimum_length() -> None:
    scheduler = make_scheduler()
    request = make_request("r", [1], 8)
    request.params = SamplingParams(max_tokens=8, min_tokens=3)
    scheduler.add(request)
    for _ in range(3):
        assert request.status is not RequestStatus.FINISHED
        scheduler.commit(scheduler.plan(), {"r": STOP_TOKEN})
    assert request.finish_reason is FinishReason.STOP
    assert request.num_output_tokens == 3


def test_only_a_stop_token_that_was_asked_for_is_a_stop_reason() -> None:
    """The model's own end of sequence is none, as in vLLM."""
    for stop_token_ids, expected in (((), None), ((STOP_TOKEN,), STOP_TOKEN)):
        scheduler = make_scheduler()
        request = make_request("r", [1], 8)
        request.params = SamplingParams(max_tokens=8, stop_token_ids=stop_token_ids)
        scheduler.add(request)
        scheduler.commit(scheduler.plan(), {"r": STOP_TOKEN})
        assert request.finish_reason is FinishReason.STOP
        assert request.stop_reason == expected


class TestPool:
    @staticmethod
    def register(pool: BlockPool, block: int, address: bytes, parent: bytes = b"") -> None:
        pool.register(block, 0, parent, [1] * pool.block_size, address)

    def test_freed_blocks_keep_their_content_until_they_are_reused(self) -> None:
        pool = BlockPool(4, 2)
        blocks = pool.allocate(3)
        self.register(pool, blocks[0], b"a")
        self.register(pool, blocks[1], b"b", b"a")
        pool.release(blocks)
        assert [pool.find(0, address) for address in (b"a", b"b", b"c")] == [*blocks[:2], None]
        assert pool.find(1, b"a") is None, "another group's content"
        reused = pool.allocate(2)  # the tail goes first
        assert blocks[0] not in reused
        assert [pool.find(0, address) for address in (b"a", b"b")] == [blocks[0], None]

    def test_sharing_takes_a_block_off_the_free_list(self) -> None:
        pool = BlockPool(3, 2)
        (block, other) = pool.allocate(2)
        self.register(pool, block, b"a")
        pool.release([block, other])
        pool.share([block])
        assert not pool.is_shared(block)
        pool.share([block])
        assert pool.is_shared(block)
        assert pool.num_free == 1
        pool.release([block])
        pool.check([[block]])

    def test_the_longest_beginning_is_found(self) -> None:
        pool = BlockPool(6, 4)
        one, two, three = pool.allocate(3)
        pool.register_partial_block(one, 0, b"p", [1, 2])
        pool.register(two, 0, b"p", [1, 2, 3, 4], b"full")
        pool.register_partial_block(three, 0, b"p", [1, 2, 3])  # nothing that two does not offer
        assert pool.find_partial_block(0, b"p", [1, 2, 3, 9]) == (two, 3)
        assert pool.find_partial_block(0, b"p", [1, 2]) in [(one, 2), (two, 2)]
        assert pool.find_partial_block(0, b"p", [7]) == (0, 0)
        assert pool.find_partial_block(0, b"q", [1]) == (0, 0)
        pool.check([[one, two, three]])

    def test_only_what_nobody_holds_or_looks_for_is_taken_over(self) -> None:
        pool = BlockPool(6, 4)
        one, two = pool.allocate(2)
        pool.register_partial_block(one, 0, b"p", [1, 2])
        pool.register(two, 0, b"p", [3, 4, 5, 6], b"full")
        assert not pool.take_over(one, 2), "it is held"
        pool.release([one, two])
        assert not pool.take_over(one, 1), "it holds more"
        assert not pool.take_over(two, 4), "it is full"
        assert pool.take_over(one, 2)
        assert pool.find_partial_block(0, b"p", [1, 2]) == (0, 0)
        pool.check([[one]])

    def test_wrong_books_are_noticed(self) -> None:
        pool = BlockPool(4, 2)
        blocks = pool.allocate(2)
        with pytest.raises(IntegrityError, match="reference count of 1, but 0"):
            pool.check()
        pool.release(blocks)
        pool.check()
        with pytest.raises(IntegrityError, match="no request holds"):
            pool.release(blocks[:1])
        with pytest.raises(IndexError, match="4 blocks asked for, 3 free"):
            pool.allocate(4)

    def test_without_prefix_caching_nothing_is_found(self) -> None:
        pool = BlockPool(3, 2, enable_prefix_caching=False)
        (block,) = pool.allocate(1)
        self.register(pool, block, b"a")
        pool.register_partial_block(block, 0, b"", [1])
        assert pool.find(0, b"a") is None
        assert pool.find_partial_block(0, b"", [1, 1]) == (0, 0)


class TestContiguousAllocation:
    """Consecutive blocks are read faster; no cached content that is not stale is evicted for that."""

    @staticmethod
    def fill(pool: BlockPool, blocks: list[int], name: bytes) -> None:
        for number, block in enumerate(blocks):
            pool.register(block, 0, name, [number] * pool.block_size, name + bytes([number]))

    def test_two_that_grow_in_turns_stay_in_one_piece_each(self) -> None:
        pool = BlockPool(40, 2, contiguous=True)
        one, other = pool.allocate_contiguous(3, spare=6), pool.allocate_contiguous(2, spare=6)
        for _ in range(6):
            one += pool.allocate_contiguous(1, behind=one[-1])
            other += pool.allocate_contiguous(1, behind=other[-1])
        assert one == list(range(one[0], one[0] + 9))
        assert other == list(range(other[0], other[0] + 8))
        pool.check([one, other])

    def test_the_next_turn_goes_on_where_the_last_one_ended(self) -> None:
        pool = BlockPool(60, 2, contiguous=True)
        first = pool.allocate_contiguous(4, spare=8)
        self.fill(pool, first, b"a")
        pool.release(first)
        others = [pool.allocate_contiguous(4, spare=8) for _ in range(2)]
        pool.share(first)
        first += pool.allocate_contiguous(5, behind=first[-1])
        assert first == list(range(first[0], first[0] + 9))
        pool.check([first, *others])

    def test_what_was_freed_last_is_kept(self) -> None:
        pool = BlockPool(17, 2, contiguous=True)
        old, new = pool.allocate_contiguous(8), pool.allocate_contiguous(8)
        self.fill(pool, old, b"old")
        self.fill(pool, new, b"new")
        pool.release(old)
        pool.release(new)
        taken = pool.allocate_contiguous(4, behind=old[-1])  # the blocks after it were freed just now
        assert not set(taken) & set(new)
        assert all(pool.find(0, b"new" + bytes([number])) for number in range(8))
        pool.check([taken])

    def test_where_there_is_no_room_blocks_are_taken_from_anywhere(self) -> None:
        pool = BlockPool(9, 2, contiguous=True)
        singles = [pool.allocate_contiguous(1)[0] for _ in range(8)]
        pool.release(singles[::2])
        taken = pool.allocate_contiguous(4, behind=singles[1], spare=3)
        assert sorted(taken) == sorted(singles[::2])
        pool.check([taken, singles[1::2]])
        with pytest.raises(IndexError, match="1 blocks asked for, 0 free"):
            pool.allocate_contiguous(1)
