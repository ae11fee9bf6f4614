"""The replies that the bot writes in this process: readers follow their text before it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.turns.buffer import ReplyBuffer


@dataclass(frozen=True, slots=True)
class LiveReply:
    """A reply under way."""

    turn_id: str
    message_id: str
    buffer: ReplyBuffer


class LiveReplies:
    """The bot's replies under way, by case. Belongs to one event loop."""

    def __init__(self) -> None:
        self._replies: dict[str, LiveReply] = {}

    def get(self, case_id: str) -> LiveReply | None:
        """The case's reply under way; None if there is none, or another process writes it."""
        return self._replies.get(case_id)

    @property
    def turn_ids(self) -> set[str]:
        """The turns that this process writes."""
        return {reply.turn_id for reply in self._replies.values()}

    @contextmanager
    def writing(self, case_id: str, reply: LiveReply) -> Iterator[None]:
        """Context in which the reply is under way."""
        self._replies[case_id] = reply
        try:
            yield
        finally:
            if self._replies.get(case_id) is reply:
                del self._replies[case_id]
