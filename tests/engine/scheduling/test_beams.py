"""Beams in the scheduler: each reads what its own sequence wrote, whoever wrote it, and all of them go on in time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.outputs import FinishReason
from engine.scheduling.request import Request, RequestStatus
from engine.scheduling.scheduler import Scheduler
from tests.engine.scheduling.test_scheduler import SimulatedCache, make_request, make_scheduler

MAX_STEPS = 2000


class Group:
    """A search that continues any of its beams, at random."""

    def __init__(self, name: str, prompt: list[int], width: int, steps: int, rng: random.Random) -> None:
        one = make_request(name, prompt, max_tokens=steps + 1)
        self.beams = [replace(one, id=f"{name}/{index}", is_beam=True) for index in range(width)]
        self.beams[0].forks = self.beams[1:]
        self.steps_left = steps
        self._reported: set[str] = set()
        self._rng = rng
        self._has_begun = False

    def report(self, scheduler: Scheduler, beams: list[Request]) -> None:
        self._reported |= {beam.id for beam in beams}
        waiting_for = len(self.beams) if self._has_begun else 1
        if len(self._reported) < waiting_for:
            for beam in beams:
                scheduler.park(beam)
            return
        self._reported.clear()
        self.steps_left -= 1
        if self.steps_left == 0:
            for beam in self.beams:
                scheduler.finish(beam.id, FinishReason.LENGTH)
            return
        choices = [self._rng.randrange(waiting_for) for _ in self.beams]
        scheduler.regroup(self.beams, choices, [self._rng.randrange(100, 200) for _ in self.beams])
        self._has_begun = True


@pytest.mark.parametrize("windows", [(None,), (5,), (None, 3)])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_beams_read_their_own_sequences_whatever_else_runs(
    windows: tuple[int | None, ...], caching: bool, seed: int
) -> None:
    rng = random.Random(seed)
    seats = rng.randint(1, 6)
    size = rng.choice([1, 2, 4])
    blocks = len(windows) * (-(-24 // size) + rng.choice([2, 6, 40])) + 1
    scheduler = make_scheduler(
        blocks, size, seqs=seats, budget=seats + rng.randint(0, 8), max_len=24, caching=caching, windows=windows
    )
    cache = SimulatedCache(size, windows)
    groups = [
        Group(f"g{number}", [rng.randrange(3) for _ in range(rng.randint(1, 12))], rng.randint(1, 5), 10, rng)
        for number in range(3)
    ]
    by_id = {beam.id: group for group in groups for beam in group.beams}
    for number, group in enumerate(groups):
        scheduler.add(group.beams[0])
        scheduler.add(make_request(f"r{number}", [1] * rng.randint(1, 9), max_tokens=6))
    for _ in range(MAX_STEPS):
        if not scheduler.has_work:
            break
        if rng.random() < 0.02:
            victim = rng.choice(groups)
            for beam in victim.beams:
                scheduler.finish(beam.id, FinishReason.ABORT)
        plan = scheduler.plan()
        assert plan.chunks or not scheduler.has_work, "beams that wait for each other stop everything"
        cache.execute(plan)
        plain = {chunk.request.id: rng.randrange(100, 200) for chunk in plan.sampling if not chunk.request.is_beam}
        advanced = scheduler.commit(plan, plain)
        assert not any(request.is_beam for request in advanced)
        reported: dict[int, list[Request]] = {}
        for chunk in plan.sampling:
            if chunk.request.is_beam:
                reported.setdefault(groups.index(by_id[chunk.request.id]), []).append(chunk.request)
        for number, beams in reported.items():
            groups[number].report(scheduler, beams)
        scheduler.check()
    assert not scheduler.has_work
    assert scheduler.pool.usage == 0


def test_beams_share_what_they_have_in_common() -> None:
    scheduler, cache = make_scheduler(40, 4, seqs=4, budget=32), SimulatedCache(4)
    group = Group("g", list(range(14)), 4, 3, random.Random(0))
    scheduler.add(group.beams[0])
    for _ in range(2):
        plan = scheduler.plan()
        cache.execute(plan)
        scheduler.commit(plan, {})
        group.report(scheduler, [chunk.request for chunk in plan.sampling])
    assert [beam.status for beam in group.beams] == [RequestStatus.RUNNING] * 4
    tables = [beam.tables[0] for beam in group.beams]
    assert len({tuple(table[:3]) for table in tables}) == 1
    held = {block for table in tables for block in table}
    assert len(held) <= 3 + 4


def test_a_parked_beam_holds_nothing_and_can_be_ended() -> None:
    scheduler = make_scheduler(40, 4, seqs=1, budget=32)
    group = Group("g", [1, 2, 3], 2, 5, random.Random(0))
    scheduler.add(group.beams[0])
    for _ in range(2):
        plan = scheduler.plan()
        scheduler.commit(plan, {})
        group.report(scheduler, [chunk.request for chunk in plan.sampling])
    [parked] = [beam for beam in group.beams if beam.status is RequestStatus.PARKED]
    assert parked.tables == []
    assert scheduler.num_running == 0
    assert scheduler.finish(parked.id, FinishReason.ABORT) is parked
    scheduler.check()
