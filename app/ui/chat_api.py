"""The endpoint ``/chat`` for programs that use ``gradio_client``: it starts a turn and streams its reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import gradio as gr
from pydantic import ValidationError

from app.api.chat.turns import StartTurn, begin_turn
from app.api.errors import describe_invalid
from app.api.sse import close
from app.auth.identity import identity_of
from app.domain.listings import PASSAGES_FOUND
from app.domain.views import MessageStatus
from app.errors import AppError, InvalidInput
from app.turns.events import TurnCitations, TurnEnd, TurnText
from app.turns.written_replies import passages_as_text
from app.ui.gradio_patches import count_unread_messages

if TYPE_CHECKING:
    from app.services.container import Services

_log = logging.getLogger(__name__)

STREAM_SECONDS = 0.05
"""Minimum interval between two partial texts of a reply."""
MAX_CALLS = 128
"""Maximum number of replies that are streamed at a time. Further calls wait in Gradio's queue, which the page's own
listeners do not use."""
MAX_UNREAD = 50
"""Maximum number of messages that Gradio holds for a session before it gets no more partial texts, each of which takes
memory until the caller reads it. The next text that it gets has everything."""


def add_chat_api(page: gr.Blocks, services: Callable[[], Services]) -> None:
    """Adds ``/chat``, the only public endpoint, to the Blocks ``page`` that is being built.

    ``services`` is called per call of the endpoint.
    """

    def is_reading(session_hash: str | None) -> bool:
        return count_unread_messages(page, session_hash) < MAX_UNREAD

    async def chat(
        message: str,
        request: gr.Request,
        conversation_id: str | None = None,
        temporary: bool = False,
        settings: dict[str, Any] | None = None,
        include_ids: bool = False,
    ) -> AsyncGenerator[str | dict[str, str]]:
        """Sends a message and streams its reply: each output is the text so far.

        The conversation is saved like those of the page. The reply is written to its end, and saved, also if the
        caller leaves before.

        Args:
            message: The message.
            conversation_id: The conversation to continue; without one, a new one begins.
            temporary: Keep the new conversation in memory only; it ends with the server at the latest.
            settings: Settings of the conversation, such as {"system_prompt": "Be brief.", "temperature": 0.2}.
            include_ids: Output objects with the text, the conversation_id and the message_id instead of the text.
        """
        arguments = {
            "text": message,
            "conversation_id": conversation_id,
            "temporary": temporary,
            "settings": settings,
        }
        try:
            async with aclosing(_reply(services(), request, arguments)) as outputs:
                unsent = None
                async for output in outputs:
                    unsent = output if include_ids else output["text"]
                    if is_reading(request.session_hash):
                        yield unsent
                        unsent = None
                    await asyncio.sleep(STREAM_SECONDS)  # the text that comes meanwhile is one output
                if unsent is not None:
                    yield unsent
        except AppError as error:
            raise gr.Error(error.message, print_exception=False) from error
        except Exception as error:
            _log.exception("a call of /chat failed")
            said = "An internal error occurred. The server's log has the details."
            raise gr.Error(said, print_exception=False) from error

    # Gradio reads the type of the output from the annotation as it is written.
    chat.__annotations__["return"] = str | dict[str, str]
    gr.api(chat, api_name="chat", concurrency_limit=MAX_CALLS, concurrency_id="chat")


async def _reply(services: Services, request: gr.Request, arguments: dict[str, Any]) -> AsyncGenerator[dict[str, str]]:
    """Starts a turn as ``POST /api/turns`` does and yields the reply's text so far, with its ids.

    Args:
        arguments: fields of :class:`StartTurn`, as the caller sent them: Gradio checks no types.

    Raises:
        AppError: the turn cannot start, or its reply failed.
    """
    identity = identity_of(request)
    if not identity.role.may_write:
        raise AppError("Your role is read-only. Ask an admin for access.")
    if not isinstance(arguments["text"], str):
        raise InvalidInput("The message must be a text.")
    try:
        turn = StartTurn.model_validate(arguments)
    except ValidationError as error:
        raise InvalidInput(describe_invalid(error.errors())[0]) from error
    turns, ref = await begin_turn(services, identity.user_id, turn)
    ids = {"conversation_id": ref.conversation_id, "message_id": ref.message_id}
    text = ""
    events = turns.events(identity.user_id, ref.turn_id)
    try:
        async for event in events:
            if isinstance(event, TurnText):
                text += event.text
                yield {"text": text, **ids}
            elif isinstance(event, TurnCitations) and any(one.listed for one in event.citations):
                # The caller gets no citations: without its passages, a listing would say nothing.
                yield {"text": passages_as_text(PASSAGES_FOUND, event.citations), **ids}
            elif isinstance(event, TurnEnd):
                if event.status in (MessageStatus.ERROR, MessageStatus.INTERRUPTED):
                    raise AppError(event.error or "The reply was interrupted.")
                if not text:  # without any output, the caller would have no result
                    yield {"text": "", **ids}
    finally:
        await close(events)
