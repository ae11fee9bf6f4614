"""What waits for a slow reader comes whole: of several replies to a prompt, the very last delta is told last."""

from __future__ import annotations

import asyncio

import pytest

from engine import Delta, EngineStoppedError, FinishReason, ToolCallDelta
from engine.runtime.reader import Listener, Reader


async def test_the_end_of_the_last_reply_comes_after_the_rest_of_the_others() -> None:
    reader = Reader("r", asyncio.get_running_loop())
    end = FinishReason.STOP
    for delta in (
        Delta("r", "one ", index=1, num_unfinished=2),
        Delta("r", "zero", index=0, finish_reason=end, num_unfinished=1),
        Delta("r", "two", index=1, finish_reason=end, num_unfinished=0),
    ):
        assert Reader.deliver(reader.loop, [(reader, [delta])])
    first, second = await reader.next(), await reader.next()
    assert (first.text, first.is_last) == ("zero", False)
    assert (second.text, second.is_last) == ("one two", True)


async def test_a_listener_is_told_the_same_and_no_more_once_it_has_left() -> None:
    loop = asyncio.get_running_loop()
    heard: list[Delta] = []
    listener = Listener("r", loop, heard.append)
    end = FinishReason.STOP
    deltas = [
        Delta("r", "one ", (1,), index=1, num_unfinished=2),
        Delta("r", "zero", (2,), index=0, finish_reason=end, num_unfinished=1),
        Delta("r", "two", (3,), index=1, finish_reason=end, num_unfinished=0),
    ]
    assert Reader.deliver(loop, [(listener, deltas)])
    await listener.done
    assert [(delta.text, delta.token_ids, delta.is_last) for delta in heard] == [
        ("zero", (2,), False),
        ("one two", (1, 3), True),
    ]
    assert listener.has_ended

    left = Listener("r", loop, heard.append)
    left.done.cancel()
    assert Reader.deliver(loop, [(left, deltas)])
    left.fail(EngineStoppedError("too late"))
    await asyncio.sleep(0.01)
    assert len(heard) == 2


async def test_a_listener_hears_the_error_after_the_text() -> None:
    loop = asyncio.get_running_loop()
    heard: list[Delta] = []
    listener = Listener("r", loop, heard.append)
    assert Reader.deliver(loop, [(listener, [Delta("r", "kept", (1,))])])
    listener.fail(EngineStoppedError("it stopped"))
    with pytest.raises(EngineStoppedError, match="it stopped"):
        await listener.done
    assert [delta.text for delta in heard] == ["kept"]


async def test_what_a_listener_raises_is_its_own_error() -> None:
    def refuse(_delta: Delta) -> None:
        raise LookupError("not this one")

    loop = asyncio.get_running_loop()
    listener, heard = Listener("r", loop, refuse), list[Delta]()
    other = Listener("s", loop, heard.append)
    assert Reader.deliver(loop, [(listener, [Delta("r", "x", (1,))]), (other, [Delta("s", "y", (1,))])])
    with pytest.raises(LookupError):
        await listener.done
    assert not listener.has_ended, "the request goes on, and has to be aborted"
    assert [delta.text for delta in heard] == ["y"]


async def test_thinking_and_calls_that_wait_for_a_slow_reader_come_whole() -> None:
    reader = Reader("r", asyncio.get_running_loop())
    one, two = ToolCallDelta(0, '{"a"', "id", "add"), ToolCallDelta(0, ": 1}")
    deltas = [
        Delta("r", reasoning="h"),
        Delta("r", reasoning="m"),
        Delta("r", tool_calls=(one,)),
        Delta("r", tool_calls=(two,), beam_score=-0.5),
    ]
    assert Reader.deliver(reader.loop, [(reader, deltas)])
    merged = await reader.next()
    assert (merged.reasoning, merged.tool_calls, merged.beam_score) == ("hm", (one, two), -0.5)


async def test_how_long_a_request_was_queued_is_told_also_if_the_next_text_comes_with_it() -> None:
    reader = Reader("r", asyncio.get_running_loop())
    deltas = [Delta("r", "a", (1,), queue_seconds=0.5), Delta("r", "b", (2,))]
    assert Reader.deliver(reader.loop, [(reader, deltas)])
    merged = await reader.next()
    assert (merged.text, merged.queue_seconds) == ("ab", 0.5)
