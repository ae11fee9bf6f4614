"""Caches rendered prompts: the prompt of a conversation's next turn mostly starts with the previous one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine.interface import ChatMessage

MAX_CHARACTERS = 2_000_000
"""Characters of all cached prompts together; with their token ids, some tens of megabytes. The oldest are evicted."""

_Key = tuple[bytes, tuple[tuple[str, str, tuple[int, ...]], ...]]


class RenderedPrompt(NamedTuple):
    """A rendered prompt."""

    text: str  #: the text that the chat template rendered
    token_ids: list[int]  #: token ids of the whole text


class RenderedPromptCache:
    """LRU cache of rendered prompts. Not locked: its owner uses it from one thread at a time.

    Args:
        max_characters: of all prompts together; beyond it the oldest are evicted.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._kept: OrderedDict[_Key, RenderedPrompt] = OrderedDict()
        self._characters = 0

    def put(self, messages: Sequence[ChatMessage], rendered: RenderedPrompt, salt: bytes = b"") -> None:
        """Caches ``rendered`` as the prompt of ``messages``; only an equal salt finds it again."""
        key = _key(messages, salt)
        if key is None or len(rendered.text) > self._max_characters:
            return
        self._characters += len(rendered.text)
        if (before := self._kept.pop(key, None)) is not None:
            self._characters -= len(before.text)
        self._kept[key] = rendered
        while self._characters > self._max_characters:
            _, oldest = self._kept.popitem(last=False)
            self._characters -= len(oldest.text)

    def get(self, messages: Sequence[ChatMessage], salt: bytes = b"") -> RenderedPrompt | None:
        """Returns the cached prompt of these messages, or None."""
        key = _key(messages, salt)
        if key is None or (rendered := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return rendered


def _key(messages: Sequence[ChatMessage], salt: bytes) -> _Key | None:
    """Returns the cache key, or None if a message has fields that the key does not cover."""
    if any(message.keys() - {"role", "content", "token_ids", "shared"} for message in messages):
        return None
    said = [(message["role"], message["content"], tuple(message.get("token_ids", ()))) for message in messages]
    return salt, tuple(said)
