"""Conversations that were checked a moment ago: their replies are asked for next, and rendering takes long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.interface import Caller, ChatMessage
from engine.sampling_params import SamplingParams

MAX_ENTRIES = 64
"""Those that were checked last; of conversations that nobody asks a reply for, too."""


class PreparedPrompt(NamedTuple):
    """A conversation as the core takes it."""

    token_ids: list[int]
    params: SamplingParams
    partial_reply: list[int]  #: the last of the token ids, where they are a reply that goes on
    num_shared: int = 0  #: so many of the first token ids depend on no user's text


_Asked = tuple[list[ChatMessage], SamplingParams | None, Caller | None]


class PreparedPromptCache:
    """Keeps them until they are taken. Callable from any thread."""

    def __init__(self) -> None:
        self._kept: deque[tuple[_Asked, PreparedPrompt]] = deque(maxlen=MAX_ENTRIES)
        self._lock = threading.Lock()

    def put(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        chat: PreparedPrompt,
        caller: Caller | None = None,
    ) -> None:
        """``chat`` is what ``messages`` and ``params`` became for this caller."""
        with self._lock:
            self._kept.append((([message.copy() for message in messages], params, caller), chat))

    def pop(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None, caller: Caller | None = None
    ) -> PreparedPrompt | None:
        """What was kept of exactly these; once."""
        asked = list(messages), params, caller
        with self._lock:
            # Compared, not looked up: what people pass may be malformed, and then it is like nothing that was rendered.
            for index, (kept, chat) in enumerate(self._kept):
                if kept == asked:
                    del self._kept[index]
                    return chat
        return None
