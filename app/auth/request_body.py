"""Reads request bodies within limits of size and time. A client whose body is too large hears so before it is cut."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from app.auth.refusals import RequestRefused
from app.errors import TooLarge

#: Maximum size of a request body; a larger one is refused with 413.
MAX_BODY_BYTES = 4 * 1024 * 1024
#: Maximum size of an uploaded file.
MAX_UPLOAD_BYTES = 200 * 1024 * 1024
#: Maximum size of a body on routes that need no sign-in.
MAX_OPEN_BODY_BYTES = 64 * 1024
#: Maximum size of a body of a website's visitor, whose limits of length are in sentences of their own.
MAX_VISITOR_BODY_BYTES = 1024 * 1024
#: Time for a body to arrive: enough for a slow line, too short to hold connections open. A slower one gets 408. For
#: uploads, the time between two pieces.
BODY_SECONDS = 60.0
#: Upper bound on what is read and discarded of a body that is too large, as a multiple of its limit.
_MAX_DISCARDED_FACTOR = 10


async def read_body(scope: Scope, receive: Receive, limit: int, timeout_s: float) -> bytes | None:
    """Reads the whole body, so that the limit holds for every route; None if the client disconnects first.

    Raises:
        RequestRefused: the body is larger than ``limit`` bytes, or takes longer than ``timeout_s`` seconds.
    """
    declared = _declared_size(scope)
    if _is_refused_unread(scope, declared, limit):
        raise _refusal(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                size += len(chunk)
                if max(size, declared) > limit:
                    await _discard(receive, message, size, limit)
                    raise _refusal(limit)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise RequestRefused(
            408, "too_slow", "The request took too long to arrive. Send it again.", Connection="close"
        ) from None


def limit_upload(scope: Scope, receive: Receive, limit: int, timeout_s: float) -> Receive:
    """Wraps ``receive`` for a route that reads its body itself: raises ``TooLarge`` if the body exceeds ``limit``.

    A declared Content-Length counts too. A client that sends nothing for ``timeout_s`` seconds is reported as
    disconnected.
    """
    declared, size = _declared_size(scope), 0

    async def receive_in_time() -> Message:
        try:
            async with asyncio.timeout(timeout_s):
                return await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}

    async def counted() -> Message:
        nonlocal size
        if not _is_refused_unread(scope, declared, limit):
            message = await receive_in_time()
            size += len(message.get("body", b""))
            if max(size, declared) <= limit:
                return message
            await _discard(receive_in_time, message, size, limit)
        raise TooLarge(_too_large(limit))

    return counted


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a ``receive`` that yields the body that was read, then what really arrives (the disconnect)."""
    replayed = False

    async def again() -> Message:
        nonlocal replayed
        if not replayed:
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def _discard(receive: Receive, message: Message, size: int, limit: int) -> None:
    """Reads on without keeping anything: a client that is still sending when its connection closes loses the answer.

    Args:
        message: the last one that was received.
        size: bytes received so far.
    """
    while message.get("more_body", False) and size < limit * _MAX_DISCARDED_FACTOR:
        message = await receive()
        size += len(message.get("body", b""))


def _declared_size(scope: Scope) -> int:
    declared = Headers(scope=scope).get("content-length", "")
    return int(declared) if declared.isdecimal() else 0


def _is_refused_unread(scope: Scope, declared: int, limit: int) -> bool:
    """Whether a body is too large to be read at all, or its client reads a refusal before it sends the body.

    The latter sends only when told to ("Expect: 100-continue"), as curl does with large bodies.
    """
    awaits_permission = Headers(scope=scope).get("expect", "").lower() == "100-continue"
    return declared > limit and (awaits_permission or declared > limit * _MAX_DISCARDED_FACTOR)


def _refusal(limit: int) -> RequestRefused:
    return RequestRefused(413, TooLarge.code, _too_large(limit), Connection="close")


def _too_large(limit: int) -> str:
    return f"The request is larger than {limit / (1024 * 1024):g} MiB. Send less in one request."
