"""Who is suspected, for how long, and who waits for whom: by the clock, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine import FinishReason
from engine.errors import PoisonedPromptError
from engine.runtime import quarantine as suspects_module
from engine.runtime.quarantine import KEEP_SECONDS, PATIENCE_SECONDS, Solitude, Suspects


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def submission(name: str, prompt: list[int], deadline: float | None = None) -> Any:
    request = SimpleNamespace(
        id=name,
        prompt_token_ids=tuple(prompt),
        token_ids=list(prompt),
        is_finished=False,
        finish_reason=None,
        deadline=deadline,
    )
    return SimpleNamespace(request=request, stream_id=name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspects(clock: Clock) -> Suspects:
    return Suspects(clock)


@pytest.fixture
def solitude(suspects: Suspects, clock: Clock) -> Solitude:
    return Solitude(suspects, clock)


def let_in(solitude: Solitude, *, busy: bool) -> list[str]:
    return [one.request.id for one in solitude.let_in(busy=busy)]


def test_suspicion_and_refusal_are_forgotten_in_time(suspects: Suspects, clock: Clock) -> None:
    suspects.accuse([1, 2], 9)
    suspects.refuse([1, 2])
    assert (suspects.must_pass([1, 2]), suspects.must_pass([1])) == (9, None)
    clock.now += KEEP_SECONDS / 2
    suspects.accuse([1, 2], 5)
    assert suspects.must_pass([1, 2]) == 9
    with pytest.raises(PoisonedPromptError, match=r"2 times.*next 10 minutes"):
        suspects.refuse([1, 2])
    suspects.refuse([1, 2, 3])
    clock.now += KEEP_SECONDS - 1
    with pytest.raises(PoisonedPromptError, match=r"next minute\."):
        suspects.refuse([1, 2])
    clock.now += 2
    suspects.refuse([1, 2])
    assert suspects.must_pass([1, 2]) is None


def test_only_so_many_are_remembered(suspects: Suspects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects_module, "CAPACITY", 3)
    for token in range(10):
        suspects.accuse([token], 1)
    assert [suspects.must_pass([token]) is not None for token in range(10)] == [False] * 7 + [True] * 3


def test_without_suspects_all_pass_in_order(solitude: Solitude) -> None:
    for name in "abc":
        solitude.arrive(submission(name, [1]))
    assert let_in(solitude, busy=True) == ["a", "b", "c"]


def test_a_suspect_waits_for_an_idle_engine_and_is_alone_until_it_is_past(
    solitude: Solitude, suspects: Suspects
) -> None:
    suspects.accuse([1], 3)
    suspect = submission("suspect", [1])
    solitude.arrive(suspect)
    solitude.arrive(submission("a", [2]))
    assert let_in(solitude, busy=True) == ["a"]
    assert let_in(solitude, busy=False) == ["suspect"]
    solitude.arrive(submission("b", [2]))
    suspect.request.token_ids = [1, 7, 7]
    assert let_in(solitude, busy=True) == []
    suspect.request.token_ids.append(7)  # longer than when its step failed
    assert let_in(solitude, busy=True) == ["b"]
    assert suspects.must_pass([1]) is None


@pytest.mark.parametrize(
    ("reason", "cleared"), [(FinishReason.STOP, True), (FinishReason.ABORT, False), (FinishReason.DEADLINE, False)]
)
def test_a_suspect_that_ends_early_is_cleared_only_by_its_own_end(
    solitude: Solitude, suspects: Suspects, reason: FinishReason, cleared: bool
) -> None:
    suspects.accuse([1], 30)
    suspect = submission("suspect", [1])
    solitude.arrive(suspect)
    assert let_in(solitude, busy=False) == ["suspect"]
    solitude.arrive(submission("a", [2]))
    suspect.request.is_finished, suspect.request.finish_reason = True, reason
    assert let_in(solitude, busy=False) == ["a"]
    assert (suspects.must_pass([1]) is None) == cleared


def test_two_suspects_go_one_after_the_other(solitude: Solitude, suspects: Suspects) -> None:
    suspects.accuse([1], 1)
    suspects.accuse([2], 1)
    first = submission("first", [1])
    solitude.arrive(first)
    solitude.arrive(submission("second", [2]))
    assert let_in(solitude, busy=False) == ["first"]
    assert let_in(solitude, busy=True) == []
    first.request.token_ids.append(7)
    assert let_in(solitude, busy=True) == []  # the first goes on: still not alone
    assert let_in(solitude, busy=False) == ["second"]


def test_a_suspect_is_not_overtaken_for_ever(solitude: Solitude, suspects: Suspects, clock: Clock) -> None:
    suspects.accuse([1], 1)
    solitude.arrive(submission("suspect", [1]))
    solitude.arrive(submission("a", [2]))
    assert let_in(solitude, busy=True) == ["a"]
    clock.now += PATIENCE_SECONDS + 1
    solitude.arrive(submission("b", [2]))
    assert let_in(solitude, busy=True) == []
    assert let_in(solitude, busy=False) == ["suspect"]


def test_who_leaves_or_runs_out_of_time_while_held_is_gone(
    solitude: Solitude, suspects: Suspects, clock: Clock
) -> None:
    suspects.accuse([1], 1)
    for name, deadline in (("left", None), ("late", clock.now + 5), ("stays", None)):
        solitude.arrive(submission(name, [1], deadline))
    assert let_in(solitude, busy=True) == []
    assert solitude.take_overdue() == []
    clock.now += 6
    assert [one.request.id for one in solitude.take_overdue()] == ["late"]
    assert solitude.leave("left")
    assert not solitude.leave("nobody")
    assert let_in(solitude, busy=False) == ["stays"]
    assert not solitude.leave("stays")  # it is in the core
    solitude.arrive(submission("a", [2]))
    assert let_in(solitude, busy=False) == ["a"]  # nobody is waited for who has left


def test_after_a_restart_those_who_were_let_in_come_first(solitude: Solitude, suspects: Suspects) -> None:
    suspects.accuse([1], 1)
    solitude.arrive(submission("suspect", [1]))
    assert let_in(solitude, busy=False) == ["suspect"]
    solitude.arrive(submission("new", [3]))
    solitude.restart([submission("a", [2]), submission("b", [2])])
    assert let_in(solitude, busy=False) == ["a", "b", "new"]
