"""Conversations that were rendered lately: the prompt of each one's next turn mostly begins with what it was then."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine.interface import ChatMessage

MAX_CHARACTERS = 2_000_000
"""Of all that is kept; with the token ids that is some tens of megabytes."""

_Key = tuple[bytes, tuple[tuple[str, str, tuple[int, ...]], ...]]


class RenderedPrompt(NamedTuple):
    """A prompt."""

    text: str  #: what the chat template made of the messages
    token_ids: list[int]  #: of all of it


class RenderedPromptCache:
    """The latest of them. Not locked: its owner uses it from one thread at a time.

    Args:
        max_characters: the oldest are forgotten where there would be more.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._kept: OrderedDict[_Key, RenderedPrompt] = OrderedDict()
        self._characters = 0

    def put(self, messages: Sequence[ChatMessage], rendered: RenderedPrompt, salt: bytes = b"") -> None:
        """``rendered`` is what ``messages`` became; only found again with an equal salt."""
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
        """What these messages became, if that is still known."""
        key = _key(messages, salt)
        if key is None or (rendered := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return rendered


def _key(messages: Sequence[ChatMessage], salt: bytes) -> _Key | None:
    """None where there is more to a message than what is compared."""
    if any(message.keys() - {"role", "content", "token_ids", "shared"} for message in messages):
        return None
    said = [(message["role"], message["content"], tuple(message.get("token_ids", ()))) for message in messages]
    return salt, tuple(said)
