"""Bans tokens so that no forbidden word ever appears in a reply's text.

The words are searched in the reply's text (``engine.text.word_matching`` defines what counts as a word), however it
is split into tokens: a token is banned when it certainly completes a word after the text so far. So a reply may write
"ass" only as the start of a longer word: no space, no punctuation and no end of the reply may follow it, and no first
byte of a character that certainly does not continue the word.

The vocabulary is folded and sorted once. The bans for a state of the text are found by looking up, for each partially
written word, the tokens that start with the rest of it; they are cached per state.
"""

from __future__ import annotations

import codecs
import sys
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.text.folded_vocabulary import FoldedVocabulary
from engine.text.vocabulary import Vocabulary
from engine.text.word_matching import HIT, WordMatcher, fold, is_word_character

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_CHARACTER_BYTES = 4  # bytes of one UTF-8 character
_MAX_MASKS = 512  # cached masks per word list; all are dropped when it is full
_MAX_WORD_LISTS = 32  # compiled lists; beyond it the least recently used is evicted


class Position(NamedTuple):
    """The matching state after a text."""

    state: int  #: the matcher's state
    partial: bytes = b""  #: trailing bytes that are not a character yet
    broken: bool = False  #: the text ends within a run of byte tokens that is not valid UTF-8


class ForbiddenWords:
    """Computes token bans for one word list and one vocabulary. Used by one thread at a time once it is built.

    Args:
        words: the forbidden words, not folded.
        vocabulary: the model's folded vocabulary.

    Raises:
        ValueError: a word has no visible character.
    """

    def __init__(self, words: Sequence[str], vocabulary: FoldedVocabulary) -> None:
        self.matcher = WordMatcher(words)
        self.start = Position(self.matcher.start)
        self._vocabulary = vocabulary
        # Tokens that contain a whole word: most of the tokens that can be banned whatever came before.
        self._holding = sorted({index for word in self.matcher.words for index in vocabulary.containing(word)})
        self._banned_alone = {
            state: self._hits(state, self._holding) for state in (self.matcher.start, self.matcher.within)
        }
        _letters()  # built here, because no decode step is waiting
        self._possible: dict[tuple[int, bytes], bool] = {}
        self._masks: dict[tuple[Position, int], NDArray[np.int64]] = {}

    def after(self, position: Position, token_id: int) -> Position:
        """Returns the position after one more token of the reply."""
        following = self._after(position, token_id)
        if following.state == HIT:  # only in text that was not masked from its start: continue after the word
            return self.start
        return following

    def is_complete(self, position: Position) -> bool:
        """Whether the text would end with a forbidden word if the reply ended here."""
        state = position.state
        if position.partial:
            state = self.matcher.step(state, _REPLACEMENT)
        return state == HIT or self.matcher.is_pending(state)

    def banned(self, position: Position, *, tokens_left: int) -> NDArray[np.int64]:
        """Returns the token ids that would certainly produce a forbidden word.

        Args:
            position: the position after the text so far.
            tokens_left: how many more tokens the reply may have after the next one. With 0, tokens with which the
                text would end with a word are banned too.

        Callers use :meth:`is_complete` for the tokens that end a reply: their text is not shown.
        """
        left = min(tokens_left, _MAX_CHARACTER_BYTES - 1)  # a larger number gives the same mask
        mask = self._masks.get((position, left))
        if mask is None:
            if len(self._masks) >= _MAX_MASKS:
                self._masks.clear()
            mask = np.array(sorted(self._find_banned(position, left)), dtype=np.int64)
            self._masks[position, left] = mask
        return mask

    # -- internals --------------------------------------------------------------------------------------

    def _find_banned(self, position: Position, left: int) -> set[int]:
        vocabulary = self._vocabulary
        last = left == 0
        banned = {token_id for token_id in vocabulary.pieces if self._is_bad(self._after(position, token_id), left)}
        if self._is_bad(position, left):  # a token without text keeps the position and uses up one token
            banned.update(vocabulary.silent)
        # If a whole token follows part of a character, that part never becomes a character.
        state = self.matcher.step(position.state, _REPLACEMENT) if position.partial else position.state
        if state == HIT:
            return banned | set(vocabulary.ids.tolist())
        alone = self.matcher.start if self.matcher.is_at_boundary(state) else self.matcher.within
        indices: set[int] = set(self._banned_alone[alone])
        if last:
            indices.update(i for i in self._holding if self._is_bad(self._run(state, i), left))
        for rest, needs_boundary in self.matcher.remainders(state):
            if not rest:  # the word is complete if a boundary follows
                banned.update(vocabulary.begin_at_boundary.tolist())
                if last:
                    indices.update(range(bisect_left(vocabulary.texts, "\0")))  # tokens of invisible characters
                continue
            for index in vocabulary.beginning_with(rest):
                text = vocabulary.texts[index]
                if len(text) == len(rest):
                    is_bad = last or not needs_boundary
                else:
                    is_bad = not needs_boundary or not is_word_character(text[len(rest)])
                if is_bad:
                    indices.add(index)
        return banned.union(vocabulary.ids[sorted(indices)].tolist())

    def _is_bad(self, position: Position, left: int) -> bool:
        if position.state == HIT or (left == 0 and self.is_complete(position)):
            return True
        if not position.partial or self.matcher.step(position.state, _REPLACEMENT) != HIT:
            return False
        # The trailing bytes must become a character, and one that continues the word.
        missing = _length(position.partial[0]) - len(position.partial)
        return missing > left or not self._can_go_on(position.state, position.partial, missing)

    def _can_go_on(self, state: int, partial: bytes, missing: int) -> bool:
        possible = self._possible.get((state, partial))
        if possible is None:
            possible = self._possible[state, partial] = any(
                (following := self.matcher.step(state, fold(character))) != HIT
                and not self.matcher.is_pending(following)
                for character in _letters_beginning_with(partial, missing)
            )
        return possible

    def _run(self, state: int, index: int) -> Position:
        return Position(self.matcher.step(state, self._vocabulary.texts[index]))

    def _hits(self, state: int, indices: Sequence[int]) -> list[int]:
        return [index for index in indices if self._run(state, index).state == HIT]

    def _after(self, position: Position, token_id: int) -> Position:
        data = self._vocabulary.data(token_id)
        if not data:
            return position
        if self._vocabulary.is_lone_byte(token_id):
            return self._after_lone_byte(position, data)
        state = position.state
        partial = position.partial
        if position.broken and partial:  # bytes of a run of byte tokens, which ends here
            state, partial = self.matcher.step(state, _REPLACEMENT), b""
        text, partial = _decoded(partial + data)
        return Position(HIT if state == HIT else self.matcher.step(state, fold(text)), partial)

    def _after_lone_byte(self, position: Position, data: bytes) -> Position:
        """Advances by a byte token; a run of these shows as characters only if the whole run is valid UTF-8.

        Text shown before a run broke stays. Later bytes show as U+FFFD, unless the detokenizer has started a new
        window meanwhile: the state covers both cases.
        """
        state, broken = position.state, position.broken
        text, partial = _decoded(position.partial + data)
        for character in text:
            broken = broken or character == _REPLACEMENT
            seen = self.matcher.step(state, fold(character))
            state = self.matcher.union(seen, self.matcher.step(state, _REPLACEMENT)) if broken else seen
            if state == HIT:
                break
        if broken and not text:
            state = self.matcher.union(state, self.matcher.step(state, _REPLACEMENT))
        return Position(state, partial, broken)


def _decoded(data: bytes) -> tuple[str, bytes]:
    """Decodes UTF-8, U+FFFD for invalid bytes; also returns the trailing bytes of an incomplete character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    return text, decoder.getstate()[0]


def _length(first: int) -> int:
    """Length in bytes of a multi-byte UTF-8 character, from its first byte."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2


@cache
def _letters() -> NDArray[np.int64]:
    """Sorted code points of all letters and digits, ``int64[n]``."""
    return np.array([code for code in range(sys.maxunicode + 1) if chr(code).isalnum()], dtype=np.int64)


def _letters_beginning_with(partial: bytes, missing: int) -> Iterator[str]:
    """Yields the letters and digits whose UTF-8 bytes start with ``partial`` and have ``missing`` more bytes."""
    low = partial[0] & (0xFF >> (_length(partial[0]) + 1))
    for byte in partial[1:]:
        low = low << 6 | byte & 0x3F
    first, end = np.searchsorted(_letters(), [low << 6 * missing, (low + 1) << 6 * missing])
    shortest = {2: 0x80, 3: 0x800, 4: 0x10000}[_length(partial[0])]  # lower code points have a shorter encoding
    return (chr(code) for code in _letters()[first:end] if code >= shortest)


class WordBan:
    """Applies forbidden words to one reply: follows its tokens and returns the bans for the next one.

    Args:
        words: the compiled words, shared among requests.
        max_tokens: length limit of the reply; the last token must not complete a word by ending the text.
        stop_token_ids: tokens that end the reply and are not shown.
    """

    def __init__(self, words: ForbiddenWords, max_tokens: int, stop_token_ids: frozenset[int]) -> None:
        self._words = words
        self._max_tokens = max_tokens
        self._stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._position = words.start
        self._num_seen = 0

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow. ``token_ids``: prompt and reply; may only grow between calls."""
        for index in range(max(self._num_seen, num_prompt_tokens), len(token_ids)):
            self._position = self._words.after(self._position, token_ids[index])
        self._num_seen = len(token_ids)
        left = self._max_tokens - (len(token_ids) - num_prompt_tokens) - 1
        banned = self._words.banned(self._position, tokens_left=max(left, 0))
        if self._stop_ids.size:
            banned = banned[~np.isin(banned, self._stop_ids)]
            if self._words.is_complete(self._position):
                banned = np.concatenate([banned, self._stop_ids])
        return banned


def read_word_list(setting: str) -> tuple[str, ...]:
    """Reads the words of ``ENGINE_FORBIDDEN_WORDS``: separated by commas, or ``@`` and a file with one word per line.

    Empty lines of the file and lines that start with ``#`` are skipped.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read as UTF-8 text.
    """
    if setting.startswith("@"):
        lines = Path(setting[1:]).expanduser().read_text(encoding="utf-8-sig").splitlines()
        return tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return tuple(word.strip() for word in setting.split(",") if word.strip())


class WordLists:
    """LRU cache of compiled word lists. Safe to use from several threads.

    Args:
        vocabulary: the model's vocabulary.
        always: words forbidden in every reply.

    Raises:
        ValueError: one of ``always`` has no visible character.
    """

    def __init__(self, vocabulary: Vocabulary, always: Sequence[str] = ()) -> None:
        self._plain_vocabulary = vocabulary
        self._vocabulary: FoldedVocabulary | None = None
        self._always = tuple(always)
        self._folding = threading.Lock()
        self._lock = threading.Lock()  # held only briefly: every request with forbidden words takes it
        self._compiled: OrderedDict[frozenset[str], ForbiddenWords] = OrderedDict()
        self.get(())

    def get(self, words: Sequence[str]) -> ForbiddenWords | None:
        """Returns the compiled list of these words and the always forbidden ones; None if there are none.

        Compiling a new list takes up to a second for a thousand words and a vocabulary of 128 000.

        Raises:
            ValueError: a word has no visible character.
        """
        key = frozenset((*self._always, *words))
        if not key:
            return None
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        made = ForbiddenWords(sorted(key), self._folded())
        with self._lock:
            kept = self._compiled.setdefault(key, made)  # another thread may have compiled it meanwhile
            while len(self._compiled) > _MAX_WORD_LISTS:
                self._compiled.popitem(last=False)
        return kept

    def _folded(self) -> FoldedVocabulary:
        with self._folding:
            if self._vocabulary is None:
                self._vocabulary = FoldedVocabulary(self._plain_vocabulary)
            return self._vocabulary
