"""Listings: replies that name the documents of a search's passages, where the model is too small to answer from them.

The passages themselves are no part of the text. They are the reply's citations, which follow the user's rights.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.knowledge import Passage
from app.domain.markdown_marks import escape_marks
from app.domain.text import clean_text, one_line

PASSAGES_FOUND = "This model is too small to answer from documents. These passages match your message best:"


def list_documents(sources: Sequence[Passage]) -> str:
    """Returns the listing in Markdown: a line for each document, with the numbers of its passages."""
    titles: dict[str, str] = {}
    numbers: dict[str, list[str]] = {}
    for number, source in enumerate(sources, start=1):
        titles.setdefault(source.document_id, escape_marks(one_line(source.title)))
        numbers.setdefault(source.document_id, []).append(f"[{number}]")
    # In bold, since a title such as "1. Returns" would begin another list.
    lines = [f"- **{title}** {' '.join(numbers[document])}" for document, title in titles.items()]
    return clean_text("\n".join([f"{PASSAGES_FOUND}\n", *lines]))


def is_listing(text: str, sources: Sequence[Passage]) -> bool:
    """Whether a reply is the listing of its sources.

    The text says so itself, wherever it is copied, exported or imported to. Edited, it is a reply like others.
    """
    return text.startswith(PASSAGES_FOUND) and text == list_documents(sources)
