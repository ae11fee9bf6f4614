"""Bans bad words by their token sequences, as ``bad_words`` does in vLLM and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class TokenSequenceBan:
    """Bans the token that would complete one of the given sequences within a reply.

    Compares tokens, not text: the same word in another casing, or split into other tokens, is not recognised.
    Forbidden words (``engine.text.word_filter``) cover those cases.

    Args:
        sequences: the banned sequences, at least one token id each.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        distinct = {tuple(sequence) for sequence in sequences}
        self._single = sorted(sequence[0] for sequence in distinct if len(sequence) == 1)
        self._longer = sorted(sequence for sequence in distinct if len(sequence) > 1)

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow. ``token_ids``: prompt, then reply."""
        length = len(token_ids) - num_prompt_tokens
        completing = [
            last
            for *beginning, last in self._longer
            if len(beginning) <= length and list(token_ids[len(token_ids) - len(beginning) :]) == beginning
        ]
        return np.array(self._single + completing, dtype=np.int64)


def token_sequences(word: str, encode: Callable[[str], list[int]]) -> set[tuple[int, ...]]:
    """Encodes a word in the two ways a tokenizer writes it: at the start of a text, and after a space."""
    word = word.strip()
    return {sequence for text in (word, f" {word}") if (sequence := tuple(encode(text)))}
