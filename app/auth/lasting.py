"""Answers that go on for as long as who asked for them may have them."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.error_shapes import error_response


async def run_until(ended: asyncio.Event | None, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run ``app``; where ``ended`` is set meanwhile, cut it off and end its answer. None is never set."""
    if ended is None:
        await app(scope, receive, send)
        return
    begun = done = False

    async def noted(message: Message) -> None:
        nonlocal begun, done
        begun = True
        await send(message)
        done = message["type"] == "http.response.body" and not message.get("more_body", False)

    answering = asyncio.ensure_future(_run(app, scope, receive, noted))
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
            return
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        if not begun:
            refusal = error_response(scope["path"], 401, "not_signed_in", "You were signed out. Sign in again.")
            await refusal(scope, receive, send)
        elif not done:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        for task in (answering, ending):
            task.cancel()
        await asyncio.gather(answering, ending, return_exceptions=True)


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
