"""Which tokens of a GGUF file's vocabulary are special, and which end a reply."""

from __future__ import annotations

import re
from typing import Final

from engine.model.gguf.model_file import GgufModel

CONTROL, USER_DEFINED, UNKNOWN, BYTE = 3, 4, 2, 6
"""Kinds of tokens in ``tokenizer.ggml.token_type``; a normal token's is 1."""

_KEYS: Final = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_END_KEYS = ("eos", "eot", "eom")
_END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts of tokens that end a reply in any model that has them, as llama.cpp's ``special_eog_ids`` has it: many files
name only one end token, and the chat template writes another."""


def vocabulary(model: GgufModel) -> list[str]:
    """Returns the texts of all tokens; an empty list if the file has no vocabulary."""
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []


def special_tokens(model: GgufModel) -> dict[str, int]:
    """Returns the ids of the tokens ``bos``, ``eos``, ``unk`` and ``pad``, of those that the file names."""
    found = {name: token_id(model, key) for name, key in _KEYS.items()}
    return {name: token for name, token in found.items() if token is not None}


def token_id(model: GgufModel, key: str) -> int | None:
    """Returns a special token's id; None if the file does not name it, or names one that does not exist."""
    value = model.metadata.get(f"tokenizer.ggml.{key}_token_id")
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(vocabulary(model))
    return value if is_id else None


def end_tokens(model: GgufModel) -> set[int]:
    """Returns the ids of the tokens that end a reply."""
    texts = vocabulary(model)
    ends = {token for key in _END_KEYS if (token := token_id(model, key)) is not None}
    ends |= {index for index, text in enumerate(texts) if text in _END_TEXTS}
    found = {texts[index]: index for index in ends}
    if "<|return|>" in found and "<|call|>" in found:
        ends.discard(found.get("<|end|>", -1))  # in this vocabulary it ends a message, not the reply
    return ends


def is_unused(text: str) -> bool:
    """Whether a control token's text says that nothing uses it."""
    return re.search("unused|reserved", text) is not None
