"""Requests to the model beside the turns of a conversation, such as a draft or a summary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from app.turns.admission import Admission, caller_of
from app.turns.engine_errors import as_app_error, context_too_long
from engine import (
    ChatEngine,
    ChatMessage,
    ChatOptions,
    ContextLengthError,
    Delta,
    EngineError,
    PreparedPrompt,
    SamplingParams,
)

_CHARS_PER_TOKEN = 3  # where the engine reports no tokens; fewer than any language's mean, so that what is counted fits


async def count_tokens(engine: ChatEngine, text: str) -> int:
    """Counts the tokens of a text, estimated where the engine does not tell."""
    try:
        return len(await engine.tokenize(text, add_special_tokens=False))
    except EngineError:
        return -(-len(text) // _CHARS_PER_TOKEN)


class EngineRequests:
    """Sends requests for users, within their limits; what fails is an error for them."""

    def __init__(self, engine: ChatEngine, admission: Admission, *, accounts: bool) -> None:
        self.engine = engine
        self._admission = admission
        self._accounts = accounts

    async def prepare(
        self,
        user_id: str,
        messages: Sequence[ChatMessage],
        params: SamplingParams,
        options: ChatOptions | None,
        *,
        subject: str,
        advice: str,
    ) -> PreparedPrompt:
        """Renders and counts a prompt.

        Args:
            subject: what is too long, as the beginning of a sentence; ``advice``: what the user can do then.

        Raises:
            ContextTooLong: the model cannot read that much.
            AppError: the request is not valid, or the engine cannot take it.
        """
        caller = caller_of(user_id, accounts=self._accounts)
        try:
            return await self.engine.prepare(messages, params, caller=caller, options=options)
        except ContextLengthError as error:
            raise context_too_long(error.prompt_tokens, error.max_model_len, subject=subject, advice=advice) from error
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error

    async def stream(self, user_id: str, prepared: PreparedPrompt) -> AsyncGenerator[Delta]:
        """Streams the reply to a prompt, admitted and counted.

        Raises:
            TooManyRequests: the user has reached a limit on replies.
            Overloaded, EngineUnavailable: the engine takes no request, or failed.
        """
        deltas = cast(AsyncGenerator[Delta], self._admission.meter(user_id, self.engine.stream(prepared)))
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error
