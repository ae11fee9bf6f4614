"""Limits how many uses of a tool server run at a time, in all and for each user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary


class CallSlots:
    """The slots of one server. A user gets at most half of them, so that others' calls don't wait for one user's.

    Args:
        total: how many there are.
    """

    def __init__(self, total: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._max_per_user = max(1, total // 2)
        self._of_users: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of those who use it now

    @asynccontextmanager
    async def slot(self, user_id: str | None) -> AsyncGenerator[None]:
        """Waits for a slot, and holds it. The user is None where no user's call is made."""
        async with AsyncExitStack() as held:
            if user_id is not None:
                own = self._of_users.get(user_id)
                if own is None:
                    own = self._of_users[user_id] = asyncio.Semaphore(self._max_per_user)
                await held.enter_async_context(own)  # first, so that who waits for it holds no slot
            await held.enter_async_context(self._all)
            yield
