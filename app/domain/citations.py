"""Citations in a reply: the numbers in square brackets that name its sources, and the form that admits no others.

Numbers in code are no citations. Code is what CommonMark shows as code: spans in backticks, and fenced blocks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from app.domain.knowledge import WITHHELD, Citation, Passage
from app.domain.listings import is_listing

_FENCE = re.compile(r"( *)(`{3,})[^`]*")
_TICKS = re.compile("`+")
_PARTS = re.compile(r"\\.|(?P<ticks>`+)|\[(?P<number>[1-9][0-9]{0,2})\]")  # first, an escaped character
_MAX_FENCE_INDENT = 4
"""Spaces before a fenced block that the form admits: as deep as in a list's item."""


def citations_of(text: str, sources: Sequence[Passage]) -> tuple[Citation, ...]:
    """Returns the citations in a reply, by number. A number that names no source is text."""
    if not sources:
        return ()
    cited = cited_numbers(text)
    citations = as_citations(sources, listed=is_listing(text, sources))
    return tuple(citation for citation in citations if citation.number in cited)


def as_citations(sources: Sequence[Passage], *, listed: bool = False) -> tuple[Citation, ...]:
    """Returns all sources as a reply may cite them, or as a listing has found them."""
    return tuple(
        Citation(
            number=number,
            document_id=source.document_id,
            version=source.version,
            start=source.start,
            end=source.end,
            title=source.title,
            heading=source.heading,
            text=source.text,
            withheld=None if source.text else WITHHELD,
            listed=listed,
        )
        for number, source in enumerate(sources, start=1)
    )


def withhold(citations: Sequence[Citation], closed: Collection[str]) -> tuple[Citation, ...]:
    """Returns the citations without the words of the documents ``closed``. Their numbers and titles stay."""
    return tuple(citation.without_words() if citation.document_id in closed else citation for citation in citations)


def cited_numbers(text: str) -> set[int]:
    """Returns the numbers that a text cites, whether there are such sources or not."""
    cited: set[int] = set()
    _replace(text, lambda number: cited.add(number))
    return cited


def with_footnotes(text: str, labels: dict[int, str]) -> str:
    """Returns a reply with its citations as references to Markdown footnotes.

    Args:
        labels: the footnote's label by the citation's number. Other numbers stay as they are.
    """
    return _replace(text, lambda number: f"[^{labels[number]}]" if number in labels else None)


def without_citations(text: str, citations: Collection[Citation]) -> str:
    """Returns a message without its citations, whose numbers would name other things elsewhere."""
    if citations:
        numbers = {citation.number for citation in citations}
        marked = _replace(text, lambda number: "\0" if number in numbers else None)
        text = marked.replace(" \0", "").replace("\0", "")
    return text.strip()


def citation_pattern(count: int) -> str:
    r"""Returns the regular expression of the texts that cite the sources 1 to ``count``, and cite nothing else.

    Outside code, a digit (of any script) or ``^`` after an opening bracket must be part of a citation. So that code is
    what Markdown shows as code, a span of code ends on its line, and a fenced block begins and ends on a line of its
    own, whose indentation its lines share.
    """
    number = "|".join(map(str, range(1, count + 1)))
    plain = r"[^\[`\\\n]"
    escape = r"\\[^\[\n]"
    after_bracket = rf"(?:(?:{number})\]|[ \t]*(?:[^\[`\\\n \t^\p{{Nd}}]|{escape}))"
    brackets = r"(?:\\?\[)+"
    words = rf"(?:{plain}|{escape}|{brackets}{after_bracket})"
    # Brackets may be the last thing before a span of code, or on the line.
    run = rf"(?:{words}+(?:{brackets}[ \t]*)?|{brackets}[ \t]*)"
    code = r"`[^`\n]+`"
    start = rf"(?:{run})?(?:{code}{run})*"
    line = rf"{start}(?:{code})?\\?"
    # The last line may be cut off in a span of code, which then is none: it holds no other numbers either.
    last = rf"{start}(?:{code}|`(?:{run})?)?\\?"
    fences = "|".join(_fenced_block(indent) for indent in range(_MAX_FENCE_INDENT + 1))
    return rf"(?:(?:{fences}|{line})\n)*(?:{fences}|{last})"


def _fenced_block(indent: int) -> str:
    spaces = " " * indent
    body = r"[ \t]*(?:[^`\n \t][^\n]*|`{1,2}(?:[^`\n][^\n]*)?)"
    return rf"{spaces}```[^`\n]*\n(?:(?:{spaces}{body}|[ \t]*)\n)*{spaces}```[ \t]*"


def _replace(text: str, replace: Callable[[int], str | None]) -> str:
    """Replaces the citations of a text; None leaves one as it is."""
    fence: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line.strip()
        if fence is not None:
            if bare and not bare.strip("`") and len(bare) >= len(fence):
                fence = None
        elif (opened := _FENCE.fullmatch(line)) is not None:
            fence = opened[2]
        else:
            line = _replace_in_line(line, replace)
        lines.append(line)
    return "\n".join(lines)


def _replace_in_line(line: str, replace: Callable[[int], str | None]) -> str:
    ends: dict[int, list[int]] = {}  # of backticks, by how many there are: a span of code ends with as many
    for ticks in _TICKS.finditer(line):
        ends.setdefault(len(ticks[0]), []).append(ticks.end())
    replaced, done, at = "", 0, 0
    while (part := _PARTS.search(line, at)) is not None:
        at = part.end()
        if part["ticks"]:
            of_this_length = ends.get(len(part["ticks"]), [])
            following = bisect_right(of_this_length, at)
            if following < len(of_this_length):  # else they are text
                at = of_this_length[following]
        elif part["number"] and (new := replace(int(part["number"]))):
            replaced += line[done : part.start()] + new
            done = at
    return replaced + line[done:]
