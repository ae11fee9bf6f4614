"""Questions that were marked as answered by a passage, for ``deskmate kb eval``. Plain data; no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

_SENTENCES = re.compile(r"(?<=[.!?。！？])\s+|\n+")
MAX_ANSWER_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedQuestion:
    id: str
    collection: str
    question: str
    answer: str  #: a phrase of the passage that answers it
    document: str  #: name of the passage's document
    created_at: datetime


def answer_phrase(passage: str, question_words: Iterable[str], stems: Iterable[Iterable[str]]) -> str:
    """Returns the sentence of a passage that shares most words with the question; of several, the first.

    Args:
        stems: the words of each of :func:`sentences_of` the passage, in the form of ``question_words``.
    """
    wanted = set(question_words)
    scored = [
        (len(wanted & set(words)), sentence) for sentence, words in zip(sentences_of(passage), stems, strict=True)
    ]
    return max(scored, key=lambda one: one[0])[1] if scored else ""


def sentences_of(passage: str) -> list[str]:
    """The sentences and lines of a passage that have letters, cut to a length that a search's chunk holds whole."""
    found = [part.strip()[:MAX_ANSWER_CHARS].strip() for part in _SENTENCES.split(passage)]
    return [part for part in found if any(character.isalnum() for character in part)]


def as_jsonl(questions: Iterable[MarkedQuestion]) -> str:
    """The file that ``deskmate kb eval`` reads: a line for each question, with all phrases that answer it."""
    lines: dict[str, dict[str, object]] = {}
    answers: dict[str, list[str]] = {}
    documents: dict[str, list[str]] = {}
    for one in questions:
        lines.setdefault(one.question, {"question": one.question})
        answers.setdefault(one.question, []).append(one.answer)
        documents.setdefault(one.question, []).append(one.document)
    return "".join(
        json.dumps(
            {
                **line,
                "answers": list(dict.fromkeys(answers[question])),
                "document": list(dict.fromkeys(documents[question])),
            },
            ensure_ascii=False,
        )
        + "\n"
        for question, line in lines.items()
    )
