"""What counts as a word in a text, and that growing text is judged as whole text is."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.word_matching import HIT, WordGuard, WordMatcher, fold


def holds(matcher: WordMatcher, text: str) -> bool:
    state = matcher.step(matcher.start, fold(text))
    return state == HIT or matcher.is_pending(state)


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("ass", ["ass", "You ASS!", "(Ass)", "_ass_", "ass's", "a\u00adss", "as\u200bs.", "ａｓｓ", "aß"]),
        ("Straße", ["STRASSE", "straße", "Strasse"]),
        ("café", ["CAFÉ", "cafe\u0301", "Cafe\u0301 au lait"]),
        ("ΣΊΣΥΦΟΣ", ["σίσυφος"]),
        ("fit", ["ﬁt"]),
        ("c++", ["C++", "in C++, and", "c++17"]),
        ("two words", ["Two Words", "two\nwords", "two\u00a0words."]),
        ("馬鹿", ["お前は馬鹿だ", "馬鹿"]),
        ("ばか", ["このばかもの"]),
        ("바보", ["바보", "너 바보!"]),
        ("мат", ["МАТ", "мат."]),
        ("42", ["42", "(42)"]),
    ],
)  # fmt: skip
def test_a_word_is_found(word: str, texts: list[str]) -> None:
    for text in texts:
        assert holds(WordMatcher([word, "never"]), text), text


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("ass", ["class", "assume", "as s", "asś", "ass1", "1ass", "a.ss", ""]),
        ("café", ["cafe", "cafés"]),
        ("two words", ["two words2", "twowords", "two  words"]),
        ("か", ["が"]),
        ("바보", ["바봅", "울보"]),
        ("мат", ["математика", "томат"]),
        ("42", ["420", "142"]),
        ("c++", ["c+", "xc++"]),
    ],
)
def test_what_only_contains_a_words_letters_is_none(word: str, texts: list[str]) -> None:
    for text in texts:
        assert not holds(WordMatcher([word]), text), text


def test_a_word_is_certain_only_when_no_letter_can_follow() -> None:
    matcher = WordMatcher(["ass", "assume x"])
    state = matcher.step(matcher.start, "ass")
    assert matcher.is_pending(state)
    assert matcher.step(state, " ") == HIT
    assert not matcher.is_pending(matcher.step(state, "ume"))
    assert matcher.is_pending(matcher.step(state, "ume x"))
    assert matcher.remainders(state) == {("", True), ("ume x", True)}


@pytest.mark.parametrize("word", ["", "  ", "\u200b", "\u0301"])
def test_a_word_needs_something_to_see(word: str) -> None:
    with pytest.raises(ValueError, match="visible"):
        WordMatcher([word])


def by_hand(words: list[str], text: str) -> bool:
    """Every place in the folded text, one after the other. For words with letters at both ends."""

    def inside(character: str) -> bool:
        return character.isalnum() or unicodedata.category(character)[0] == "M"

    text = fold(text)
    for word in map(fold, words):
        for start in range(len(text) - len(word) + 1):
            end = start + len(word)
            if (
                text[start:end] == word
                and not (start > 0 and inside(text[start - 1]))
                and not (end < len(text) and inside(text[end]))
            ):
                return True
    return False


TEXT = st.text("abcABC .-ßéE\u0301\u200b_1ｂ", max_size=14)
WORDS = st.lists(st.text("abcé1", min_size=1, max_size=4), min_size=1, max_size=4)


@given(words=WORDS, text=TEXT)
def test_growing_text_is_judged_as_by_hand(words: list[str], text: str) -> None:
    assert holds(WordMatcher(words), text) == by_hand(words, text)


@given(words=WORDS, one=TEXT, other=TEXT, rest=TEXT)
def test_a_union_is_either_text(words: list[str], one: str, other: str, rest: str) -> None:
    matcher = WordMatcher(words)
    states = [matcher.step(matcher.start, fold(text)) for text in (one, other)]
    if HIT in states:
        assert matcher.union(*states) == HIT
        return
    both = matcher.step(matcher.union(*states), fold(rest))
    each = [matcher.step(state, fold(rest)) for state in states]
    assert (both == HIT) == (HIT in each)
    if both != HIT:
        assert matcher.is_pending(both) == any(map(matcher.is_pending, each))


@given(words=WORDS, pieces=st.lists(TEXT, max_size=6))
def test_a_guarded_text_never_ends_with_a_word(words: list[str], pieces: list[str]) -> None:
    matcher = WordMatcher(words)
    guard = WordGuard(matcher)
    shown = ""
    for number in range(len(pieces)):
        shown += guard.push(pieces[number])
        text = "".join(pieces[: number + 1])
        assert text.startswith(shown)
        if by_hand(words, text) and matcher.step(matcher.start, fold(text)) == HIT:
            return  # not something that the mask would have let happen
        assert not by_hand(words, shown)
        if not by_hand(words, text):
            assert shown == text
