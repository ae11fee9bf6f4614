"""Repetitions take turns, and those that others disturbed are done again or marked."""

from __future__ import annotations

from benchmarks.interleaving import CannotContinueError, Repetition, run_interleaved


def test_all_take_turns_and_the_first_turn_warms_up() -> None:
    asked: list[tuple[str, int]] = []

    def measure(name: str, turn: int) -> Repetition:
        asked.append((name, turn))
        return Repetition({"decode": 100.0 if turn == 0 else turn + (name == "b")}, 0.0)

    found = run_interleaved(["a", "b"], 3, measure)
    assert asked == [(name, turn) for turn in range(4) for name in "ab"]
    assert found["a"].figures == {"decode": 2.0}
    assert found["b"].figures == {"decode": 3.0}


def test_a_disturbed_repetition_is_done_again_and_does_not_count() -> None:
    def measure(name: str, turn: int) -> Repetition:
        busy = name == "a" and turn in (1, 2)
        return Repetition({"decode": 1.0 if busy else 10.0 * turn}, 0.09 if busy else 0.08)

    found = run_interleaved(["a", "b"], 2, measure)
    assert (found["a"].dropped, found["a"].is_disturbed) == (2, False)
    assert found["a"].figures == {"decode": 35.0}  # turns 3 and 4
    assert [one.figures["decode"] for one in found["b"].repetitions] == [10.0, 20.0]


def test_where_others_were_always_busy_the_figures_are_marked() -> None:
    found = run_interleaved(["a"], 2, lambda name, turn: Repetition({"decode": float(turn)}, 0.5))["a"]
    assert found.is_disturbed
    assert len(found.repetitions) == 4
    assert found.figures == {"decode": 2.5}


def test_who_cannot_go_on_is_out_and_the_others_go_on() -> None:
    def measure(name: str, turn: int) -> Repetition:
        if name == "a" and turn == 2:
            raise CannotContinueError("it died")
        return Repetition({"decode": 1.0}, 0.0)

    found = run_interleaved(["a", "b"], 3, measure)
    assert found["a"].problem == "it died"
    assert len(found["a"].repetitions) == 1
    assert len(found["b"].repetitions) == 3
