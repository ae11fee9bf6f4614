"""Stop expressions: equal to ``re`` read by brute force, whatever the pieces, with nothing held back in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.text.automaton import MAX_STATES, State, closure
from engine.text.detokenizer import Detokenizer
from engine.text.stop_regex import RegexStopChecker, compile_stop
from testing.tokenizers import byte_level_tokenizer

ATOMS = ["a", "b", "A", r"\n", ".", "(?s:.)", "[ab]", "[^a]", r"\s", r"\S", r"\w", "(?i:a)", "(?i:[^b])", "^", "(?m:^)"]
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,1}", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda one: f"({one})"),
    ),
    max_leaves=8,
)


def first_match(expressions: list[str], text: str) -> tuple[str, str | None]:
    """Tries each end, and for each end each start, earliest first."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            for expression in expressions:
                rest = rf"(?=(?s:.){{{len(text) - end}}}\Z)"
                if re.compile(f"(?:{expression}){rest}").match(text, start):
                    return text[:start], expression
    return text, None


def read(checker: RegexStopChecker, text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [checker.push(text[start:end]) for start, end in pairwise(borders)]


@given(
    text=st.text(alphabet="abA\n ", max_size=12),
    expressions=st.lists(EXPRESSIONS, min_size=1, max_size=2),
    cuts=st.lists(st.integers(0, 12), max_size=5),
)
@example(text="aaab", expressions=["a+b"], cuts=[2])
@example(text="abaabb", expressions=["a(?:ba)+b", "aab"], cuts=[])
@example(text="aa", expressions=["(?:a|(?:a)*)a"], cuts=[])
def test_they_match_what_re_matches_and_never_flash(text: str, expressions: list[str], cuts: list[int]) -> None:
    if any(re.fullmatch(one, "") or re.compile(one).match("\n", 1) for one in expressions):
        with pytest.raises(ValueError, match="matches the empty text"):
            RegexStopChecker((), expressions)
        return
    checker = RegexStopChecker((), expressions)
    got = read(checker, text, cuts)
    expected, met = first_match(expressions, text)
    for so_far in accumulate(got):
        assert expected.startswith(so_far)
    assert "".join(got) + checker.release() == expected
    if len(expressions) == 1 or met is None:
        assert checker.matched == met


@given(text=st.text(alphabet="abc\n", max_size=20), size=st.integers(1, 4))
def test_no_more_is_held_back_than_could_become_a_match(text: str, size: int) -> None:
    checker = RegexStopChecker((), [f"a[ab]{{{size}}}c"])
    so_far = "".join(checker.push(character) for character in text)
    if checker.matched is None:
        held = text[len(so_far) :]
        assert held == "" or re.fullmatch(f"a[ab]{{0,{size}}}", held)
        assert not re.fullmatch(f"a[ab]{{0,{size}}}", text[len(so_far) - 1 :]) or so_far == ""


@pytest.mark.parametrize(
    ("expression", "text", "expected"),
    [
        (r"\bEND\b", "ENDING, END. x", "ENDING, "),
        (r"\bEND\b", "the END", "the "),
        (r"END\B", "END ENDS", "END "),
        (r"(?m)^---$", "--- a\n----\n---\nb", "--- a\n----\n"),
        (r"(?m)^---$", "a\n---", "a\n"),
        (r"^\s*no", "ono  no", "ono  no"),
        (r"^\s*no", "  no", ""),
        (r"\A#", "# a", ""),
        ("(?i)über", "x ÜBER", "x "),
        ("(?i)[à-ü]x", "ÉX", ""),
        ("(?i)s", "ſ", ""),
        ("(?ai)k", "\N{KELVIN SIGN}", "\N{KELVIN SIGN}"),
        (r"\d\D", "4 ٤x", ""),
        (r"(?a)\d\D", "٤x4 ", "٤x"),
        (r"(?x) a \  b  # a comment", "aa b", "a"),
        ("\N{GRINNING FACE}+", "ab\N{GRINNING FACE}", "ab"),
        ("é", "e\N{COMBINING ACUTE ACCENT}", "e\N{COMBINING ACUTE ACCENT}"),
    ],
)
def test_assertions_cases_and_classes(expression: str, text: str, expected: str) -> None:
    for size in (1, 2, len(text)):
        checker = RegexStopChecker((), [expression])
        got = read(checker, text, list(range(0, len(text), size)))
        assert "".join(got) + checker.release() == expected
        assert (checker.matched is None) == (expected == text)


def test_strings_and_expressions_stop_together_and_the_first_complete_one_wins() -> None:
    for text, kept, matched in (("abc", "", "abc"), ("xbcd", "xb", "c."), ("a12b", "a", r"\d+b"), ("aabc", "a", "abc")):
        checker = RegexStopChecker(["abc"], ["c.", r"\d+b"])
        assert (checker.push(text) + checker.release(), checker.matched) == (kept, matched)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(ab", "missing \\), unterminated subpattern at character 1"),
        ("ab[", "unterminated character set at character 3"),
        ("a**", "multiple repeat at character 3"),
        ("[z-a]", "bad character range z-a at character 2"),
        ("(?<n>a)", "unknown extension .* at character 2"),
        ("", "matches the empty text"),
        ("a?|b*", "matches the empty text"),
        (r"\b", "matches the empty text"),
        (r"(a)\1", "backreferences"),
        ("(a)?(?(1)b|c)", "conditional groups"),
        ("a(?=b)", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        ("(?>a)b", "atomic"),
        ("a++b", "possessive"),
        ("a$", "the end of the text is not known"),
        (r"a\Z", "the end of the text is not known"),
        (f"a{{{MAX_STATES + 1}}}", "too large"),
        ("(?:(?:(?:a?b){1000}){1000}){1000}", "too large"),
        (f"(?:a|{'|' * 100}){{900}}b", "more than 4096 branches"),
        ("(?:" + r"\b" * 50 + ".){900}b", "more than 4096 branches"),
        ("(" * 2000 + "a" + ")" * 2000, "nested too deep"),
    ],
)
def test_what_cannot_be_used_says_why_and_where(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_stop((), (expression,))


def test_all_expressions_together_have_one_maximum() -> None:
    half = f"a{{{MAX_STATES // 2}}}"
    compile_stop((), (half, half))
    with pytest.raises(ValueError, match="too large"):
        compile_stop((), (half, half, "a"))


@pytest.mark.parametrize("expression", ["(?:a+)+b", "(?:a|a)*b", "(?:a|aa)+(?m:$)b", "(?:(?:){1000}){1000}b"])
def test_expressions_that_explode_elsewhere_take_time_in_proportion_to_the_text(expression: str) -> None:
    """``re`` would need years for these: a text of 20,000 characters ends the test only if the work is linear."""
    checker = RegexStopChecker((), [expression])
    for _ in range(100):
        checker.push("a" * 200)
    assert checker.matched is None


def test_the_largest_automaton_reads_a_character_in_bounded_work() -> None:
    checker = RegexStopChecker((), [f".{{{MAX_STATES - 1}}}b"])
    checker.push("a" * 2 * MAX_STATES)
    assert len(checker._live) <= 2 * MAX_STATES
    assert sum(map(len, checker._held)) < MAX_STATES


def test_states_that_many_states_lead_to_are_walked_once_per_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these states leads to all that follow it: walked from each, a character would take a million steps."""
    walked: list[State] = []

    def counted(*args: Any, **kwargs: Any) -> Iterator[State]:
        for state in closure(*args, **kwargs):
            walked.append(state)
            yield state

    monkeypatch.setattr("engine.text.stop_regex.closure", counted)
    checker = RegexStopChecker((), [f"(?:.?){{{MAX_STATES - 1}}}b"])
    checker.push("a" * 50)
    assert 50 < len(walked) <= 50 * (MAX_STATES + 1)


def test_they_are_found_across_tokens_and_wait_for_min_tokens() -> None:
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("Step 1: warm up. Step 22: rest", add_special_tokens=False)
    stream = Detokenizer(tokenizer, stop_regex=[r"Step \d\d:"])
    got = [stream.push([token]) for token in ids]
    assert "".join(piece.text for piece in got) == "Step 1: warm up. "
    assert got[-1].stop == r"Step \d\d:"
    assert stream.finish().text == ""
    late = Detokenizer(tokenizer, stop_regex=[r"Step \d+:"], min_tokens=len(ids) // 2)
    assert "".join(late.push([token]).text for token in ids) == "Step 1: warm up. "


def test_text_that_is_not_searched_still_comes_before() -> None:
    tokenizer = byte_level_tokenizer()
    earlier, later = (tokenizer.encode(text, add_special_tokens=False) for text in ("a wild", "cat cat"))
    continued = Detokenizer(tokenizer, stop_regex=[r"\bcat|^c"], partial_reply=earlier)
    assert continued.push(later).text == "cat "
    waiting = Detokenizer(tokenizer, stop_regex=[r"\bcat|^c"], min_tokens=len(earlier))
    assert waiting.push(earlier + later).text == "a wildcat "
