"""Indexes a vocabulary's texts, folded for comparison and sorted, so that tokens are found by prefix."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from engine.text.vocabulary import Vocabulary
from engine.text.word_matching import fold, is_word_character


class FoldedVocabulary:
    """The vocabulary's texts, folded as forbidden words are. Built once per model: a few µs for each token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        texts: list[tuple[str, int]] = []
        self.pieces: list[int] = []  #: tokens that hold part of a character, or whose text depends on their neighbours
        self.silent: list[int] = []  #: tokens without any text
        for token_id in range(vocabulary.size):
            data = vocabulary.data(token_id)
            if not data:
                self.silent.append(token_id)
            elif vocabulary.is_lone_byte(token_id):
                self.pieces.append(token_id)
            else:
                try:
                    texts.append((fold(data.decode()), token_id))
                except UnicodeDecodeError:
                    self.pieces.append(token_id)
        texts.sort()
        self.texts = [text for text, _ in texts]  #: folded texts of whole tokens, sorted
        self.ids = np.array([token_id for _, token_id in texts], dtype=np.int64)  #: token ids of ``texts``
        self.begin_at_boundary = np.array(
            [token_id for text, token_id in texts if text and not is_word_character(text[0])], dtype=np.int64
        )
        self._joined = "\n".join(self.texts)  # folded text has no newline
        self._starts = np.cumsum([0] + [len(text) + 1 for text in self.texts])

    def data(self, token_id: int) -> bytes:
        return self._vocabulary.data(token_id)

    def is_lone_byte(self, token_id: int) -> bool:
        return self._vocabulary.is_lone_byte(token_id)

    def beginning_with(self, text: str) -> range:
        """Returns the indices into :attr:`texts` of texts that start with ``text``."""
        return range(bisect_left(self.texts, text), bisect_left(self.texts, text + "\U0010ffff"))

    def containing(self, text: str) -> Iterator[int]:
        """Yields the indices into :attr:`texts` of texts that contain ``text``."""
        at = self._joined.find(text)
        while at >= 0:
            index = int(np.searchsorted(self._starts, at, side="right")) - 1
            yield index
            at = self._joined.find(text, int(self._starts[index + 1]))
