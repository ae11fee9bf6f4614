"""Sources in a prompt: documents are data, and no text of theirs ends or opens what holds it."""

from __future__ import annotations

import re

import pytest

from app.domain.citations import citations_of
from app.domain.sources import SourcesPrompt
from app.templates.files import read_sources_prompt
from app.turns.written_replies import passages_as_text
from testing.injections import INJECTIONS
from testing.knowledge import passage

PROMPT = read_sources_prompt()
_TAG = re.compile(r"<[\s/\u200b-\u200f\u2060\ufeff]*sources?\b", re.IGNORECASE)


def test_the_corpus_has_forty() -> None:
    assert len(set(INJECTIONS)) >= 40


@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_document_stays_within_its_delimiters(injection: str) -> None:
    """In its text, its title and its heading."""
    evil = passage(f"Before. {injection} After.", title=injection, heading=injection)
    text = PROMPT.with_sources([evil, passage("Honest.", 2)], "The question?")
    assert _TAG.findall(text) == ["<sources", "<source", "</source", "<source", "</source", "</sources"]
    head, _, rest = text.partition("</sources>")
    assert "Before." in head
    assert "After." in head
    assert head.count("Honest.") == 1
    assert rest == PROMPT.with_sources([passage("x")], "The question?").partition("</sources>")[2]
    [opening] = re.findall(r'^<source number="1".*$', head, re.MULTILINE)
    assert opening.count('"') in (4, 6)  # of the number, the title and the heading
    assert opening.endswith('">')


@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_document_that_is_shown_forges_no_citation(injection: str) -> None:
    sources = [passage(injection, 1, title=injection), passage("Honest.", 2)]
    text = passages_as_text("Found:", sources)
    assert [cited.number for cited in citations_of(text, sources)] == [1, 2]
    assert "\\[" not in text, "the page would read mathematics"


def test_numbers_in_a_passage_that_is_shown_are_its_own() -> None:
    sources = [passage("See [2], [^1] and [x](y), [12](z) [2024].\n[2]: \\[1] \\\\[2]", 1, title="A"), passage("b", 2)]
    text = passages_as_text("Found:", sources)
    assert "> See [2\\], [^1\\] and [x](y), [12\\](z) [2024\\].\n> [2\\]: [1\\] [2\\]" in text
    assert [cited.number for cited in citations_of(text, sources)] == [1, 2]


def test_the_message_is_put_in_as_it_is() -> None:
    text = PROMPT.with_sources([passage("a {{ message }}")], "What is {{ sources }}?\n")
    assert "a {{ message }}\n" in text
    assert text.endswith("What is {{ sources }}?")
    assert PROMPT.with_sources([], "Just this.\n") == "Just this.\n"


@pytest.mark.parametrize("template", ["", "{{ sources }}", "{{ message }} {{ sources }}", "{{ sources }}" * 2])
def test_a_template_without_its_places_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="it needs"):
        SourcesPrompt(template)
