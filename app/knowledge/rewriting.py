"""Rewrites a message that only makes sense after others into a question that a search can use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app.domain.knowledge import MAX_QUERY_CHARS
from app.domain.placed_text import PlacedText
from app.domain.text import clean_text, one_line
from app.domain.words import fold_words
from engine import (
    Caller,
    ChatEngine,
    ChatMessage,
    ChatOptions,
    EngineError,
    FinishReason,
    SamplingParams,
    StructuredOutput,
    StructureKind,
)

_log = logging.getLogger(__name__)

MAX_SECONDS = 10.0
"""A reply waits no longer for its question: after that the message itself is searched for."""
READ_TURNS = 2
"""Turns of the conversation that the model reads: what a message refers to seldom stands further back."""
READ_CHARS = 600  # of each of their messages
MAX_TOKENS = 64
MAX_CHARS = 300
_LINE = StructuredOutput(StructureKind.REGEX, rf"[^\n]{{1,{MAX_CHARS}}}")
_NO_THINKING = ChatOptions(thinking=False)


class QuestionRewriter:
    """Asks the model for a question that makes sense without the conversation, such as of "And for Germany?".

    Args:
        template: has ``{{ conversation }}``, and after it ``{{ message }}``.

    Raises:
        ValueError: it has not.
    """

    def __init__(self, engine: ChatEngine, template: str) -> None:
        self._engine = engine
        self._text = PlacedText(template, "conversation", "message")

    async def rewrite(
        self, message: str, conversation: Sequence[tuple[str, str]], *, caller: Caller | None = None
    ) -> str:
        """Returns the question to search for: ``message`` itself at the start of a conversation, or if the model fails.

        Args:
            conversation: the messages and replies before it, oldest first.
        """
        if not conversation:
            return message
        shown = "\n\n".join(
            f"User: {_short(asked)}\n\nAssistant: {_short(reply)}" for asked, reply in conversation[-READ_TURNS:]
        )
        try:
            async with asyncio.timeout(MAX_SECONDS):
                answer = await self._complete(self._text.fill(shown, message[:MAX_QUERY_CHARS]).rstrip("\n"), caller)
        except TimeoutError:
            _log.info("a question was not rewritten: the model took longer than %d s", MAX_SECONDS)
            return message
        except (EngineError, ValueError) as error:
            _log.info("a question was not rewritten: %s", error)
            return message
        question = one_line(clean_text(answer)).strip("\"'“”„ ")
        # A model that is too small writes about something else: then the message finds more.
        about = fold_words(f"{message} {shown}")
        return message if set(about).isdisjoint(fold_words(question)) else question

    async def _complete(self, request: str, caller: Caller | None) -> str:
        """Returns the model's answer; empty if it was cut off, since a question ends by itself."""
        form = _LINE if self._engine.info.num_parameters else None  # not every remote server takes a form
        text, ended = "", False
        async for delta in self._engine.chat(
            [ChatMessage(role="user", content=request)],
            SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, structured=form),
            caller=caller,
            options=_NO_THINKING if self._engine.info.can_think else None,
        ):
            text += delta.text
            ended = ended or delta.finish_reason is FinishReason.STOP
        return text if ended and len(text) <= MAX_CHARS else ""


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= READ_CHARS else f"{text[:READ_CHARS]} …"
