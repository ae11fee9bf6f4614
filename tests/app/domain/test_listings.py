"""Listings: replies that name what was found, without a word of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.citations import citations_of, withhold
from app.domain.knowledge import Passage
from app.domain.listings import PASSAGES_FOUND, list_documents
from testing.injections import INJECTIONS
from testing.knowledge import passage

FIRST = passage("The vault opens with 4711.", 1, title="Vault", heading="Vault > Code")
OTHER = passage("Goods go back.", 2, title="Returns", heading="Policy")
LATER = replace(FIRST, heading="Vault > Hours", text="It opens after nine.", start=100, end=120)
FOUND = [FIRST, OTHER, LATER]


def test_a_document_is_named_once_with_the_numbers_of_its_passages() -> None:
    assert list_documents(FOUND) == f"{PASSAGES_FOUND}\n\n- **Vault** [1] [3]\n- **Returns** [2]"


@pytest.mark.parametrize("title", [*INJECTIONS, "1. Returns", "- a\n- b [2]", "[2]", "x](y) [^1]", "\ud800\0"])
def test_a_title_is_one_line_that_forges_no_citation(title: str) -> None:
    text = list_documents([replace(FIRST, title=title), OTHER])
    assert len(text.splitlines()) == 4
    assert [cited.number for cited in citations_of(text, [replace(FIRST, title=title), OTHER])] == [1, 2]
    assert "\\[" not in text, "the page would read mathematics"


def test_the_citations_of_a_listing_say_so_also_without_their_words() -> None:
    text = list_documents(FOUND)
    kept = withhold(citations_of(text, FOUND), {FIRST.document_id})
    assert [(one.number, one.listed, one.text) for one in kept] == [(1, True, ""), (2, True, OTHER.text), (3, True, "")]
    assert all(one.listed for one in citations_of(text, [one.without_words() for one in FOUND]))


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("So [1] and [2].", FOUND),
        (f"{list_documents(FOUND)} And more.", FOUND),
        (f"{PASSAGES_FOUND}\n\n**Vault > Code** [1]\n\n> The vault opens with 4711.", FOUND),  # of an earlier version
        (list_documents(FOUND), [OTHER, FIRST, LATER]),
    ],
)
def test_other_replies_are_no_listings(text: str, sources: list[Passage]) -> None:
    assert citations_of(text, sources)
    assert not any(one.listed for one in citations_of(text, sources))
