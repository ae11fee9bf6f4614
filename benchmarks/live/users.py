"""Simulates users of the chat page through the routes that the page's scripts call."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from uuid import uuid4

from benchmarks.live.browser import Browser, StreamedReply
from benchmarks.live.scripted_chats import MAX_REPLY_TOKENS, ScriptedQuestion


@dataclass
class SimulatedUser:
    """A user with a browser and the conversation that it shows."""

    browser: Browser
    conversation_id: str | None = None
    last_reply_id: str | None = None  #: the last message shown
    first_texts: list[float] = field(default_factory=list)  #: seconds from sending a message to its first text
    text_events: int = 0

    async def ask(self, question: ScriptedQuestion) -> None:
        """Sends a question and reads the reply to its end.

        Raises:
            RuntimeError: the reply is not complete.
        """
        if question.starts_conversation:
            self.conversation_id = self.last_reply_id = None
        sent = perf_counter()
        _, reply = await self.send(question.text, question.seed)
        end = await reply.end()
        if end.get("status") != "complete":
            raise RuntimeError(f"a reply is not complete: {end}")
        if reply.first_text is not None:
            self.first_texts.append(reply.first_text - sent)
        self.text_events += end["text_events"]

    async def send(
        self, text: str, seed: int, max_tokens: int = MAX_REPLY_TOKENS
    ) -> tuple[dict[str, Any], StreamedReply]:
        """Sends a message; returns the turn and its streamed reply."""
        body: dict[str, Any] = {
            "text": text,
            "settings": {"seed": seed, "max_tokens": max_tokens},
            "request_id": uuid4().hex,
        }
        if self.conversation_id is not None:
            body |= {"conversation_id": self.conversation_id, "tip_id": self.last_reply_id}
        expected = self.browser.expect()
        if expected is not None:
            body["stream_id"] = self.browser.stream_id
        turn: dict[str, Any] = await self.browser.post("/api/turns", body)
        self.conversation_id, self.last_reply_id = turn["conversation_id"], turn["message_id"]
        if expected is not None and turn["in_stream"]:
            return turn, expected
        return turn, await self.browser.follow(turn["turn_id"])
