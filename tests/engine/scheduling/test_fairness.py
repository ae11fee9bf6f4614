"""Users take turns: whatever one user requests, another user's first token comes soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.outputs import FinishReason
from engine.sampling_params import BACKGROUND_PRIORITY
from engine.scheduling.fairness import PROMPT_TOKEN_SECONDS, TURN_SECONDS
from engine.scheduling.request import Request, RequestStatus
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import StepPlan
from tests.engine.scheduling.test_scheduler import SimulatedCache, make_request, make_scheduler, sampled

SEATS = 6
BUDGET = 16
LONGEST = 96


@dataclass(frozen=True)
class RequestSpec:
    """A request that an attacker sends."""

    prompt: int
    max_tokens: int
    forks: int
    logprobs: int | None
    priority: int = 0
    added_at: int = 0  #: step
    aborted_after: int | None = None  #: steps; None for a request that is never aborted


REQUEST_SPECS = st.builds(
    RequestSpec,
    prompt=st.integers(1, LONGEST - 24),
    max_tokens=st.integers(1, 24),
    forks=st.integers(0, 15),
    logprobs=st.sampled_from([None, 0]),
    priority=st.sampled_from([0, 61, 200, 999, BACKGROUND_PRIORITY]),
    added_at=st.integers(0, 6),
    aborted_after=st.none() | st.integers(0, 6),
)


def make_user_request(name: str, user: str | None, spec: RequestSpec, arrival: float) -> Request:
    """A request with its forks; no two prompts share a prefix."""
    noise = Random(name)  # not hash(), which differs from process to process
    prompt = [noise.randrange(10, 1010) for _ in range(spec.prompt)]
    family = [
        make_request(f"{name}/{index}", prompt, spec.max_tokens, arrival, prompt_logprobs=spec.logprobs)
        for index in range(1 + spec.forks)
    ]
    for one in family:
        one.user = user
        one.priority = spec.priority
    family[0].forks = family[1:]
    return family[0]


def run(scheduler: Scheduler, cache: SimulatedCache) -> StepPlan:
    """One step."""
    plan = scheduler.plan()
    cache.execute(plan)
    scheduler.commit(plan, dict.fromkeys(sampled(plan), 1))
    scheduler.check()
    return plan


def steps_until_first_token(
    scheduler: Scheduler,
    cache: SimulatedCache,
    request: Request,
    most: int,
    before_step: Callable[[int], None] = lambda step: None,
) -> int:
    for step in range(1, most + 1):
        before_step(step)
        run(scheduler, cache)
        if request.first_token is not None:
            return step
    return most + 1


def bound(prompts: Iterable[int]) -> int:
    """Maximum number of steps: one prompt of each user after the other, in steps with decodes in all seats."""
    return sum(-(-prompt // (BUDGET - SEATS)) + 1 for prompt in prompts) + 1


def attack(scheduler: Scheduler, attackers: list[list[RequestSpec]], step: int, now: float) -> None:
    """Add and abort what the attackers have planned for a step."""
    for number, specs in enumerate(attackers):
        for index, spec in enumerate(specs):
            name = f"a{number}.{index}"
            if step == spec.added_at:
                scheduler.add(make_user_request(name, f"attacker {number}", spec, now))
            if spec.aborted_after is not None and step == spec.added_at + spec.aborted_after:
                for fork in range(1 + spec.forks):
                    scheduler.finish(f"{name}/{fork}", FinishReason.ABORT)


@given(
    attackers=st.lists(st.lists(REQUEST_SPECS, min_size=1, max_size=8), min_size=1, max_size=SEATS - 1),
    head_start=st.integers(0, 30),
    prompt=st.integers(1, 60),
    spare_blocks=st.integers(0, 40),
)
@example(  # the second waits in front of the first's replies, which hold all seats
    attackers=[
        [RequestSpec(1, 24, 5, None, 999), RequestSpec(1, 24, 0, None, 0, 3), RequestSpec(1, 24, 0, None, 0, 3, 1)]
    ],
    head_start=6,
    prompt=1,
    spare_blocks=0,
)
@settings(max_examples=40)
def test_a_users_first_word_comes_within_a_bound_whatever_others_ask_for(
    attackers: list[list[RequestSpec]], head_start: int, prompt: int, spare_blocks: int
) -> None:
    blocks = LONGEST // 4 * (1 + len(attackers)) + 1 + spare_blocks  # enough for one request of each user
    now = 100.0
    scheduler = make_scheduler(blocks, 4, seqs=SEATS, budget=BUDGET, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    for step in range(head_start):
        now += 1.0
        attack(scheduler, attackers, step, now)
        run(scheduler, cache)
    now = 1000.0
    victim = make_user_request("victim", "victim", RequestSpec(prompt, 4, 0, None), now)
    scheduler.add(victim)
    now += prompt * PROMPT_TOKEN_SECONDS  # until then shorter prompts that come later are read first
    most = bound([prompt, *(max(spec.prompt + spec.max_tokens for spec in specs) for specs in attackers)])
    steps = steps_until_first_token(
        scheduler, cache, victim, most, lambda step: attack(scheduler, attackers, head_start + step - 1, now)
    )
    assert steps <= most


@pytest.mark.parametrize("priority", [61, 200, 999])
def test_a_request_that_waits_for_its_own_user_holds_up_no_other(priority: int) -> None:
    """A low priority puts the replies that run behind a new request of their user, which may not take their seats."""
    now = 0.0
    scheduler = make_scheduler(400, 4, seqs=6, budget=32, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    scheduler.add(make_user_request("runs", "ann", RequestSpec(4, 80, 5, None, priority), now))
    for _ in range(3):
        now += 0.1
        run(scheduler, cache)
    waits = make_user_request("waits", "ann", RequestSpec(4, 80, 0, None), now)
    scheduler.add(waits)
    for _ in range(6):  # each time that a request ends, those behind it move up
        scheduler.add(make_user_request("aborted", "ann", RequestSpec(4, 80, 0, None), now))
        scheduler.finish("aborted/0", FinishReason.ABORT)
        now += 0.1
        run(scheduler, cache)
    assert waits.rank < now + 1.0 < min(request.rank for request in scheduler.running)
    now += 1.0
    bob = make_user_request("bob", "bob", RequestSpec(4, 4, 0, None), now)
    scheduler.add(bob)
    assert steps_until_first_token(scheduler, cache, bob, 1) == 1
    assert waits not in scheduler.running


def test_one_user_with_many_replies_keeps_no_other_out_of_the_seats() -> None:
    scheduler, cache = make_scheduler(200, 4, seqs=4, budget=16, max_len=32), SimulatedCache(4)
    scheduler.add(make_user_request("many", "ann", RequestSpec(4, 20, 15, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    assert [request.user for request in scheduler.running] == ["ann"] * 4
    bob = make_user_request("one", "bob", RequestSpec(4, 20, 0, None), 5.0)
    scheduler.add(bob)
    assert steps_until_first_token(scheduler, cache, bob, 1) == 1
    assert [request.user for request in scheduler.running].count("ann") == 3


def test_without_users_the_order_is_that_of_the_ranks() -> None:
    scheduler, cache = make_scheduler(200, 4, seqs=4, budget=16, max_len=32), SimulatedCache(4)
    scheduler.add(make_user_request("many", None, RequestSpec(4, 20, 15, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    late = make_user_request("one", None, RequestSpec(4, 20, 0, None), 5.0)
    scheduler.add(late)
    assert steps_until_first_token(scheduler, cache, late, 10) == 11


def test_a_short_question_does_not_wait_for_a_long_prompt() -> None:
    scheduler, cache = make_scheduler(400, 4, seqs=4, budget=16, max_len=LONGEST), SimulatedCache(4)
    scheduler.add(make_user_request("long", "ann", RequestSpec(80, 1, 0, None), 0.0))
    run(scheduler, cache)
    short = make_user_request("short", "bob", RequestSpec(8, 4, 0, None), 0.5)
    scheduler.add(short)
    assert steps_until_first_token(scheduler, cache, short, 1) == 1


def test_a_long_prompt_is_read_though_short_ones_come_all_the_time() -> None:
    now = 0.0
    scheduler = make_scheduler(400, 4, seqs=4, budget=16, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    long = make_user_request("long", "ann", RequestSpec(80, 1, 0, None), 0.0)
    scheduler.add(long)
    for step in range(60):
        now += 0.1
        scheduler.add(make_user_request(f"short {step}", f"user {step}", RequestSpec(15, 1, 0, None), now))
        run(scheduler, cache)
        if long.is_finished:
            return
    raise AssertionError(f"{long.num_computed_tokens} of 80 tokens are read")


def test_users_with_many_requests_share_the_seats_and_each_is_served_in_its_own_order() -> None:
    """Bob's requests do not wait for the many that Ann sent before, and hers use the seats that his leave."""
    now = 0.0
    scheduler = make_scheduler(400, 4, seqs=4, budget=16, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    anns = [make_user_request(f"a{number}", "ann", RequestSpec(4, 6, 0, None), now) for number in range(20)]
    for one in anns:
        scheduler.add(one)
    for _ in range(10):
        now += 1
        run(scheduler, cache)
    bobs = [make_user_request(f"b{number}", "bob", RequestSpec(4, 6, 0, None), now) for number in range(8)]
    for one in bobs:
        scheduler.add(one)
    shares = {"ann": 0, "bob": 0}
    ended: list[Request] = []
    while not all(one.is_finished for one in bobs):
        now += 1
        run(scheduler, cache)
        ended += [one for one in (*anns, *bobs) if one.is_finished and one not in ended]
        for one in scheduler.running:
            shares[str(one.user)] += not all(other.is_finished or other in scheduler.running for other in bobs)
    assert shares["ann"] == pytest.approx(shares["bob"], rel=0.2)
    for own in (anns, bobs):
        assert [one.id for one in ended if one in own] == [one.id for one in own if one in ended]


def test_a_turn_that_moves_up_does_not_count_from_its_arrival() -> None:
    """Otherwise all of a user's waiting requests would come before another user's first one."""
    now = 0.0
    scheduler = make_scheduler(200, 4, seqs=1, budget=16, max_len=32, clock=lambda: now)
    cache = SimulatedCache(4)
    for number in range(5):
        scheduler.add(make_user_request(f"a{number}", "ann", RequestSpec(4, 2, 0, None), now))
    run(scheduler, cache)
    now = 10.0
    bob = make_user_request("bob", "bob", RequestSpec(4, 2, 0, None), now)
    scheduler.add(bob)
    now = 20.0
    while not bob.is_finished:
        run(scheduler, cache)
    assert [number for number in range(5) if scheduler.get(f"a{number}/0") is None] == [0]


def test_an_urgent_request_takes_no_seat_of_its_own_user() -> None:
    """Even though its rank is earlier, and the other's turn is later."""
    now = 0.0
    scheduler = make_scheduler(200, 4, seqs=1, budget=16, max_len=32, clock=lambda: now)
    cache = SimulatedCache(4)
    runs = make_user_request("runs", "bob", RequestSpec(4, 9, 0, None), now)
    scheduler.add(runs)
    scheduler.add(make_user_request("waits", "ann", RequestSpec(4, 9, 0, None), now))
    run(scheduler, cache)
    now = 1.0
    urgent = make_user_request("urgent", "bob", RequestSpec(4, 9, 0, None, priority=-120), now)
    scheduler.add(urgent)
    run(scheduler, cache)
    assert (urgent.turn, runs.turn) == (0, 1)
    assert urgent.rank < runs.rank
    assert scheduler.running == [runs]


@pytest.mark.parametrize("priorities", [(20, 15, 10, 5), (0, -1, -2, -3), (0, 0, 0, 0)])
def test_priorities_give_nobody_more_turns(priorities: tuple[int, ...]) -> None:
    now = 0.0
    scheduler = make_scheduler(200, 4, seqs=4, budget=16, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    for priority in priorities:
        one = make_user_request(f"p{priority}/{now}", "ann", RequestSpec(4, 80, 0, None), now)
        one.priority = priority
        scheduler.add(one)
        now += 0.1
    for _ in range(3):
        run(scheduler, cache)
    bob = make_user_request("bob", "bob", RequestSpec(4, 4, 0, None), now)
    scheduler.add(bob)
    assert steps_until_first_token(scheduler, cache, bob, 2) == 1


def test_the_more_urgent_of_a_users_waiting_requests_comes_first() -> None:
    scheduler, cache = make_scheduler(200, 4, seqs=1, budget=16, max_len=32, clock=lambda: 9.0), SimulatedCache(4)
    runs = make_user_request("runs", "ann", RequestSpec(4, 9, 0, None), 0.0)
    scheduler.add(runs)
    rank = runs.rank
    for name, priority in (("low", 2), ("normal", 0), ("high", -1)):
        scheduler.add(make_user_request(name, "ann", RequestSpec(4, 2, 0, None, priority), 0.0))
        scheduler.add(make_user_request(f"bob {name}", "bob", RequestSpec(4, 2, 0, None), 0.0))
        run(scheduler, cache)
    assert scheduler.running == [runs]
    assert runs.rank == rank  # it runs, so the more urgent ones wait behind it
    order: list[str] = []
    while scheduler.has_work:
        for request in scheduler.running:
            if request.id not in order:
                order.append(request.id)
        run(scheduler, cache)
    assert [one for one in order if not one.startswith("bob")][-3:] == ["high/0", "normal/0", "low/0"]


def test_forks_of_a_request_that_waited_long_take_turns_from_when_they_begin() -> None:
    now = 16 * TURN_SECONDS
    scheduler = make_scheduler(400, 4, seqs=4, budget=16, max_len=LONGEST, clock=lambda: now)
    cache = SimulatedCache(4)
    scheduler.add(make_user_request("many", "ann", RequestSpec(4, 80, 15, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    bob = make_user_request("bob", "bob", RequestSpec(4, 4, 0, None), now)
    scheduler.add(bob)
    assert steps_until_first_token(scheduler, cache, bob, 2) == 1


def test_a_prompt_that_is_one_too_many_to_score_is_not_overtaken_by_its_own_user() -> None:
    scheduler, cache = make_scheduler(800, 4, seqs=4, budget=256, max_len=700), SimulatedCache(4)
    scheduler.add(make_user_request("first", "bob", RequestSpec(600, 4, 0, 0), 0.0))
    scheduler.add(make_user_request("scored", "ann", RequestSpec(600, 4, 0, 0), 1.0))
    scheduler.add(make_user_request("short", "ann", RequestSpec(8, 4, 0, None), 2.0))
    scheduler.add(make_user_request("other", "carl", RequestSpec(8, 4, 0, None), 3.0))
    run(scheduler, cache)
    assert [request.id for request in scheduler.running] == ["other/0", "first/0"]


def test_forks_do_not_give_way_in_vain() -> None:
    """They share the blocks of their prompt, which count once, and not at all while the first reply runs."""
    scheduler, cache = make_scheduler(40, 4, seqs=8, budget=128, max_len=96), SimulatedCache(4)
    scheduler.add(make_user_request("many", "ann", RequestSpec(60, 20, 5, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    scheduler.add(make_user_request("carl", "carl", RequestSpec(60, 20, 0, None), 0.0))
    run(scheduler, cache)
    before = scheduler.counters.preemptions
    scheduler.add(make_user_request("bob", "bob", RequestSpec(80, 2, 0, None), 1.0))
    run(scheduler, cache)
    assert scheduler.counters.preemptions == before


def test_no_request_is_preempted_unless_enough_blocks_become_free() -> None:
    """Bob's prompt needs more blocks than Ann's later turns hold, so these keep running until her first one is done."""
    scheduler, cache = make_scheduler(25, 4, seqs=4, budget=64, max_len=96), SimulatedCache(4)
    for number, length in enumerate((60, 8, 8)):
        scheduler.add(make_user_request(f"a{number}", "ann", RequestSpec(length, 10, 0, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    scheduler.add(make_user_request("bob", "bob", RequestSpec(70, 2, 0, None), 1.0))
    run(scheduler, cache)
    assert [request.id for request in scheduler.running] == ["a0/0", "a1/0", "a2/0"]
    assert scheduler.counters.preemptions == 0


def test_a_prompts_length_takes_nobodys_seat() -> None:
    scheduler, cache = make_scheduler(200, 4, seqs=1, budget=16, max_len=LONGEST), SimulatedCache(4)
    scheduler.add(make_user_request("long", "ann", RequestSpec(80, 4, 0, None), 0.0))
    run(scheduler, cache)
    scheduler.add(make_user_request("short", "bob", RequestSpec(4, 4, 0, None), 0.1))
    run(scheduler, cache)
    assert [request.user for request in scheduler.running] == ["ann"]


def test_a_reply_under_way_ends_though_new_users_come_all_the_time() -> None:
    """Short requests compete with it for blocks: 32 of 4 tokens, for a reply that needs 29."""
    scheduler = make_scheduler(33, 4, budget=32, max_len=120)
    cache = SimulatedCache(4)
    long = make_request("long", list(range(60)), 55, 0.0)
    long.user = "long"
    scheduler.add(long)
    come = 0
    for step in range(300):
        while len(scheduler.requests) - (not long.is_finished) < 3:
            come += 1
            short = make_request(f"r{come}", list(range(1000 + come * 6, 1006 + come * 6)), 30, float(step))
            short.user = f"user {come}"
            scheduler.add(short)
        run(scheduler, cache)
        scheduler.check()
        if long.is_finished:
            return
    raise AssertionError(f"{long.num_output_tokens} of 55 tokens, after {long.num_preemptions} preemptions")


@pytest.mark.parametrize("own_replies", [0, 1])
def test_a_large_request_is_not_overtaken_for_ever(own_replies: int) -> None:
    """Later requests of other users would fit and it does not, so they wait for it.

    While a reply of its own user is in its way, they start to wait only when that reply has ended.
    """
    now = 0.0
    scheduler = make_scheduler(33, 4, seqs=8, budget=32, max_len=120, clock=lambda: now)
    cache = SimulatedCache(4)
    for number in range(own_replies):
        scheduler.add(make_user_request(f"own {number}", "ann", RequestSpec(4, 25, 0, None, priority=999), now))
    large = make_user_request("large", "ann", RequestSpec(110, 2, 0, None), 9.0)
    for step in range(150):
        now += 1.0
        if step % 4 == 0:  # three at a time, none of which ends when another does
            scheduler.add(make_user_request(f"small {step}", f"user {step}", RequestSpec(6, 12, 0, None), now))
        if step == 9:
            scheduler.add(large)
            scheduler.add(make_user_request("aborted", "ann", RequestSpec(4, 2, 0, None), now))
            scheduler.finish("aborted/0", FinishReason.ABORT)  # the others move up
        run(scheduler, cache)
        if large.is_finished:
            return
    raise AssertionError(f"{large.num_computed_tokens} of 110 tokens are read")


def test_a_preempted_request_is_not_overtaken_by_its_own_user_in_the_same_plan() -> None:
    scheduler = make_scheduler(num_blocks=101, block_size=1, budget=256, max_len=100, clock=lambda: 0.0)
    cache = SimulatedCache(1)
    first, preempted, later = (
        make_user_request(name, "u", RequestSpec(prompt, 30, 0, None), 0.0)
        for name, prompt in (("first", 10), ("preempted", 60), ("later", 35))
    )
    scheduler.add(first)
    scheduler.add(preempted)
    run(scheduler, cache)
    other = make_user_request("other", "a", RequestSpec(40, 30, 0, None), 0.0)
    scheduler.add(later)
    scheduler.add(other)
    plan = run(scheduler, cache)
    assert {chunk.request.id for chunk in plan.chunks} == {first.id, other.id}
    assert preempted.status is RequestStatus.WAITING
    assert later.status is RequestStatus.WAITING


def test_a_request_that_waits_for_other_users_too_is_not_overtaken() -> None:
    """It does not fit even without the later-ranked reply of its own user."""
    now = 0.0
    scheduler = make_scheduler(33, 4, seqs=8, budget=64, max_len=120, clock=lambda: now)
    cache = SimulatedCache(4)
    scheduler.add(make_user_request("carl", "carl", RequestSpec(40, 40, 0, None), now))
    scheduler.add(make_user_request("own", "ann", RequestSpec(4, 25, 0, None, priority=999), now))
    run(scheduler, cache)
    large = make_user_request("large", "ann", RequestSpec(100, 2, 0, None), now)
    for one in (large, make_user_request("aborted", "ann", RequestSpec(4, 2, 0, None), now)):
        scheduler.add(one)
    scheduler.finish("aborted/0", FinishReason.ABORT)  # the others move up
    run(scheduler, cache)
    now = 2.0
    bob = make_user_request("bob", "bob", RequestSpec(4, 2, 0, None), now)
    scheduler.add(bob)
    run(scheduler, cache)
    assert large.rank < bob.rank < scheduler.running[-1].rank
    assert [request.id for request in scheduler.running] == ["carl/0", "own/0"]


def test_a_later_turn_that_waits_for_its_users_earlier_one_is_not_overtaken() -> None:
    now = 0.0
    scheduler = make_scheduler(33, 4, seqs=8, budget=64, max_len=120, clock=lambda: now)
    cache = SimulatedCache(4)
    scheduler.add(make_user_request("first", "ann", RequestSpec(40, 20, 0, None), now))
    large = make_user_request("large", "ann", RequestSpec(100, 2, 0, None), now)
    scheduler.add(large)
    scheduler.add(make_user_request("bob", "bob", RequestSpec(4, 20, 0, None), now))
    now = 2.0
    small = make_user_request("small", "bob", RequestSpec(4, 20, 0, None), now)
    scheduler.add(small)
    run(scheduler, cache)
    assert large.rank < small.rank
    assert [request.id for request in scheduler.running] == ["bob/0", "first/0"]


BACKGROUND = RequestSpec(4, 20, 0, None, BACKGROUND_PRIORITY)


def test_a_background_request_takes_no_seat() -> None:
    """Not even that of the latest turn of a user with many requests."""
    scheduler, cache = make_scheduler(200, 4, seqs=4, budget=16, max_len=32), SimulatedCache(4)
    scheduler.add(make_user_request("many", "ann", RequestSpec(4, 20, 15, None), 0.0))
    for _ in range(3):
        run(scheduler, cache)
    title = make_user_request("title", "bob", BACKGROUND, 0.0)
    scheduler.add(title)
    while any(request.user == "ann" for request in scheduler.requests):
        run(scheduler, cache)
        if scheduler.num_waiting > 1:
            assert title.first_scheduled is None
    assert scheduler.counters.preemptions == 0
    run(scheduler, cache)
    assert title.first_token is not None


@pytest.mark.parametrize("user", ["ann", "bob", None])
def test_a_background_request_gives_its_seat_to_any_reply(user: str | None) -> None:
    """Also to one of its own user, and without users. It gets the seat back when the reply has ended."""
    scheduler, cache = make_scheduler(200, 4, seqs=1, budget=16, max_len=32), SimulatedCache(4)
    title = make_user_request("title", None if user is None else "ann", BACKGROUND, 0.0)
    scheduler.add(title)
    run(scheduler, cache)
    reply = make_user_request("reply", user, RequestSpec(4, 4, 0, None, priority=999), 1.0)
    scheduler.add(reply)
    assert steps_until_first_token(scheduler, cache, reply, 1) == 1
    while not title.is_finished:
        run(scheduler, cache)
    assert (title.num_output_tokens, title.num_preemptions, reply.num_preemptions) == (20, 1, 0)


def test_a_background_request_is_no_turn_of_its_user() -> None:
    """With a title in the background, Bob's reply still ranks as his first turn, before Ann's second."""
    scheduler, cache = make_scheduler(200, 4, seqs=2, budget=16, max_len=32, clock=lambda: 1.0), SimulatedCache(4)
    scheduler.add(make_user_request("title", "bob", BACKGROUND, 0.0))
    for number in range(2):
        scheduler.add(make_user_request(f"a{number}", "ann", RequestSpec(4, 9, 0, None), 0.0))
    run(scheduler, cache)
    assert [request.id for request in scheduler.running] == ["a0/0", "a1/0"]
    bob = make_user_request("bob", "bob", RequestSpec(4, 9, 0, None), 1.0)
    scheduler.add(bob)
    assert bob.turn == 0
    assert steps_until_first_token(scheduler, cache, bob, 1) == 1


def test_users_take_turns_in_the_background_too() -> None:
    scheduler, cache = make_scheduler(200, 4, seqs=2, budget=16, max_len=32, clock=lambda: 1.0), SimulatedCache(4)
    for number in range(3):
        scheduler.add(make_user_request(f"a{number}", "ann", BACKGROUND, 0.0))
    run(scheduler, cache)
    scheduler.add(make_user_request("bob", "bob", BACKGROUND, 1.0))
    run(scheduler, cache)
    assert [request.id for request in scheduler.running] == ["a0/0", "bob/0"]


def test_a_request_that_takes_a_decodes_seat_gets_no_more_tokens_than_blocks() -> None:
    """The preempted decode's token becomes free after the request's blocks were counted."""
    scheduler = make_scheduler(
        num_blocks=40, block_size=4, seqs=2, budget=6, max_len=24, windows=(None, 6), clock=lambda: 0.0
    )
    cache = SimulatedCache(4, (None, 6))
    for name in "ab":
        scheduler.add(make_user_request(name, "first", RequestSpec(1, 9, 0, None), 0.0))
    run(scheduler, cache)
    run(scheduler, cache)
    request = make_user_request("c", "second", RequestSpec(20, 1, 0, None), 0.0)
    scheduler.add(request)
    plan = run(scheduler, cache)
    assert [chunk.request.id for chunk in plan.chunks] == ["a/0", "c/0"]
    for chunk in plan.chunks:
        assert all(len(table) * 4 >= chunk.end for table in chunk.block_tables)
