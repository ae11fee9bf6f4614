"""Log-probabilities in OpenAI's two formats: one for chat completions, an older one for completions."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from engine import Logprob, TokenLogprobs

IMPOSSIBLE = -9999.0
"""Logprob of a token that the model can never choose, as OpenAI sends it: JSON has no infinity."""


def chat_logprobs(scores: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """Returns ``choices[].logprobs`` of a chat completion."""
    content = [{**_entry(one.token), "top_logprobs": [_entry(top) for top in one.top]} for one in scores]
    return {"content": content, "refusal": None}


def prompt_logprobs_by_id(scores: Iterable[TokenLogprobs]) -> list[dict[str, Any] | None]:
    """Returns vLLM's ``prompt_logprobs``: by token id, null for the first token, which nothing predicts."""
    return [None if one.token.logprob is None else _by_token_id(one) for one in scores]


class TextLogprobs:
    """Builds ``choices[].logprobs`` of a completion, which includes each token's offset in the text.

    Offsets, in characters, are computed from the tokens' bytes: tokens that share a character share its offset.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._at_start = True

    def append(self, scores: Iterable[TokenLogprobs], *, begins: str = "") -> dict[str, Any]:
        """Returns the fields of the next tokens.

        Args:
            scores: in order.
            begins: the text of these tokens, or its start. Some decoders drop the space before the very first word;
                a dropped space does not count in the offsets.
        """
        fields: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for one in scores:
            fields["tokens"].append(_name(one.token))
            fields["token_logprobs"].append(_finite(one.token.logprob))
            best = {_name(top): _finite(top.logprob) for top in one.top}
            if _name(one.token) not in best:
                best[_name(one.token)] = _finite(one.token.logprob)
            fields["top_logprobs"].append(best if one.token.logprob is not None else None)
            fields["text_offset"].append(self._offset)
            added = self._decoder.decode(one.token.data)
            dropped = self._at_start and added.startswith(" ") and begins != "" and not begins.startswith(" ")
            self._offset += len(added) - dropped
            self._at_start = self._at_start and not added
        return fields


def _entry(token: Logprob) -> dict[str, Any]:
    return {
        "token": _name(token),
        "logprob": _finite(token.logprob),
        "bytes": list(token.data) if token.data else None,
    }


def _by_token_id(one: TokenLogprobs) -> dict[str, Any]:
    ranked = [(top, rank) for rank, top in enumerate(one.top, start=1) if top.token_id != one.token.token_id]
    return {
        str(token.token_id): {"logprob": _finite(token.logprob), "rank": rank, "decoded_token": token.text}
        for token, rank in [(one.token, one.rank), *ranked]
    }


def _name(token: Logprob) -> str:
    """Returns a token's text; a token with part of a character as ``bytes:\\x..``, as OpenAI does."""
    try:
        token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
    return token.text


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, IMPOSSIBLE)
