"""Maps each token to the bytes it adds to a text; bytes, because a token may hold half a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Bytes and names of a tokenizer's tokens. Safe to use from several threads.

    The bytes are those that a token adds in the middle of a text: a tokenizer that drops the space before the first
    word still has it here. Special tokens, and ids that only exist in the logits, add nothing.

    Exact for byte-level decoders and for SentencePiece's, with byte fallback or without: there a token's bytes do
    not depend on the tokens around it. For other decoders it is the text that the token adds after a letter.

    Args:
        tokenizer: the model's tokenizer.
        size: number of token ids; may exceed the tokenizer's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        kinds = set(_decoder_kinds(self._backend))
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_fallback = "ByteFallback" in kinds or self._backend is None
        self._special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special} | set(
            tokenizer.all_special_ids
        )
        self._bytes_by_id: dict[int, bytes] = {}

    def data(self, token_id: int) -> bytes:
        """Returns the bytes that a token adds to a text."""
        data = self._bytes_by_id.get(token_id)
        if data is None:
            data = self._bytes_by_id[token_id] = self._data(token_id)
        return data

    def name(self, token_id: int) -> str:
        """Returns a token's text for display, with U+FFFD for bytes that are no character; a special token's name."""
        data = self.data(token_id)
        return data.decode("utf-8", errors="replace") if data else self._piece(token_id)

    def is_lone_byte(self, token_id: int) -> bool:
        """Whether this is a byte-fallback token: a run of these is decoded only as a whole."""
        return self._has_byte_fallback and _BYTE_PIECE.fullmatch(self._piece(token_id)) is not None

    def is_special(self, token_id: int) -> bool:
        """Whether this is a special token, which no text spells."""
        return token_id in self._special

    def spelling(self, token_id: int) -> bytes:
        """Returns a token's bytes; of a special token its name."""
        return self._piece(token_id).encode() if token_id in self._special else self.data(token_id)

    def _piece(self, token_id: int) -> str:
        if self._backend is not None:
            return self._backend.id_to_token(token_id) or ""
        if token_id >= len(self._tokenizer):
            return ""
        return str(self._tokenizer.convert_ids_to_tokens(token_id) or "")

    def _data(self, token_id: int) -> bytes:
        piece = self._piece(token_id)
        if not piece or token_id in self._special:
            return b""
        if self._is_byte_level:  # as the decoder does: a piece with any character outside the table is plain text
            alphabet = _byte_of()
            return (
                bytes(alphabet[character] for character in piece)
                if all(character in alphabet for character in piece)
                else piece.encode("utf-8")
            )
        if self._has_byte_fallback and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        ids, before = self._anchor
        return self._decode([*ids, token_id]).removeprefix(before).encode("utf-8", errors="replace")

    def _decode(self, token_ids: list[int]) -> str:
        if self._backend is not None:
            return str(self._backend.decode(token_ids, skip_special_tokens=True))
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token to decode before others, and its text: the first one that is a single letter or digit.

        Decoders may drop a space at the very start of a text. A vocabulary without such a token has no such decoder.
        """
        for token_id in range(min(self.size, len(self._tokenizer))):
            if token_id not in self._special and len(self._piece(token_id)) == 1:
                text = self._decode([token_id])
                if len(text) == 1 and text.isalnum():
                    return [token_id], text
        return [], ""


def _decoder_kinds(backend: Any) -> Iterator[str]:
    """Yields the types of all decoders in a Rust tokenizer's chain."""
    if backend is None or backend.decoder is None:
        return
    waiting = [json.loads(backend.decoder.__getstate__())]
    while waiting:
        decoder = waiting.pop()
        yield str(decoder["type"])
        waiting += decoder.get("decoders", ())


@cache
def _byte_of() -> dict[str, int]:
    """Maps the characters of byte-level vocabularies to their bytes: GPT-2's byte-to-unicode table, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}
