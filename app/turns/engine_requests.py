"""Requests to the model beside the turns of a conversation, such as a draft or a summary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

from app.errors import NotSupported
from app.turns.admission import Admission, caller_of
from app.turns.engine_errors import as_app_error, context_too_long
from engine import (
    BACKGROUND_PRIORITY,
    ChatEngine,
    ChatMessage,
    ChatOptions,
    ContextLengthError,
    Delta,
    EngineError,
    PreparedPrompt,
    ReplyInspector,
    SamplingParams,
    TokenLogprobs,
    Truncation,
)

INSPECTION_SECONDS = 60.0  # until when replies must have left room for an inspection

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
        truncation: Truncation | None = None,
        cache_salt: str = "",
    ) -> PreparedPrompt:
        """Renders and counts a prompt.

        Args:
            subject: what is too long, as the beginning of a sentence; ``advice``: what the user can do then.
            truncation: leaves out the oldest turns that do not fit; None leaves out none.
            cache_salt: separates the requests of one user in the prefix cache.

        Raises:
            ContextTooLong: the model cannot read that much.
            AppError: the request is not valid, or the engine cannot take it.
        """
        caller = caller_of(user_id, accounts=self._accounts, cache_salt=cache_salt)
        try:
            return await self.engine.prepare(messages, params, caller=caller, truncation=truncation, options=options)
        except ContextLengthError as error:
            raise context_too_long(error.prompt_tokens, error.max_model_len, subject=subject, advice=advice) from error
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error

    async def stream(self, user_id: str, prepared: PreparedPrompt, *, priority: int = 0) -> AsyncGenerator[Delta]:
        """Streams the reply to a prompt, admitted and counted.

        Args:
            priority: as the engine's: lower is served first.

        Raises:
            TooManyRequests: the user has reached a limit on replies.
            Overloaded, EngineUnavailable: the engine takes no request, or failed.
        """
        async for delta in self._metered(user_id, self.engine.stream(prepared, priority=priority)):
            yield delta

    async def inspect(
        self, user_id: str, prepared: PreparedPrompt, position: int | None = None
    ) -> tuple[TokenLogprobs, ...]:
        """Returns how the tokens of the reply with which a prompt ends are chosen from; see :class:`ReplyInspector`.

        Runs on what replies leave. Its tokens count, but it is no message.

        Raises:
            NotSupported: the engine does not report it.
            AppError: as :meth:`stream`; InvalidInput: the reply has no such token.
        """
        engine = self.engine
        if not isinstance(engine, ReplyInspector):
            raise NotSupported(
                "The model runs on another server, which does not report the probabilities behind a reply. Load a "
                "model on this machine to look into replies."
            )
        deltas = engine.inspect(prepared, position=position, deadline=INSPECTION_SECONDS, priority=BACKGROUND_PRIORITY)
        return tuple(
            [
                scores
                async for delta in self._metered(user_id, deltas, is_message=False)
                for scores in delta.prompt_logprobs
            ]
        )

    async def _metered(
        self, user_id: str, streamed: AsyncIterator[Delta], *, is_message: bool = True
    ) -> AsyncGenerator[Delta]:
        deltas = cast(AsyncGenerator[Delta], self._admission.meter(user_id, streamed, is_message=is_message))
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error
