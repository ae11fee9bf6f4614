"""Citations: what counts as one, and the form that admits no others, judged byte by byte."""

from __future__ import annotations

import re
from random import Random

import pytest

from app.domain.citations import citation_pattern, citations_of, cited_numbers, with_footnotes, without_citations
from engine import StructuredOutput, StructureKind
from testing.grammars import TextJudge, bytes_compiler
from testing.knowledge import passage

SOURCES = [passage(f"Passage {number}.", number) for number in range(1, 4)]


@pytest.fixture(scope="module")
def judge() -> TextJudge:
    """Judges by the form of replies with three sources."""
    return TextJudge(bytes_compiler(), StructuredOutput(StructureKind.REGEX, citation_pattern(3)))


def numbers(text: str) -> list[int]:
    return [citation.number for citation in citations_of(text, SOURCES)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Within 30 days [1][3].\n\nNot after that [2].",
        "see `x[9]` now",
        "```python\na[99]\n```\nSo [2].",
        "- item\n  ```\n  x[9]\n\n  ```\nok [1]",
        "- [ ] to do\n- [x] done",
        "[a link](https://example.com/9)",
        "\\[x\\] and [[1]] and [`f`](x)",
        "an unclosed ` tick",
        "ends in \\",
        "\\`no code [1]",
    ],
)
def test_texts_that_the_form_admits(judge: TextJudge, text: str) -> None:
    assert judge.is_whole(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "[9",
        "[0]",
        "[11",
        "[1,",
        "[^9",
        "[ 9",
        "[\u0669",  # a digit of another script
        "[[9",
        "\\[9",
        "`a` [9",
        "\\`[9",  # no code begins there
        "``[9]``",
        "a ```[9",
        "`a`b`[9]``",
        "a `b\n",  # Markdown would look for the end of the code in the next lines
        "```\n[9]\n```\n[9",
        "  ```\n[9",  # in a list, a line without the indentation ends the block
    ],
)
def test_texts_that_it_does_not(judge: TextJudge, text: str) -> None:
    assert not judge.is_whole(text.encode()), text
    if not text.endswith(("\n", "`")):
        assert not judge.allows(text.encode()), text


def test_any_text_that_follows_the_form_cites_sources_only(judge: TextJudge) -> None:
    """Walks at random through what the form admits, drawn towards brackets, digits and code."""
    random, alphabet = Random(5), "[]`\\19 \na^3"
    seen = 0
    for _ in range(150):
        text = ""
        for _ in range(40):
            options = [text + random.choice(alphabet) for _ in range(6)]
            text = next((one for one in options if judge.allows(one.encode())), text)
        if judge.is_whole(text.encode()):
            cited = cited_numbers(text)
            assert cited <= {1, 2, 3}, text
            seen += len(cited)
    assert seen > 20


def test_citations_are_the_numbers_of_sources_outside_code() -> None:
    text = "One [3], `[1]`, [9] and\n```\n[2]\n```\n\\[1] [3]"
    [cited] = citations_of(text, SOURCES)
    assert (cited.number, cited.document_id, cited.start, cited.text) == (3, "document-3", 30, "Passage 3.")
    assert citations_of(text, ()) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("``a ` [1] `` [2]", [2]),
        ("````\n```\n[1]\n````\n[2]", [2]),
        ("```\n[1]", []),
        ("` [1]", [1]),
        ("[1](x) [01] [1 ] [2]", [1, 2]),
    ],
)
def test_code_of_any_form_holds_no_citations(text: str, expected: list[int]) -> None:
    assert numbers(text) == expected


def test_footnotes_take_the_place_of_citations() -> None:
    assert with_footnotes("a [1] `[1]` [2] [9]", {1: "4", 2: "5"}) == "a [^4] `[1]` [^5] [9]"


def test_a_message_elsewhere_has_none_of_its_citations_and_all_other_numbers() -> None:
    cited = citations_of("Pay [1] now [2].", [passage("a"), passage("b")])
    assert without_citations(" Pay [1] now [2], `[1]` and [3].\n", cited) == "Pay now, `[1]` and [3]."
    assert without_citations("[1] Pay [2].", ()) == "[1] Pay [2]."


def test_spans_of_code_end_with_as_many_backticks_as_they_begin_with() -> None:
    """Compared with an expression that says so, and that took 1.5 s for a visitor's ever longer runs of backticks."""
    span = r"(?P<ticks>`+)(?:(?!`).*?(?<!`)(?P=ticks)(?!`))?"
    parts = re.compile(rf"\\.|{span}|\[(?P<number>[1-9])\]")
    random, pieces = Random(28), ["`", "``", "[1]", "\\", "a", " [2]", "[", "`[3]`"]
    found = 0
    for _ in range(3000):
        line = "a" + "".join(random.choices(pieces, k=random.randint(1, 14)))
        expected = {int(part["number"]) for part in parts.finditer(line) if part["number"]}
        assert cited_numbers(line) == expected, line
        found += bool(expected)
    assert 500 < found < 2900
