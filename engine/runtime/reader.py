"""The asyncio side of a request: receives deltas from the worker thread and merges those that wait to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import EngineError
from engine.outputs import Delta


class Reader:
    """Receives one request's deltas on one event loop.

    A slow reader costs the engine nothing: deltas that wait are merged into one for each reply.
    """

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self.loop = loop
        self.has_first_token = False  #: a first token was sent; used by the worker thread only
        self.has_ended = False  #: the last delta or the error has arrived
        self._pending: dict[int, list[Delta]] = {}  # by reply index, the longest waiting first
        self._error: EngineError | None = None
        self._arrived = asyncio.Event()

    async def next(self) -> Delta:
        """Waits for and returns all new output of one reply, merged into one delta.

        Raises the error that ended the request after all text has been read.
        """
        await self._arrived.wait()
        if self._pending:
            # Readers stop after the request's very last delta, so pending deltas of other replies come before it.
            index = min(self._pending, key=lambda index: self._pending[index][-1].is_last)
            merged = _merge(self._pending.pop(index))
            if self._error is None and not self._pending:
                self._arrived.clear()
            return merged
        assert self._error is not None
        raise self._error

    def fail(self, error: EngineError) -> None:
        """Ends the request with an error, from the worker thread. Does nothing when the loop is closed."""
        _call(self.loop, self._end_with, error)

    @staticmethod
    def deliver(loop: asyncio.AbstractEventLoop, handed: Sequence[tuple[Reader, Sequence[Delta]]]) -> bool:
        """Delivers deltas to their readers on ``loop``, from the worker thread. False when the loop is closed."""
        return _call(loop, _receive, handed)

    def _receive(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self._pending.setdefault(delta.index, []).append(delta)
        self.has_ended = deltas[-1].is_last
        self._arrived.set()

    def _end_with(self, error: EngineError) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._error = error
            self._arrived.set()


class Listener(Reader):
    """A reader that pushes deltas to a callback as soon as they arrive, without waking a task.

    Args:
        take: called on the loop with all new output of one reply. An exception it raises is set on ``done``.
    """

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop, take: Callable[[Delta], None]) -> None:
        super().__init__(request_id, loop)
        self.done: asyncio.Future[None] = loop.create_future()  #: set after the last delta, or to an error
        self._take = take

    def _receive(self, deltas: Sequence[Delta]) -> None:
        if self.done.done():  # the caller has left
            return
        pending: dict[int, list[Delta]] = {}
        for delta in deltas:
            pending.setdefault(delta.index, []).append(delta)
        try:
            for same in sorted(pending.values(), key=lambda same: same[-1].is_last):  # the very last delta last
                self._take(_merge(same))
        except Exception as error:
            self.done.set_exception(error)
            return
        if deltas[-1].is_last:
            self.has_ended = True
            self.done.set_result(None)

    def _end_with(self, error: EngineError) -> None:
        if not self.has_ended:
            self.has_ended = True
            if not self.done.done():
                self.done.set_exception(error)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], argument: object) -> bool:
    """Calls ``function`` on a loop, from another thread. False when the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:  # closed: asking asyncio beforehand would be a race
        return False
    return True


def _receive(handed: Sequence[tuple[Reader, Sequence[Delta]]]) -> None:
    for reader, deltas in handed:
        reader._receive(deltas)


def _merge(deltas: Sequence[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return Delta(
        request_id=last.request_id,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(scores for delta in deltas for scores in delta.logprobs),
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), ()),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        prompt_tokens=next((delta.prompt_tokens for delta in deltas if delta.prompt_tokens is not None), None),
        cached_prompt_tokens=next((d.cached_prompt_tokens for d in deltas if d.cached_prompt_tokens is not None), None),
        queue_seconds=next((delta.queue_seconds for delta in deltas if delta.queue_seconds is not None), None),
        progress=last.progress,
        timings=last.timings,
        index=last.index,
        num_unfinished=last.num_unfinished,
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
        beam_score=last.beam_score,
        sampled_at=next((delta.sampled_at for delta in deltas if delta.sampled_at is not None), None),
    )
