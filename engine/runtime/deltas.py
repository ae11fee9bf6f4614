"""The stream of a reply's deltas, to iterate over or to have pushed to a callback."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from engine.outputs import Delta


class Deltas(AsyncGenerator[Delta, None]):
    """Deltas of one reply. Iterate over them, or call :meth:`tell`: one of the two, and once."""

    def __init__(
        self, generator: AsyncGenerator[Delta], push: Callable[[Callable[[Delta], None]], Awaitable[None]]
    ) -> None:
        self._generator = generator
        self._push = push

    async def tell(self, take: Callable[[Delta], None]) -> None:
        """Calls ``take`` in the event loop with each delta as soon as it arrives; returns after the last one.

        No task wakes up for a delta, which with many replies in flight is most of a delta's cost. Raises what iterating
        raises and what ``take`` raises. Cancelling it aborts the request.
        """
        await self._push(take)

    def __anext__(self) -> Coroutine[Any, Any, Delta]:  # not async: returns the generator's own coroutine
        return self._generator.__anext__()

    async def asend(self, value: None) -> Delta:
        return await self._generator.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Delta:
        return await self._generator.athrow(typ, val, tb)  # type: ignore[arg-type]

    async def aclose(self) -> None:
        await self._generator.aclose()
