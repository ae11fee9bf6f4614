"""Finds out from a chat template in which format its model writes replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.text.reply_formats.catalogue import CALLS, FINGERPRINTS, HARMONY_NAME, REASONING
from engine.text.reply_formats.reply_format import ReplyFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def detect_reply_format(template: str) -> ReplyFormat:
    """Returns the format whose tags the chat template contains.

    Args:
        template: the text of the template, empty if there is none.
    """
    if "<|channel|>" in template and "<|message|>" in template:
        return ReplyFormat(has_channels=True)
    reasoning = next((tags for tags in REASONING.values() if tags.close in template or tags.open in template), None)
    calls = next((name for name, markers in FINGERPRINTS if all(marker in template for marker in markers)), None)
    return ReplyFormat(reasoning=reasoning, calls=None if calls is None else CALLS[calls])


def named_reply_format(setting: str) -> ReplyFormat:
    """Returns the format that a setting names: ``none``, or names of the catalogue joined by ``+``.

    Raises:
        ValueError: a name is not known, or two name the same part.
    """
    if setting == HARMONY_NAME:
        return ReplyFormat(has_channels=True)
    reasoning = calls = None
    for name in setting.split("+") if setting != "none" else ():
        if name in REASONING and reasoning is None:
            reasoning = REASONING[name]
        elif name in CALLS and calls is None:
            calls = CALLS[name]
        else:
            known = ", ".join([*REASONING, *CALLS])
            raise ValueError(
                f"{setting!r} is no reply format: use none, {HARMONY_NAME}, or one or two of {known}, joined by +"
            )
    return ReplyFormat(reasoning=reasoning, calls=calls)


def special_tokens_of(reply_format: ReplyFormat, tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Returns the names of the special tokens that the format is written with, by id. Detokenizers leave out others."""
    texts = "\n".join([*reply_format.markers, *(("[CALL_ID]",) if "[ARGS]" in reply_format.markers else ())])
    return {
        token_id: token.content
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special and token.content in texts
    }


def special_token_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> dict[str, int]:
    """Returns the ids of all special tokens that the model knows, by their names."""
    return {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special and token.content and token_id < vocab_size
    }
