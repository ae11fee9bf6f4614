"""Counts the first tokens of a prompt that depend on no user's text, which the prefix cache may share among users."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError

from engine.interface import ChatMessage
from engine.text.template_inputs import template_messages

MAX_OPENINGS = 64
"""Number of openings whose tokens are cached. Beyond it the oldest is evicted."""

MAX_OPENING_CHARACTERS = 1 << 22
"""Characters of all cache keys of those openings together. Beyond it the oldest is evicted."""

_SIMPLE_FIELDS = frozenset({"role", "content", "shared"})


class SharedOpenings:
    """Finds the tokens of conversations' openings, and caches them. Safe to use from several threads.

    An opening is the prefix of two conversations that have nothing in common but their first messages.

    Args:
        render: renders a conversation, as templates take it, to text.
        tokenize: returns the token ids of rendered text.
        lock: held while either of them runs.
        clock_formats: formats in which the template writes the time; None if its text may differ with each rendering.
    """

    def __init__(
        self,
        render: Callable[[list[dict[str, Any]]], str],
        tokenize: Callable[[str], list[int]],
        lock: threading.Lock,
        clock_formats: tuple[str, ...] | None,
    ) -> None:
        self._render = render
        self._tokenize = tokenize
        self._lock = lock
        self._clock_formats = clock_formats
        # Token ids of openings and the characters of their keys. A key is what the opening depends on, or, where that
        # is not known, two texts that start with it.
        self._cached: dict[Hashable, tuple[list[int], int]] = {}

    def count(self, messages: Sequence[ChatMessage], token_ids: Sequence[int]) -> int:
        """Counts the first token ids of a conversation that depend on no user's text.

        These are the tokens of the template and of the messages marked ``shared``, up to the first message that is
        not marked.

        Args:
            messages: the conversation.
            token_ids: the token ids it was rendered to.
        """
        shared = list(takewhile(lambda message: message.get("shared", False), messages))
        role = messages[len(shared)]["role"] if len(shared) < len(messages) else "user"
        key = self._key(shared, role)
        cached = self._cached.get(key) if key is not None else None  # without the lock, which a long prompt may hold
        known = cached[0] if cached is not None else self._find(shared, role, key)
        return len(known) if known == token_ids[: len(known)] else _num_common(known, token_ids)

    def _key(self, shared: Sequence[ChatMessage], role: str) -> Hashable | None:
        """Returns everything that the rendered opening depends on; None if it may differ with each rendering."""
        if self._clock_formats is None or any(not message.keys() <= _SIMPLE_FIELDS for message in shared):
            return None
        clock = tuple(map(datetime.now().strftime, self._clock_formats)) if self._clock_formats else ()
        return role, clock, tuple((message["role"], message["content"]) for message in shared)

    def _find(self, shared: Sequence[ChatMessage], role: str, key: Hashable | None) -> list[int]:
        """Renders and tokenizes the opening, and caches its tokens by ``key``, or by its text if that is None."""
        with self._lock:
            texts = self._render_twice(shared, role) if key is None or key not in self._cached else ()
            cached = self._cached.get(texts if key is None else key)  # perhaps by another thread meanwhile
            if cached is not None:
                return cached[0]
            known = self._tokenize_common(texts)
            if key is None:
                self._keep(texts, known, sum(map(len, texts)))
            elif key == self._key(shared, role):  # else the clock went on meanwhile
                self._keep(key, known, sum(len(message["content"]) for message in shared))
        return known

    def _keep(self, key: Hashable, token_ids: list[int], num_characters: int) -> None:
        """Caches the tokens and evicts the oldest entries beyond the limits of number and size."""
        self._cached[key] = token_ids, num_characters
        size = sum(characters for _, characters in self._cached.values())
        while self._cached and (len(self._cached) > MAX_OPENINGS or size > MAX_OPENING_CHARACTERS):
            size -= self._cached.pop(next(iter(self._cached)))[1]

    def _render_twice(self, shared: Sequence[ChatMessage], role: str) -> tuple[str, ...]:
        """Renders two conversations that share these messages and differ in the next; empty if the template refuses."""
        texts: list[str] = []
        for content in ("0", "a"):
            conversation = [*template_messages(shared, ()), {"role": role, "content": content}]
            try:
                texts.append(self._render(conversation))
            except (TemplateError, TypeError, ValueError, KeyError):
                return ()
        return tuple(texts)

    def _tokenize_common(self, texts: Sequence[str]) -> list[int]:
        """Returns the token ids of the texts' common prefix that do not depend on what follows it."""
        if not texts:
            return []
        # A token may span the end of the common prefix and then depends on what follows; only earlier ones are shared.
        common = self._tokenize(texts[0][: _num_common(*texts)])
        return common[: min(_num_common(common, self._tokenize(text)) for text in texts)]


def _num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Counts the equal items at the start of both sequences."""
    differing = (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))
