"""Replaces the marks in ChatGPT's replies that its own page renders as citations, links and cards.

``U+E200 kind U+E202 argument ... U+E201`` is a mark, such as ``cite`` with ``turn0search1``; ``U+E203 ... U+E204``
enclose the words that a citation is about. ``metadata.content_references`` may hold Markdown in place of a mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_MARK = re.compile(
    "\ue200(?:[^\ue200\ue201]*\ue201|\\w*(?:\ue202\\w*)*)"  # complete, or cut off with the reply
    "|(?:file)?cite(?:turn\\d+[a-z]+\\d+)+"  # the rest of a mark in copies without private-use characters
    "|\u3010\\d+(?::\\d+)?\u2020[^\u3010\u3011\n]*\u3011"  # format of 2023: 【4†source】
    "|[\ue200-\ue206]"
)
_REFERENCE = re.compile(r"turn\d+[a-z]+\d+")
#: Kinds whose first argument is text for users.
_WORDED = frozenset({"url", "link_title", "video"})


def replace_marks(text: str, metadata: Mapping[str, Any]) -> str:
    """Replaces each mark in ``text`` by its words, if it has any, and removes the others."""
    written = _written_out(metadata)
    pieces: list[str] = []
    at = 0
    for match in _MARK.finditer(text):
        before, at = text[at : match.start()], match.end()
        words = written.get(match[0]) or _words_of(match[0])
        # "fact [mark]." must leave no space before the full stop, and "fact [mark] more" only one.
        if not words and len(match[0]) > 1 and not text[at : at + 1].isalnum():
            before = before.rstrip(" \t")
        pieces += before, words
    return "".join([*pieces, text[at:]]) if pieces else text


def _written_out(metadata: Mapping[str, Any]) -> dict[str, str]:
    references = metadata.get("content_references")
    return {
        reference["matched_text"]: reference["alt"]
        for reference in (references if isinstance(references, list) else ())
        if isinstance(reference, dict)
        and isinstance(reference.get("matched_text"), str)
        and isinstance(reference.get("alt"), str)
    }


def _words_of(mark: str) -> str:
    kind, *arguments = mark.strip("\ue200\ue201").split("\ue202")
    if not arguments or _REFERENCE.fullmatch(arguments[0]):
        return ""
    if kind in _WORDED:
        return arguments[0]
    if kind == "entity":  # ["city", "Paris", "the capital of France"]
        try:
            described = json.loads(arguments[0])
        except (ValueError, RecursionError):
            return ""
        if isinstance(described, list) and len(described) > 1 and isinstance(described[1], str):
            return described[1]
    return ""
