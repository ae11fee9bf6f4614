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
from app.auth.identity import identity_of
from app.domain.views import MessageStatus
from app.errors import AppError
from app.turns.events import TurnEnd, TurnText

if TYPE_CHECKING:
    from app.services.container import Services

_log = logging.getLogger(__name__)

STREAM_SECONDS = 0.05
"""Minimum interval between two partial texts of a reply."""
MAX_CALLS = 128
"""Maximum number of replies that are streamed at a time, half of what Gradio's queue runs: the rest stays free for the
page's own listeners. Further calls wait in the queue."""


def add_chat_api(services: Callable[[], Services]) -> None:
    """Adds ``/chat``, the only public endpoint, to the Blocks that are being built.

    ``services`` is called per call of the endpoint.
    """

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
        fields = {"conversation_id": conversation_id, "temporary": temporary, "settings": settings}
        try:
            async with aclosing(_reply(services(), request, message, fields)) as outputs:
                async for output in outputs:
                    yield output if include_ids else output["text"]
        except AppError as error:
            raise gr.Error(error.message, print_exception=False) from error
        except gr.Error:
            raise
        except Exception as error:
            _log.exception("a call of /chat failed")
            raise gr.Error(
                "An internal error occurred. The server's log has the details.", print_exception=False
            ) from error

    # Gradio reads the type of the output from the annotation as it is written.
    chat.__annotations__["return"] = str | dict[str, str]
    gr.api(chat, api_name="chat", concurrency_limit=MAX_CALLS, concurrency_id="chat")


async def _reply(
    services: Services, request: gr.Request, message: object, fields: dict[str, object]
) -> AsyncGenerator[dict[str, str]]:
    """Starts the turn as ``POST /api/turns`` does and yields the reply's text so far, with its ids."""
    identity = identity_of(request)
    if not identity.role.may_write:
        raise gr.Error("Your role is read-only. Ask an admin for access.", print_exception=False)
    if not isinstance(message, str):
        raise gr.Error("The message must be a text.", print_exception=False)
    try:
        turn = StartTurn.model_validate({"text": message, **fields})
    except ValidationError as error:
        raise gr.Error(describe_invalid(error.errors())[0], print_exception=False) from error
    turns, ref = await begin_turn(services, identity.user_id, turn)
    ids = {"conversation_id": ref.conversation_id, "message_id": ref.message_id}
    text = ""
    has_text = False
    async with aclosing(turns.events(identity.user_id, ref.turn_id)) as events:
        async for event in events:
            if isinstance(event, TurnText):
                text += event.text
                has_text = True
                yield {"text": text, **ids}
                await asyncio.sleep(STREAM_SECONDS)  # text that comes meanwhile is one event
            elif isinstance(event, TurnEnd):
                if event.status in (MessageStatus.ERROR, MessageStatus.INTERRUPTED):
                    raise gr.Error(event.error or "The reply was interrupted.", print_exception=False)
                if not has_text:  # a generator without outputs would leave the caller without a result
                    yield {"text": text, **ids}
