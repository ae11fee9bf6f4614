"""A reply as it grows, for who waits for each delta, and for who would rather be told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from engine.outputs import Delta


class Deltas(AsyncGenerator[Delta, None]):
    """Iterate over it, or have it :meth:`tell`; one of both, and once."""

    def __init__(
        self, generator: AsyncGenerator[Delta], push: Callable[[Callable[[Delta], None]], Awaitable[None]]
    ) -> None:
        self._generator = generator
        self._push = push

    async def tell(self, take: Callable[[Delta], None]) -> None:
        """Call ``take`` with each delta in the event loop as soon as it comes; return after the last one.

        No task wakes for a delta, which with many replies in flight is most of what they cost. Raises what iterating
        raises, and what ``take`` raises. Cancelling it aborts the request.
        """
        await self._push(take)

    def __anext__(self) -> Coroutine[Any, Any, Delta]:  # not async: the generator's own is enough
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
