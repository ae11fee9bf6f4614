"""Revocable responses: streams that are cut off when their caller's session or key is revoked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.auth.refusals import RequestRefused
from app.error_format import error_response

MAX_REVOCABLE_PER_USER = 100
"""Maximum open streams per user; another gets 429. A browser keeps one for all its tabs, and Gradio two per tab."""
MAX_STREAMS_PER_VISITOR = 10
"""Maximum open streams per visitor of a website: one for each tab."""
_RETRY_AFTER_SECONDS = 5


class RevocableRequests:
    """Counts each user's revocable responses in flight in this process.

    Args:
        max_per_user: maximum per user; None is unlimited.
    """

    def __init__(self, max_per_user: int | None) -> None:
        self._max = max_per_user
        self._open: Counter[str] = Counter()

    @contextmanager
    def track(self, user_id: str) -> Iterator[None]:
        """Context of one response.

        Raises:
            RequestRefused: the user has the maximum number of responses in flight.
        """
        if self._max is not None and self._open[user_id] >= self._max:
            raise RequestRefused(
                429,
                "too_many_requests",
                f"You have {self._max} streams open already. Close some tabs or programs, then try again.",
                **{"Retry-After": str(_RETRY_AFTER_SECONDS)},
            )
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]


async def run_until_revoked(
    revoked: asyncio.Event | None, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Runs ``app`` until it returns or ``revoked`` is set; then cancels it and ends its response. None is never set."""
    if revoked is None:
        await app(scope, receive, send)
        return
    started = done = False

    async def noted(message: Message) -> None:
        nonlocal started, done
        started = True
        await send(message)
        done = message["type"] == "http.response.body" and not message.get("more_body", False)

    answering = asyncio.ensure_future(_run(app, scope, receive, noted))
    revocation = asyncio.ensure_future(revoked.wait())
    try:
        await asyncio.wait({answering, revocation}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
            return
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        if not started:
            refusal = error_response(scope["path"], 401, "not_signed_in", "You were signed out. Sign in again.")
            await refusal(scope, receive, send)
        elif not done:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        for task in (answering, revocation):
            task.cancel()
        await asyncio.gather(answering, revocation, return_exceptions=True)


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
