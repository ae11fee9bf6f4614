"""Counts, estimates and tokenizes texts and conversations for a remote model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from engine.chat_options import ChatOptions, Tool
from engine.interface import ChatMessage
from engine.remote.chat_fields import chat_fields
from engine.remote.dialects import TokenizeApi
from engine.remote.upstreams import Upstream

BYTES_PER_TOKEN = 4.0
"""Initial estimate, until a server reports usage. Typical of texts in European languages, at the low end."""
TOKENS_PER_MESSAGE = 5
"""Tokens that chat templates add to a message, approximately."""
COUNT_TIMEOUT_SECONDS = 10.0
"""Timeout of a request to a server's tokenizer API; the server then counts as unable to tokenize."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    tokens: int
    is_exact: bool  #: counted by the server; else estimated from the text's length


class TokenEstimator:
    """Estimates token counts from the length of a text. Learns from the usage that servers report."""

    def __init__(self) -> None:
        self._bytes_per_token = BYTES_PER_TOKEN

    def estimate(self, text: Sequence[ChatMessage] | str | Sequence[int], tools: Sequence[Tool] = ()) -> int:
        """Returns the estimated tokens of a conversation with its tools or of a text; the exact number of token ids."""
        if isinstance(text, str):
            return max(1, math.ceil(_size(text) / self._bytes_per_token))
        if text and isinstance(text[0], int):
            return len(text)
        messages: Sequence[Any] = text
        size = _conversation_size(messages, tools)
        return math.ceil(size / self._bytes_per_token) + TOKENS_PER_MESSAGE * (len(messages) + 1)

    def learn(self, messages: Sequence[ChatMessage], tokens: int, tools: Sequence[Tool] = ()) -> None:
        """Adjusts the estimate after a server has reported ``tokens`` prompt tokens for ``messages``."""
        size = _conversation_size(messages, tools)
        text_tokens = tokens - TOKENS_PER_MESSAGE * (len(messages) + 1)
        if size >= 200 and text_tokens > 0:  # in shorter ones the template dominates
            seen = min(8.0, max(0.5, size / text_tokens))
            self._bytes_per_token += 0.3 * (seen - self._bytes_per_token)


def _conversation_size(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> int:
    """Returns the bytes that a template renders, roughly. Thinking is left out, as most templates do."""
    texts = [message["content"] for message in messages]
    texts += [call.name + call.arguments for message in messages for call in message.get("tool_calls", ())]
    texts += [tool.name + tool.description + json.dumps(tool.parameters, default=dict) for tool in tools]
    return sum(map(_size, texts))


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


async def count_tokens(
    client: httpx.AsyncClient, upstream: Upstream, messages: Sequence[ChatMessage], options: ChatOptions
) -> int | None:
    """Returns the server's count of a conversation's tokens; None where it cannot count, or does not answer.

    Raises:
        httpx.ConnectError, httpx.ConnectTimeout: the server cannot be reached.
    """
    served = upstream.served
    if served is None or served.dialect.tokenize_api is TokenizeApi.NONE:
        return None
    conversation = chat_fields(messages, options, served.dialect)
    if served.dialect.tokenize_api is not TokenizeApi.LLAMA_CPP:
        below = upstream.url if served.dialect.tokenize_api is TokenizeApi.DESKMATE else upstream.root
        asked = {"add_generation_prompt": True, **conversation, "model": served.model}
        payload = await _post(client, f"{below}/tokenize", asked)
        count = payload.get("count")
        return count if isinstance(count, int) else None
    tokens = await tokenized(client, upstream, messages, options=options)
    return None if tokens is None else len(tokens)


async def tokenized(
    client: httpx.AsyncClient,
    upstream: Upstream,
    prompt: str | Sequence[ChatMessage],
    *,
    add_special_tokens: bool = True,
    options: ChatOptions | None = None,
) -> tuple[int, ...] | None:
    """Returns the token ids of a text or a conversation; None where the server cannot tokenize, or does not answer.

    Raises:
        httpx.ConnectError, httpx.ConnectTimeout: the server cannot be reached.
    """
    served = upstream.served
    if served is None or served.dialect.tokenize_api is TokenizeApi.NONE:
        return None
    asked: dict[str, Any]
    if served.dialect.tokenize_api is not TokenizeApi.LLAMA_CPP:
        if isinstance(prompt, str):
            asked = {"prompt": prompt, "add_special_tokens": add_special_tokens}
        else:
            asked = {"add_generation_prompt": True, **chat_fields(prompt, options or ChatOptions(), served.dialect)}
        asked["model"] = served.model
    else:
        text: object = prompt
        if not isinstance(prompt, str):
            conversation = chat_fields(prompt, options or ChatOptions(), served.dialect)
            text = (await _post(client, f"{upstream.root}/apply-template", conversation)).get("prompt")
        asked = {"content": text, "add_special": add_special_tokens, "parse_special": True}
    tokens = (await _post(client, f"{upstream.root}/tokenize", asked)).get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        return None
    return tuple(tokens)


async def detokenized(client: httpx.AsyncClient, upstream: Upstream, token_ids: Sequence[int]) -> str | None:
    """Returns the text of token ids. None and errors as :func:`tokenized`."""
    served = upstream.served
    if served is None or served.dialect.tokenize_api is TokenizeApi.NONE:
        return None
    is_llama = served.dialect.tokenize_api is TokenizeApi.LLAMA_CPP
    asked = {"tokens": list(token_ids)} | ({} if is_llama else {"model": served.model})
    text = (await _post(client, f"{upstream.root}/detokenize", asked)).get("content" if is_llama else "prompt")
    return text if isinstance(text, str) else None


async def _post(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON object that the server answers; empty where it does not answer with one."""
    try:
        answer = await client.post(url, json=body, timeout=COUNT_TIMEOUT_SECONDS)
        payload = answer.json() if answer.status_code == 200 else None
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise
    except (httpx.HTTPError, OSError, ValueError):
        return {}
    return payload if isinstance(payload, dict) else {}
