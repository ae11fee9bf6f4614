"""Makes llguidance's view of a model's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class _Words:
    """A vocabulary as llguidance's ``TokenizerWrapper`` reads it."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], eos: int, encode: Callable[[str], list[int]]):
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        """Returns token ids that spell exactly this text, which tokenizers do not that put a space before it."""
        data = text.encode() if isinstance(text, str) else text
        ids = self._encode(data.decode("utf-8", errors="replace"))
        is_exact = all(one < len(self.tokens) for one in ids) and b"".join(self.tokens[one] for one in ids) == data
        return ids if is_exact else self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(data):
            end = next(
                (
                    end
                    for end in range(min(len(data), start + self._longest), start, -1)
                    if data[start:end] in self._ids
                ),
                None,
            )
            if end is None:  # no token spells this byte
                return ids
            ids.append(self._ids[data[start:end]])
            start = end
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = {*self.special_token_ids}
        return {token: one for one, token in enumerate(self.tokens) if token and one not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids))


def make_ll_tokenizer(
    tokens: Sequence[bytes], special: Sequence[int], eos_token_ids: Sequence[int], encode: Callable[[str], list[int]]
) -> LLTokenizer:
    """Returns llguidance's view of a vocabulary.

    Args:
        tokens: the bytes of each token id, of special tokens their names; empty for ids that only exist in the logits.
        special: ids of special tokens, which no text matches.
        eos_token_ids: end a reply where its grammar is complete.
        encode: tokenizes a text without special tokens.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    eos = list(eos_token_ids)
    return LLTokenizer(TokenizerWrapper(_Words(tokens, special, eos[0], encode)), n_vocab=len(tokens), eos_token=eos)
