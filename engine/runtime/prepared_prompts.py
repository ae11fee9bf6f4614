"""Caches the rendered prompts of chats that were just checked, so that requesting the reply does not render again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.interface import Caller, ChatMessage
from engine.sampling_params import SamplingParams

MAX_ENTRIES = 64
"""Prompts kept; the oldest is dropped, which also removes chats that were checked but never requested."""


class PreparedPrompt(NamedTuple):
    """A rendered prompt with its resolved parameters."""

    token_ids: list[int]
    params: SamplingParams
    partial_reply: list[int]  #: the last token ids, where they belong to a reply to continue
    num_shared: int = 0  #: number of first token ids that depend on no user's text


_Key = tuple[list[ChatMessage], SamplingParams | None, Caller | None]


class PreparedPromptCache:
    """Keeps each prompt until it is taken once. Safe to use from any thread."""

    def __init__(self) -> None:
        self._kept: deque[tuple[_Key, PreparedPrompt]] = deque(maxlen=MAX_ENTRIES)
        self._lock = threading.Lock()

    def put(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        prompt: PreparedPrompt,
        caller: Caller | None = None,
    ) -> None:
        """Keeps ``prompt``, rendered from ``messages`` and ``params`` for this caller."""
        with self._lock:
            self._kept.append((([message.copy() for message in messages], params, caller), prompt))

    def pop(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None, caller: Caller | None = None
    ) -> PreparedPrompt | None:
        """Removes and returns the prompt for exactly these arguments; None if there is none."""
        key = list(messages), params, caller
        with self._lock:
            # Compared, not hashed: a caller's arguments may be malformed, and then they equal no rendered prompt.
            for index, (kept, prompt) in enumerate(self._kept):
                if kept == key:
                    del self._kept[index]
                    return prompt
        return None
