"""A file of questions with the phrases that answer them, by which a search is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.errors import StartupError

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"[`*|]")


class QuestionFileError(StartupError):
    """A file of questions that cannot be used; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and what answers it."""

    text: str
    answers: tuple[str, ...]  #: phrases, any of which a passage that answers the question contains
    before: tuple[tuple[str, str], ...] = ()  #: of a follow-up: the messages and replies before it, oldest first
    documents: tuple[str, ...] = ()  #: where the phrases stand; for readers of the file, no search looks at it
    half: str = ""  #: ``tuning`` may be looked at while a search is improved, ``held-out`` only judges it
    language: str = "en"

    def is_answered_by(self, passage: str) -> bool:
        """Whether ``passage`` contains one of the answers: markup, case and line breaks do not matter."""
        words = plain_text(passage)
        return any(plain_text(answer) in words for answer in self.answers)


class _Line(BaseModel):
    """A line of the file. Fields that are not named here are notes of the author's."""

    model_config = ConfigDict(extra="ignore")

    question: str = Field(min_length=1, max_length=2_000)
    answers: list[str] = Field(min_length=1, max_length=100)
    before: list[tuple[str, str]] = Field(default_factory=list, max_length=100)
    document: str | list[str] = Field(default_factory=list)
    half: str = ""
    language: str = "en"


def plain_text(text: str) -> str:
    """Returns ``text`` in lower case without Markdown's links, code, emphasis, cells and line breaks."""
    return " ".join(_MARKUP.sub("", _LINK.sub(r"\1", text)).split()).casefold()


def read_questions(content: str, *, half: str | None = None) -> list[Question]:
    """Reads JSON Lines such as ``{"question": "...", "answers": ["a phrase"], "half": "tuning"}``.

    Args:
        half: keeps only the questions of this half.

    Raises:
        QuestionFileError: a line is no question, or no question is left.
    """
    questions = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            questions.append(_question(line, number))
    chosen = [question for question in questions if half is None or question.half == half]
    if not chosen:
        halves = sorted({question.half for question in questions if question.half})
        found = f'no question of the half "{half}"; there are: {", ".join(halves) or "none"}' if half else "no question"
        raise QuestionFileError(f"The file has {found}.")
    return chosen


def _question(line: str, number: int) -> Question:
    try:
        read = _Line.model_validate(json.loads(line))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise QuestionFileError(f"Line {number}: {place or 'the line'}: {problem['msg']}. {_EXPECTED}") from error
    except ValueError as error:
        raise QuestionFileError(f"Line {number} is not JSON: {error}. {_EXPECTED}") from error
    empty = [answer for answer in read.answers if not plain_text(answer)]
    if empty:
        raise QuestionFileError(f"Line {number}: an answer is empty, which every passage would contain. {_EXPECTED}")
    documents: Sequence[str] = [read.document] if isinstance(read.document, str) else read.document
    return Question(
        text=read.question,
        answers=tuple(read.answers),
        before=tuple(read.before),
        documents=tuple(documents),
        half=read.half,
        language=read.language,
    )


_EXPECTED = 'Each line is an object such as {"question": "How do I start?", "answers": ["make run"]}.'
