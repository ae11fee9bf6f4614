"""What waits for a slow reader comes whole: of several replies to a prompt, the very last delta is told last."""

from __future__ import annotations

import asyncio

from engine import Delta, FinishReason
from engine.reader import Reader


async def test_the_end_of_the_last_reply_comes_after_the_rest_of_the_others() -> None:
    reader = Reader("r", asyncio.get_running_loop())
    end = FinishReason.STOP
    for delta in (
        Delta("r", "one ", index=1, num_unfinished=2),
        Delta("r", "zero", index=0, finish_reason=end, num_unfinished=1),
        Delta("r", "two", index=1, finish_reason=end, num_unfinished=0),
    ):
        assert Reader.hand_over(reader.loop, [(reader, [delta])])
    first, second = await reader.next(), await reader.next()
    assert (first.text, first.is_last) == ("zero", False)
    assert (second.text, second.is_last) == ("one two", True)
