"""The questions about the project's own documents: their answers stand where the file says, and both halves are even.

The author of the questions had read the documents and not the search. The answers are complete for ``PAGES``: a reader
who had seen neither the search nor what it finds read them twice from beginning to end. Each question has a phrase of
every passage that by itself states the answer: the fact, the command, or the setting and what it does. A passage that
only names the subject, says that there is such a thing, or points to another page has none. For the pages that came
later, readers judged the first six passages of every search by words, by meaning and merged, in random order and
without knowing which search had found them or how high (pooling, as TREC does it): ten phrases were added.

A question belongs to the half that ``random.Random(28)`` gave it. Whoever changes the search looks at the half "tuning"
only: "held-out" says what the search is worth. A phrase is added for what its passage says, never because a search
found the passage.

``questions-paraphrased.jsonl`` is harder: 80 questions by another reader, who was asked to avoid the documents' words
and wrote down alone, without pooling, which passages answer. All of them are held out.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.knowledge.questions import plain_text

ROOT = Path(__file__).parents[3]
QUESTIONS = Path(__file__).with_name("questions.jsonl")
PARAPHRASED = QUESTIONS.with_name("questions-paraphrased.jsonl")
#: what the questions are about, and where their answers were looked for
PAGES = [ROOT / f"{name}.md" for name in ("README", "SECURITY", "CONTRIBUTING", "CHANGELOG")]
PAGES += sorted(ROOT.glob("docs/*.md"))


def rows(file: Path = QUESTIONS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def documents_of(row: dict[str, Any]) -> list[str]:
    named = row["document"]
    return [named] if isinstance(named, str) else named


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {page.relative_to(ROOT).as_posix(): plain_text(page.read_text(encoding="utf-8")) for page in PAGES}


@pytest.mark.parametrize("file", [QUESTIONS, PARAPHRASED], ids=lambda file: file.stem)
def test_every_answer_stands_in_its_document(texts: dict[str, str], file: Path) -> None:
    for row in rows(file):
        documents = documents_of(row)
        for answer in row["answers"]:
            assert any(plain_text(answer) in texts[document] for document in documents), (
                f'"{answer}" answers "{row["question"]}" and is no longer in {", ".join(documents)}: '
                f"give the phrase that answers it now, in {file.relative_to(ROOT)}"
            )


@pytest.mark.parametrize("file", [QUESTIONS, PARAPHRASED], ids=lambda file: file.stem)
def test_every_document_that_is_named_has_an_answer(texts: dict[str, str], file: Path) -> None:
    for row in rows(file):
        for document in documents_of(row):
            assert any(plain_text(answer) in texts[document] for answer in row["answers"]), (
                f'{document} no longer answers "{row["question"]}": take it out of {file.relative_to(ROOT)}'
            )


def test_every_document_with_an_answer_is_named(texts: dict[str, str]) -> None:
    """A search is given credit for a phrase in any page: each page that has one was read, and answers."""
    for row in rows():
        named = documents_of(row)
        for answer in row["answers"]:
            others = [page for page, text in texts.items() if page not in named and plain_text(answer) in text]
            assert others == [], (
                f'"{answer}" is also in {", ".join(others)}: if it answers "{row["question"]}" there, name the page in '
                f"{QUESTIONS.relative_to(ROOT)}, else give a longer phrase"
            )


def test_an_answer_is_a_phrase_that_a_passage_can_hold_by_chance_only() -> None:
    """A phrase of a word or two would count passages that only mention the subject."""
    for row in rows():
        assert row["answers"]
        for answer in row["answers"]:
            assert 10 <= len(plain_text(answer)) <= 120, answer


def test_the_halves_are_even_and_no_question_is_asked_twice() -> None:
    english = [row for row in rows() if row.get("language", "en") == "en"]
    assert Counter(row["half"] for row in english) == {"tuning": 75, "held-out": 75}
    assert {row["half"] for row in rows()} == {"tuning", "held-out"}
    asked = Counter(plain_text(row["question"]) for row in rows())
    assert not [question for question, times in asked.items() if times > 1]
