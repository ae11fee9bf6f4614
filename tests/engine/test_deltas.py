"""A stream of deltas is read in one way whatever engine it is of: also where the engine cannot push."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.outputs import Delta, Deltas


class Source:
    """Yields two deltas and then waits, or raises ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = False
        self._error = error

    async def deltas(self) -> AsyncGenerator[Delta]:
        try:
            for text in ("a", "b"):
                yield Delta("r", text=text)
            if self._error is not None:
                raise self._error
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as an engine that closes a connection
            self.closed = True


async def test_each_delta_is_told_in_order_and_the_error_after_them() -> None:
    source, told = Source(ValueError("broken")), list[str]()
    with pytest.raises(ValueError, match="broken"):
        await Deltas(source.deltas()).tell(lambda delta: told.append(delta.text))
    assert (told, source.closed) == (["a", "b"], True)


async def test_what_the_callback_raises_aborts_the_request_at_once() -> None:
    def refuse(_delta: Delta) -> None:
        raise RuntimeError("no more")

    source = Source()
    with pytest.raises(RuntimeError, match="no more"):
        await Deltas(source.deltas()).tell(refuse)
    assert source.closed


async def test_cancelling_aborts_the_request_before_the_task_ends() -> None:
    source, told = Source(), asyncio.Event()
    telling = asyncio.create_task(Deltas(source.deltas()).tell(lambda delta: told.set() if delta.text == "b" else None))
    await told.wait()
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert telling.cancelled()
    assert source.closed
