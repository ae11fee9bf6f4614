"""Who is suspected, for how long, and who waits for whom: by the clock, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine import FinishReason
from engine.errors import PoisonedPromptError
from engine.runtime import quarantine as suspects_module
from engine.runtime.quarantine import MAX_QUARANTINE_WAIT_SECONDS, RECORD_TTL_SECONDS, AdmissionGate, Quarantine


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
def quarantine(clock: Clock) -> Quarantine:
    return Quarantine(clock)


@pytest.fixture
def gate(quarantine: Quarantine, clock: Clock) -> AdmissionGate:
    return AdmissionGate(quarantine, clock)


def admit(gate: AdmissionGate, *, busy: bool) -> list[str]:
    return [one.request.id for one in gate.admit(busy=busy)]


def test_suspicion_and_refusal_are_forgotten_in_time(quarantine: Quarantine, clock: Clock) -> None:
    quarantine.record_failure([1, 2], 9)
    quarantine.raise_if_poisoned([1, 2])
    assert (quarantine.failed_length([1, 2]), quarantine.failed_length([1])) == (9, None)
    clock.now += RECORD_TTL_SECONDS / 2
    quarantine.record_failure([1, 2], 5)
    assert quarantine.failed_length([1, 2]) == 9
    with pytest.raises(PoisonedPromptError, match=r"2 times.*next 10 minutes"):
        quarantine.raise_if_poisoned([1, 2])
    quarantine.raise_if_poisoned([1, 2, 3])
    clock.now += RECORD_TTL_SECONDS - 1
    with pytest.raises(PoisonedPromptError, match=r"next minute\."):
        quarantine.raise_if_poisoned([1, 2])
    clock.now += 2
    quarantine.raise_if_poisoned([1, 2])
    assert quarantine.failed_length([1, 2]) is None


def test_only_so_many_are_remembered(quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects_module, "MAX_RECORDS", 3)
    for token in range(10):
        quarantine.record_failure([token], 1)
    assert [quarantine.failed_length([token]) is not None for token in range(10)] == [False] * 7 + [True] * 3


def test_without_suspects_all_pass_in_order(gate: AdmissionGate) -> None:
    for name in "abc":
        gate.enqueue(submission(name, [1]))
    assert admit(gate, busy=True) == ["a", "b", "c"]


def test_a_suspect_waits_for_an_idle_engine_and_is_alone_until_it_is_past(
    gate: AdmissionGate, quarantine: Quarantine
) -> None:
    quarantine.record_failure([1], 3)
    suspect = submission("suspect", [1])
    gate.enqueue(suspect)
    gate.enqueue(submission("a", [2]))
    assert admit(gate, busy=True) == ["a"]
    assert admit(gate, busy=False) == ["suspect"]
    gate.enqueue(submission("b", [2]))
    suspect.request.token_ids = [1, 7, 7]
    assert admit(gate, busy=True) == []
    suspect.request.token_ids.append(7)  # longer than when its step failed
    assert admit(gate, busy=True) == ["b"]
    assert quarantine.failed_length([1]) is None


@pytest.mark.parametrize(
    ("reason", "cleared"), [(FinishReason.STOP, True), (FinishReason.ABORT, False), (FinishReason.DEADLINE, False)]
)
def test_a_suspect_that_ends_early_is_cleared_only_by_its_own_end(
    gate: AdmissionGate, quarantine: Quarantine, reason: FinishReason, cleared: bool
) -> None:
    quarantine.record_failure([1], 30)
    suspect = submission("suspect", [1])
    gate.enqueue(suspect)
    assert admit(gate, busy=False) == ["suspect"]
    gate.enqueue(submission("a", [2]))
    suspect.request.is_finished, suspect.request.finish_reason = True, reason
    assert admit(gate, busy=False) == ["a"]
    assert (quarantine.failed_length([1]) is None) == cleared


def test_two_suspects_go_one_after_the_other(gate: AdmissionGate, quarantine: Quarantine) -> None:
    quarantine.record_failure([1], 1)
    quarantine.record_failure([2], 1)
    first = submission("first", [1])
    gate.enqueue(first)
    gate.enqueue(submission("second", [2]))
    assert admit(gate, busy=False) == ["first"]
    assert admit(gate, busy=True) == []
    first.request.token_ids.append(7)
    assert admit(gate, busy=True) == []  # the first goes on: still not alone
    assert admit(gate, busy=False) == ["second"]


def test_a_suspect_is_not_overtaken_for_ever(gate: AdmissionGate, quarantine: Quarantine, clock: Clock) -> None:
    quarantine.record_failure([1], 1)
    gate.enqueue(submission("suspect", [1]))
    gate.enqueue(submission("a", [2]))
    assert admit(gate, busy=True) == ["a"]
    clock.now += MAX_QUARANTINE_WAIT_SECONDS + 1
    gate.enqueue(submission("b", [2]))
    assert admit(gate, busy=True) == []
    assert admit(gate, busy=False) == ["suspect"]


def test_who_leaves_or_runs_out_of_time_while_held_is_gone(
    gate: AdmissionGate, quarantine: Quarantine, clock: Clock
) -> None:
    quarantine.record_failure([1], 1)
    for name, deadline in (("left", None), ("late", clock.now + 5), ("stays", None)):
        gate.enqueue(submission(name, [1], deadline))
    assert admit(gate, busy=True) == []
    assert gate.pop_expired() == []
    clock.now += 6
    assert [one.request.id for one in gate.pop_expired()] == ["late"]
    assert gate.discard("left")
    assert not gate.discard("nobody")
    assert admit(gate, busy=False) == ["stays"]
    assert not gate.discard("stays")  # it is in the core
    gate.enqueue(submission("a", [2]))
    assert admit(gate, busy=False) == ["a"]  # nobody is waited for who has left


def test_after_a_restart_those_who_were_let_in_come_first(gate: AdmissionGate, quarantine: Quarantine) -> None:
    quarantine.record_failure([1], 1)
    gate.enqueue(submission("suspect", [1]))
    assert admit(gate, busy=False) == ["suspect"]
    gate.enqueue(submission("new", [3]))
    gate.requeue([submission("a", [2]), submission("b", [2])])
    assert admit(gate, busy=False) == ["a", "b", "new"]
