"""Stop strings: the reply ends before the first one, and no more text than needed is held back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from engine.text.stop_strings import StopChecker


def shown(pieces: list[str]) -> list[str]:
    return ["".join(pieces[: end + 1]) for end in range(len(pieces))]


def reference_stop(text: str, stop: list[str]) -> tuple[str, str | None]:
    """Read character by character; stop when the text ends with a stop string, the longest if there are several."""
    for end in range(1, len(text) + 1):
        matching = [s for s in stop if text[:end].endswith(s)]
        if matching:
            met = max(matching, key=len)
            return text[: end - len(met)], met
    return text, None


@given(
    text=st.text(alphabet="ab\n", max_size=40),
    stop=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
@example(text="aab", stop=["ab"], cuts=[1, 2])
@example(text="xaaab", stop=["aab", "b"], cuts=[])
@example(text="ababac", stop=["abac"], cuts=[3])
def test_stop_strings_never_flash(text: str, stop: list[str], cuts: list[int]) -> None:
    checker = StopChecker(stop)
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[start:end] for start, end in pairwise(borders)]
    got = [checker.push(part) for part in parts]
    expected, met = reference_stop(text, stop)
    for so_far in shown(got) if got else []:
        assert expected.startswith(so_far)
    assert "".join(got) + checker.release() == expected
    assert checker.matched == met


@given(
    text=st.text(alphabet="ab\n", max_size=40),
    stop=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3),
)
def test_no_more_is_held_back_than_a_stop_string_could_need(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    shown_text = "".join(checker.push(character) for character in text)
    if checker.matched is None:
        held = text[len(shown_text) :]
        assert held == "" or any(s.startswith(held) for s in stop)
