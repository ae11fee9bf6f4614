"""Cleans texts of users and models, and makes titles from them."""

from __future__ import annotations

import re

from app.domain.markdown_marks import strip_marks
from app.domain.pasted_mail import find_subject, is_greeting
from app.domain.words import fold_words

TITLE_CHARS = 60
MAX_TITLE_CHARS = 200
MAX_FIRST_LINE_CHARS = 1000  # of each line considered for a title
MAX_TITLE_WORDS = 10

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, and those that turn the direction of what follows: they would act on a terminal or a page.
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SPACE = re.compile(r"\s+")
_TITLE_MARK = re.compile(r"^[\s#*_\"'“]*title\s*:", re.IGNORECASE)


def clean_text(text: str) -> str:
    """``text`` in a form that every database and encoder accepts: no NUL, lone surrogates replaced by U+FFFD."""
    text = text.replace("\0", "")
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def title_from(message: str) -> str:
    """A title for a conversation that begins with ``message``, cut at a word's end.

    It is the subject of a pasted mail, or the first line without marks. A line that only greets is taken where there is
    no other.
    """
    line = _title_line(message)
    if len(line) <= TITLE_CHARS:
        return line
    cut = line[:TITLE_CHARS]
    # A text without spaces, or one long word, is cut at the limit.
    at_word = cut.rpartition(" ")[0] if line[TITLE_CHARS] != " " else cut
    return (at_word if len(at_word) > TITLE_CHARS // 2 else cut).rstrip() + "…"


def _title_line(message: str) -> str:
    greeting = ""
    for line in (find_subject(message) or message).splitlines():
        shown = one_line(strip_marks(line[:MAX_FIRST_LINE_CHARS]))
        if shown and not is_greeting(shown):
            return shown
        greeting = greeting or shown
    return greeting or "New chat"


def as_title(answer: str, about: str) -> str | None:
    """Extracts a title from the model's answer to a title request; None if the answer is not a title.

    Small models answer the question instead, or talk about themselves. A title is short, not a sentence, and shares a
    word with its subject, ``about``.
    """
    lines = answer.strip().splitlines()
    if len(lines) != 1:
        return None
    title = one_line(strip_marks(clean_text(_TITLE_MARK.sub("", lines[0])))).strip("\"'“”„«»‘’*_#` ")
    if not title or len(title) > TITLE_CHARS or title[-1] in ".!?:;。！？：；…":
        return None
    if len(title.split()) > MAX_TITLE_WORDS or is_greeting(title):
        return None
    return None if set(fold_words(about)).isdisjoint(fold_words(title)) else title


def branch_title(title: str) -> str:
    """The title of a branch of the conversation ``title``."""
    mark = " (branch)"
    return title if title.endswith(mark) else title[: MAX_TITLE_CHARS - len(mark)] + mark


def one_line(text: str) -> str:
    """``text`` on one line, with each run of white space replaced by a single space."""
    return _SPACE.sub(" ", text).strip()


def shown_name(name: str) -> str:
    """A file's name as one line that can be shown."""
    return one_line(_UNSHOWN.sub(" ", clean_text(name)))
