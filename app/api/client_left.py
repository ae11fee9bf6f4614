"""Ends work when the client that it is for has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")

CLIENT_LEFT = 499
"""nginx's status for a client that disconnected before its response. No client reads it, but logs show it."""


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the work's result; None, after cancelling the work, if the client disconnects first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
