"""What is kept of text that people and models produce."""

from __future__ import annotations

import re

TITLE_CHARS = 60
MAX_TITLE_CHARS = 200

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s+")


def clean_text(text: str) -> str:
    """``text`` as every database and encoder can take it: NUL dropped, half characters replaced by U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", text.replace("\0", ""))


def title_from(message: str) -> str:
    """A title for a conversation that begins with ``message``: its first line, cut at a word's end."""
    line = next((line for line in map(one_line, message.splitlines()) if line), "New chat")
    if len(line) <= TITLE_CHARS:
        return line
    cut = line[:TITLE_CHARS]
    # A language without spaces, or one long word, is cut where it is.
    at_word = cut.rpartition(" ")[0] if line[TITLE_CHARS] != " " else cut
    return (at_word if len(at_word) > TITLE_CHARS // 2 else cut).rstrip() + "…"


def branch_title(title: str) -> str:
    """A title for a conversation that goes another way from somewhere in ``title``."""
    mark = " (branch)"
    return title if title.endswith(mark) else title[: MAX_TITLE_CHARS - len(mark)] + mark


def one_line(text: str) -> str:
    """``text`` on one line, every run of white space one space."""
    return _SPACE.sub(" ", text).strip()
