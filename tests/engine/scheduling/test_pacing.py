"""Pacing on simulated machines: seconds as a function of decodes and prompt tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.scheduling.pacing import (
    MAX_COUNTED_READERS,
    MAX_PREFILL_SLOWDOWN,
    MAX_STEP_RATIO,
    PROBE_INTERVAL,
    TILE_ROWS,
    Pacing,
)

BUDGET = 512
PROMPT = 4000


@dataclass(frozen=True)
class Machine:
    """Seconds of a step: a fixed part, and what decodes, prompt tokens and their attention add."""

    fixed: float = 2e-3
    per_decode: float = 1e-4
    mixing: float = 0.0  #: any prompt token beside decodes
    per_token: float = 5e-5
    per_key: float = 0.0  #: of each prompt token, by the tokens before it
    jump: float = 0.0  #: more than 64 rows

    def seconds(self, decodes: int, prompt_tokens: int, position: int = 0) -> float:
        seconds = self.fixed + self.per_decode * decodes
        seconds += prompt_tokens * (self.per_token + self.per_key * (position + prompt_tokens / 2))
        return seconds + self.mixing * (prompt_tokens > 0 < decodes) + self.jump * (decodes + prompt_tokens > 64)


@dataclass(frozen=True)
class Reading:
    """Steps of a prefill beside decodes."""

    steps: list[int]  #: tokens
    seconds: list[float]


def warmed_up(machine: Machine, budget: int = BUDGET, tile_rows: int = TILE_ROWS) -> Pacing:
    """As the engine warms up: a prompt that fills a step, then a few decodes."""
    pacing = Pacing(budget, tile_rows)
    pacing.observe(0, budget, machine.seconds(0, budget))
    for _ in range(3):
        pacing.observe(1, 0, machine.seconds(1, 0))
    return pacing


def read(
    pacing: Pacing,
    machine: Machine,
    decodes: int = 4,
    *,
    prompt: int = PROMPT,
    budget: int = BUDGET,
    delay: Callable[[], float] = float,
) -> Reading:
    for _ in range(10):
        pacing.observe(decodes, 0, machine.seconds(decodes, 0) + delay())
    steps: list[int] = []
    seconds: list[float] = []
    position = 0
    while position < prompt:
        allowed = pacing.max_prompt_tokens(decodes, 1, 1)
        assert 1 <= allowed <= budget - decodes
        steps.append(min(allowed, prompt - position))
        seconds.append(machine.seconds(decodes, steps[-1], position))
        pacing.observe(decodes, steps[-1], seconds[-1] + delay())
        position += steps[-1]
    return Reading(steps, seconds)


def unpaced(machine: Machine, decodes: int = 4, budget: int = BUDGET) -> float:
    """Seconds of a prefill that gets all that the decodes leave of the budget."""
    starts = range(0, PROMPT, budget - decodes)
    return sum(machine.seconds(decodes, min(budget - decodes, PROMPT - start), start) for start in starts)


def test_streams_flow_beside_a_prompt_that_has_its_share() -> None:
    machine = Machine()
    reading = read(warmed_up(machine), machine)
    alone = machine.seconds(4, 0)
    assert sorted(reading.seconds)[len(reading.seconds) * 19 // 20] <= MAX_STEP_RATIO * alone * 1.01
    assert sum(reading.seconds) <= 3 * unpaced(machine)


@pytest.mark.parametrize("tile_rows", [TILE_ROWS, 12])
def test_steps_are_whole_tiles(tile_rows: int) -> None:
    machine = Machine()
    steps = read(warmed_up(machine, tile_rows=tile_rows), machine, 5).steps[:-1]
    assert {(tokens + 5) % tile_rows for tokens in steps} == {0}


def test_attention_that_grows_with_the_context_is_followed() -> None:
    # Two tiles a step at first, so that it can become smaller; at the end, attention costs twice the rest of a token.
    machine = Machine(per_token=4e-5, per_key=2e-8)
    reading = read(warmed_up(machine), machine)
    late = reading.seconds[len(reading.seconds) // 2 :]
    assert median(late) <= 1.1 * MAX_STEP_RATIO * machine.seconds(4, 0)
    assert median(reading.steps[-20:]) < median(reading.steps[:20])


def test_a_size_at_which_the_machine_turns_slow_is_avoided() -> None:
    """More than 64 rows take another way through the model."""
    machine = Machine(per_token=1e-5, jump=10e-3)
    reading = read(warmed_up(machine), machine)
    late = reading.steps[20:-1]
    assert median(late) == 60
    assert sum(tokens > 60 for tokens in late) <= len(late) / PROBE_INTERVAL + 1


def test_where_any_prompt_token_costs_more_than_the_decodes_it_is_read_in_large_steps_nevertheless() -> None:
    machine = Machine(fixed=5e-3, mixing=20e-3, per_token=4e-5)
    pacing = warmed_up(machine)
    read(pacing, machine)
    assert sum(read(pacing, machine).seconds) <= MAX_PREFILL_SLOWDOWN * unpaced(machine)


def test_a_machine_that_stands_still_now_and_then_changes_nothing() -> None:
    rng = Random(3)
    machine = Machine()
    quiet = read(warmed_up(machine), machine)
    shaken = read(warmed_up(machine), machine, delay=lambda: 3.0 if rng.random() < 0.1 else 0.0)
    assert sum(shaken.seconds) <= 1.5 * sum(quiet.seconds)
    assert sorted(shaken.seconds)[len(shaken.seconds) * 9 // 10] <= 1.2 * MAX_STEP_RATIO * machine.seconds(4, 0)


def test_what_was_slow_once_is_tried_again() -> None:
    machine = Machine()
    pacing = warmed_up(machine)
    before = sum(read(pacing, machine).seconds)
    read(pacing, Machine(per_token=machine.per_token * 5), prompt=1000)
    assert sum(read(pacing, machine).seconds) <= 1.1 * before


def test_steps_that_take_no_time_by_a_coarse_clock_are_learned_from_too() -> None:
    pacing = Pacing(BUDGET)
    for decodes, prompt_tokens in ((1, 0), (0, 2), (1, 3), (1, 5)):
        pacing.observe(decodes, prompt_tokens, 0.0)
    assert 1 <= pacing.max_prompt_tokens(1, 1, 1) < BUDGET


def test_a_step_takes_longer_the_more_readers_wait() -> None:
    machine = Machine()
    pacing = warmed_up(machine)
    read(pacing, machine, 8)
    one, two, four, eight = (pacing.max_prompt_tokens(8, 8, readers) for readers in (1, 2, 4, 8))
    assert one < two < four == eight
    expected = (MAX_STEP_RATIO - 1) * machine.seconds(8, 0) * MAX_COUNTED_READERS
    assert machine.seconds(8, four) - machine.seconds(8, 0) <= expected


def test_with_more_prompts_than_replies_a_step_takes_longer_still() -> None:
    machine = Machine()
    pacing = warmed_up(machine)
    read(pacing, machine, 2)
    eight, ten, many = (pacing.max_prompt_tokens(2, prompts, 1) for prompts in (8, 10, 1000))
    assert eight < ten < many == BUDGET - 2
    expected = (MAX_STEP_RATIO - 1) * machine.seconds(2, 0) * 4
    assert machine.seconds(2, eight) - machine.seconds(2, 0) <= expected


def test_a_machine_that_is_not_known_yet_begins_with_little() -> None:
    pacing = Pacing(BUDGET)
    assert pacing.max_prompt_tokens(4, 1, 1) <= 2 * TILE_ROWS
    pacing.observe(4, 0, 0.01)
    assert pacing.max_prompt_tokens(4, 1, 1) <= 2 * TILE_ROWS


seconds = st.floats(0, 0.1)


@pytest.mark.slow
# A case in which rounding down to whole tiles would leave too few prompt tokens.
@example(0.0625, 0.0, 0.03125, 0.0007941799221812031, 0.0, 0.0, 7, 371, 0)
@settings(max_examples=50, deadline=None)
@given(
    fixed=st.floats(1e-5, 0.1),
    per_decode=st.floats(0, 1e-3),
    mixing=seconds,
    per_token=st.floats(1e-7, 1e-2),
    per_key=st.floats(0, 1e-7),
    jump=seconds,
    decodes=st.integers(1, 64),
    budget=st.integers(65, 2048),
    seed=st.integers(0, 9),
)
def test_no_machine_starves_a_prompt(
    fixed: float,
    per_decode: float,
    mixing: float,
    per_token: float,
    per_key: float,
    jump: float,
    decodes: int,
    budget: int,
    seed: int,
) -> None:
    rng = Random(seed)
    machine = Machine(fixed, per_decode, mixing, per_token, min(per_key, per_token / PROMPT), jump)
    pacing = warmed_up(machine, budget)
    delay = lambda: rng.choice([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]) * rng.random()  # noqa: E731
    read(pacing, machine, decodes, budget=budget)
    read(pacing, machine, decodes, budget=budget, delay=delay)
    paced = sum(read(pacing, machine, decodes, budget=budget).seconds)
    assert paced <= 2 * MAX_PREFILL_SLOWDOWN * unpaced(machine, decodes, budget)
