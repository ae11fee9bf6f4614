"""Generates conversation titles with the model, in the background of replies."""

from __future__ import annotations

import asyncio
import logging

from app.domain.attached_files import without_files
from app.domain.pasted_mail import find_subject
from app.domain.text import as_title
from app.errors import AppError
from app.store.chat.conversations import Conversations
from app.turns.admission import caller_of
from engine import (
    BACKGROUND_PRIORITY,
    Caller,
    ChatEngine,
    ChatMessage,
    ChatOptions,
    EngineError,
    FinishReason,
    SamplingParams,
)

_log = logging.getLogger(__name__)

READ_CHARS = 2000  # of the message and of the reply each; a title needs no more
_PARAMS = SamplingParams(temperature=0.0, max_tokens=24)
_OPTIONS = ChatOptions(thinking=False)
_DEADLINE_SECONDS = 120.0
_REQUEST = """Write a title of two to six words for the conversation below, in its own language.
Answer with the title alone, without quotation marks.

Question: {message}

Answer: {reply}"""


class Titles:
    """Generates titles, one task per conversation."""

    def __init__(self, engine: ChatEngine, conversations: Conversations, *, accounts: bool = False) -> None:
        self._accounts = accounts
        self._engine = engine
        self._conversations = conversations
        self._tasks: set[asyncio.Task[None]] = set()

    def generate(self, user_id: str, conversation_id: str, message: str, reply: str) -> None:
        """Generates a title for the conversation that begins with these, in the background. It may fail silently.

        A pasted mail has its subject for a title already, which its writer chose.
        """
        if find_subject(without_files(message)) is not None:
            return
        task = asyncio.create_task(
            self._generate(user_id, conversation_id, message, reply), name=f"title of {conversation_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancels the titles in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _generate(self, user_id: str, conversation_id: str, message: str, reply: str) -> None:
        request = _REQUEST.format(message=message[:READ_CHARS], reply=reply[:READ_CHARS])
        try:
            answer = await self._complete(request, caller_of(user_id, accounts=self._accounts))
            title = as_title(answer, about=f"{message} {reply}") if answer else None
            if title is not None:
                await self._conversations.set_generated_title(user_id, conversation_id, title)
        except (AppError, EngineError, ValueError) as error:  # the conversation keeps its title
            _log.info("no title for conversation %s: %s", conversation_id, error)

    async def _complete(self, request: str, caller: Caller | None) -> str:
        """The model's answer; empty if it was cut off, since a title ends by itself."""
        text, ended = "", False
        messages = [ChatMessage(role="user", content=request)]
        async for delta in self._engine.chat(
            messages,
            _PARAMS,
            deadline=_DEADLINE_SECONDS,
            priority=BACKGROUND_PRIORITY,
            caller=caller,
            options=_OPTIONS if self._engine.info.can_think else None,
        ):
            text += delta.text
            ended = ended or delta.finish_reason is FinishReason.STOP
        return text if ended else ""
