"""Deltas.forward_to, over an engine that has no cheaper way than iterating."""

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


async def test_deltas_are_forwarded_in_order_and_the_error_after_them() -> None:
    source, texts = Source(ValueError("broken")), list[str]()
    with pytest.raises(ValueError, match="broken"):
        await Deltas(source.deltas()).forward_to(lambda delta: texts.append(delta.text))
    assert (texts, source.closed) == (["a", "b"], True)


async def test_what_the_callback_raises_aborts_the_request_at_once() -> None:
    def refuse(_delta: Delta) -> None:
        raise RuntimeError("no more")

    source = Source()
    with pytest.raises(RuntimeError, match="no more"):
        await Deltas(source.deltas()).forward_to(refuse)
    assert source.closed


async def test_cancelling_aborts_the_request_before_the_task_ends() -> None:
    source, has_both = Source(), asyncio.Event()
    forwarding = asyncio.create_task(
        Deltas(source.deltas()).forward_to(lambda delta: has_both.set() if delta.text == "b" else None)
    )
    await has_both.wait()
    forwarding.cancel()
    await asyncio.gather(forwarding, return_exceptions=True)
    assert forwarding.cancelled()
    assert source.closed
