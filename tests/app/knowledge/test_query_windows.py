"""What a long message is searched for with, and how the passages of its parts are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.knowledge import MAX_QUERY_CHARS
from app.knowledge import query_windows
from app.knowledge.query_windows import (
    MAX_WINDOWS,
    STATEMENT_WEIGHT,
    Window,
    best_of,
    is_short,
    question_in,
    windows_of,
)
from app.store.knowledge.concepts import MAX_QUERY_WORDS, query_words
from testing.knowledge import passage

MAIL = """Hello,

my name is Eva Brandt and I ordered a Kestrel kettle from your shop three weeks ago (order 2024-8841). It arrived last
Tuesday, but the box was crushed and the lid of the kettle is cracked. I tried to call you twice.
Can I get a new one, or do I get my money back?

Thank you very much,
Eva"""


def queries(message: str) -> list[str]:
    return [window.query for window in windows_of(message)]


@pytest.mark.parametrize(
    "message", ["", "Thanks!", "Can I return it?", "How long is the warranty? And where do I send it?", "one two three"]
)
def test_a_short_message_is_searched_for_as_it_is(message: str) -> None:
    assert windows_of(message) == [Window(message, 1.0)]


def test_a_mail_is_searched_for_by_its_sentences_its_question_first() -> None:
    first, *others = windows_of(MAIL)
    assert first.query.endswith("do I get my money back?")
    assert first.weight == 1.0
    assert {window.weight for window in others} == {STATEMENT_WEIGHT}
    assert any("Kestrel" in window.query for window in others)


def test_a_mail_asks_its_first_question_and_other_messages_as_a_whole() -> None:
    assert question_in(MAIL).endswith("Can I get a new one, or do I get my money back?")
    assert "crushed" not in question_in(MAIL)
    for whole in ("", "Thanks!", "How long is the warranty? And where do I send it?", MAIL.replace("?", ".")):
        assert question_in(whole) == whole
    assert question_in("x" * 50_000) == "x" * MAX_QUERY_CHARS


def test_a_line_break_ends_no_sentence_but_an_item_of_a_list_does() -> None:
    wrapped = queries(
        "The parcel with the new lamp has been\ndelivered to our neighbours. Nobody signed that receipt yesterday."
    )
    assert wrapped[1] == "The parcel with the new lamp has been delivered to our neighbours."
    items = queries(
        "- refund the broken garden lamp\n- change the delivery address please\n* send another printed invoice"
    )
    assert items[1:] == [
        "- refund the broken garden lamp",
        "- change the delivery address please",
        "* send another printed invoice",
    ]


def test_thanks_and_a_name_take_nothing_from_the_question_before_them() -> None:
    mail = "Our colleague has forgotten her secret password. How do I reset a user's password?\n\nThanks,\nAnna"
    assert Window("How do I reset a user's password?", 1.0) in windows_of(mail)
    assert not any("Anna" in query for query in queries(mail)[1:])


def test_a_question_that_is_joined_with_a_statement_is_a_question() -> None:
    joined = windows_of("Can you help? The green lamp of my router blinks. My neighbour's router shows steady light.")[
        1
    ]
    assert joined == Window("Can you help? The green lamp of my router blinks.", 1.0)


def test_a_message_of_many_short_sentences_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(query: str) -> list[str]:
        nonlocal read
        read += len(query)
        return query_words(query)

    monkeypatch.setattr(query_windows, "query_words", counted)
    windows_of("ok fine. " * 22_000)
    assert read < 3 * query_windows.MAX_READ_CHARS


def test_sentences_of_few_words_are_searched_for_with_their_neighbours() -> None:
    for window in windows_of(MAIL):
        assert len(query_words(window.query)) >= 4
    few = "Good evening! My parcel with the winter boots never arrived at home. Thanks! Paul"
    assert queries(few) == [few]  # one window is the whole message


def test_every_word_of_a_text_without_sentences_is_searched_for() -> None:
    words = [f"word{number}" for number in range(3 * MAX_QUERY_WORDS)]
    assert " ".join(queries(" ".join(words))).split() == words


@pytest.mark.parametrize("message", ["x" * 50_000, "a b c d e f. " * 5_000, "? " * 20_000, "\n" * 20_000, "字" * 9_000])
def test_there_is_a_limit_to_the_searches_of_any_message(message: str) -> None:
    windows = windows_of(message)
    assert 1 <= len(windows) <= MAX_WINDOWS + 1
    assert all(len(window.query) <= MAX_QUERY_CHARS for window in windows)


def test_a_passage_has_the_score_of_the_part_that_fits_best() -> None:
    one, two = passage("one", 1), passage("two", 2)
    found = [
        (Window("a", 1.0), [replace(one, score=0.4)]),
        (Window("b", 0.5), [replace(one, score=0.6), replace(two, score=0.9)]),
    ]
    assert [(best.text, best.score) for best in best_of(found, limit=5)] == [("two", 0.45), ("one", 0.4)]
    assert [best.text for best in best_of(found, limit=1)] == ["two"]


def test_which_messages_are_too_short_to_be_searched_for_alone() -> None:
    assert is_short("Thanks!")
    assert is_short("And for children?")
    assert not is_short("How long does the warranty of a kettle last?")
