"""The load test: arrivals by a seed, times from when a request was due, errors that count, and the sums."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.load.arrivals import lengths, plan
from benchmarks.load.client import RequestOutcome, Target, run
from benchmarks.load.summary import GoodputSLO, summarize

LIMITS = GoodputSLO(first_token=1.0, per_token=0.1)
Answer = Callable[[dict[str, Any], Callable[[Any], Awaitable[None]]], Awaitable[bool]]


@asynccontextmanager
async def server(answer: Answer, status: str = "200 OK") -> AsyncIterator[Target]:
    """Streams the events that ``answer`` sends, in chunks; ends the stream properly where it returns True."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        body = json.loads(await reader.readexactly(int(length[1])))
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

        async def send(event: Any) -> None:
            text = event if isinstance(event, str) else json.dumps(event)
            data = f"data: {text}\n\n".encode()
            # An event in two pieces: nothing may depend on how the network cuts them.
            for piece in (data[:9], data[9:]):
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()

        if await answer(body, send):
            writer.write(b"0\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield Target(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", "m", chat=True)


def text(content: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": reason}]}


def usage(tokens: int) -> dict[str, Any]:
    details = {"cached_tokens": 2}
    return {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 5, "prompt_tokens_details": details}}


async def all_of(target: Target, count: int, **options: Any) -> list[RequestOutcome]:
    planned = plan(float("inf"), count, 0, lengths("4"), lengths("3"))
    return await run(planned, target, **{"max_in_flight": 100, "timeout": 60.0} | options)


# -- arrivals -----------------------------------------------------------------------------------------------------


def test_a_seed_fixes_the_arrivals_and_a_rate_only_scales_them() -> None:
    options: dict[str, Any] = {"prompt_lengths": lengths("5-9"), "reply_lengths": lengths("exp:50"), "vocab_size": 300}
    slow, again, quick = (plan(rate, 2000, 3, **options) for rate in (2.0, 2.0, 8.0))
    other = plan(2.0, 2000, 4, **options)
    assert slow == again
    assert [one.at for one in slow] == pytest.approx([4 * one.at for one in quick])
    assert [one.reply_tokens for one in slow] == [one.reply_tokens for one in quick]
    assert [one.prompt for one in slow] != [one.prompt for one in quick]  # a cache must not know them
    assert [one.at for one in slow] != [one.at for one in other]
    gaps = [after.at - before.at for before, after in itertools.pairwise(slow)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.5, rel=0.1)
    # Exponential, not even: a gap is longer than its mean with probability 1/e.
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.04)
    assert {len(one.prompt) for one in slow} == {5, 6, 7, 8, 9}
    assert sum(one.reply_tokens for one in slow) / 2000 == pytest.approx(50, rel=0.1)
    assert {one.at for one in plan(float("inf"), 5, 0, lengths("1"), lengths("1"))} == {0.0}


@pytest.mark.parametrize("wrong", ["", "0", "9-5", "-4", "exp:", "exp:0", "lognormal:9", "uniform:3", "x"])
def test_lengths_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="invalid lengths"):
        lengths(wrong)
    assert lengths("7")(random.Random(0)) == 7


# -- the client ---------------------------------------------------------------------------------------------------


async def test_no_request_waits_for_another() -> None:
    """The first is answered only when the last has come."""
    arrived, last = [], asyncio.Event()

    async def answer(body: dict[str, Any], send: Any) -> bool:
        arrived.append(body["messages"][0]["content"])
        if len(arrived) == 5:
            last.set()
        await last.wait()
        await send(text("a"))
        await send(text("b", "length"))
        await send(usage(3))
        await send("[DONE]")
        return True

    async with server(answer) as target:
        outcomes = await all_of(target, 5)
    assert [one.error for one in outcomes] == [None] * 5
    assert {(len(one.times), one.tokens, one.prompt_tokens, one.cached_tokens) for one in outcomes} == {(2, 3, 5, 2)}
    assert len(set(arrived)) == 5


async def test_what_waits_for_the_client_is_late_and_its_delay_counts() -> None:
    """One connection, and a server that takes a tenth of a second: the fifth has waited for four."""

    async def answer(body: dict[str, Any], send: Any) -> bool:
        await asyncio.sleep(0.1)
        await send(text("a", "length"))
        return True

    async with server(answer) as target:
        outcomes = await all_of(target, 5, max_in_flight=1)
    delays = sorted(one.times[0] - one.planned for one in outcomes)
    assert delays[-1] >= 0.5
    found = summarize(outcomes, GoodputSLO(first_token=0.45, per_token=1.0))
    assert found["client"]["late"] >= 4  # the first one, too, where the machine is slow
    assert found["ttft_ms"]["max"] >= 500
    assert found["good_share"] <= 0.8
    assert found["tokens_counted_by"] == "pieces of text"


async def test_errors_of_every_kind_are_counted() -> None:
    async def answer(body: dict[str, Any], send: Any) -> bool:
        number = next(numbers)
        if number == 1:
            await send(text("a"))
            return False  # the connection breaks off
        if number == 2:
            await send({"error": {"message": "the model is gone"}})
        elif number == 3:
            await send(text("a"))  # the stream ends, the reply did not
        elif number == 4:
            await send(text("", "stop"))
        else:
            await send(text("a", "stop"))
        return True

    numbers = iter(range(1, 6))
    async with server(answer) as target:
        outcomes = await all_of(target, 5, max_in_flight=1)
    found = summarize(outcomes, LIMITS)
    assert found["errors"] == {
        "the stream broke off": 1,
        "the model is gone": 1,
        "the stream ended before the reply did": 1,
        "the reply has no text": 1,
    }
    assert (found["answered"], found["good_share"]) == (1, 0.2)


async def test_refusals_and_those_that_take_too_long() -> None:
    async def refuse(body: dict[str, Any], send: Any) -> bool:
        await send("too many")
        return True

    async with server(refuse, "429 Too Many Requests") as target:
        (outcome,) = await all_of(target, 1)
    assert outcome.error is not None
    assert outcome.error.startswith("429: ")
    async with server(refuse) as target:
        outcomes = await all_of(target, 2, max_in_flight=1, timeout=0)
    assert sorted(one.error or "" for one in outcomes) == ["not finished within 0 s", "not started in time"]
    assert summarize(outcomes, LIMITS)["client"]["never_sent"] == 1
    (gone,) = await all_of(Target("http://127.0.0.1:9/v1", "m", chat=True), 1)
    assert gone.error is not None


# -- the sums -----------------------------------------------------------------------------------------------------


def reply(planned: float, first: float, gap: float, tokens: int) -> RequestOutcome:
    times = [planned + first + gap * step for step in range(tokens)]
    return RequestOutcome(planned, planned, times, times[-1], tokens)


def test_goodput_counts_what_is_quick_in_both_ways_against_all() -> None:
    outcomes = [
        reply(0.0, 0.5, 0.05, 11),  # good
        reply(1.0, 1.5, 0.05, 11),  # begins late
        reply(2.0, 0.5, 0.15, 11),  # goes on slowly
        reply(3.0, 0.9, 0.0, 1),  # good: of one token
        RequestOutcome(4.0, 4.0, [4.1], error="the stream broke off"),
    ]
    found = summarize(outcomes, LIMITS)
    assert found["seconds"] == pytest.approx(4.0)
    assert (found["good_share"], found["goodput_requests_per_s"]) == (0.4, 0.5)
    assert found["requests_per_s"] == 1.0
    assert (found["output_tokens"], found["output_tokens_per_s"]) == (34, 8.5)
    assert found["ttft_ms"] == {"mean": 850.0, "p50": 700.0, "p95": 1410.0, "p99": 1482.0, "max": 1500.0}
    assert found["tpot_ms"]["p50"] == 50.0
    assert found["itl_ms"]["max"] == pytest.approx(150.0)


def test_nothing_answered_has_no_latencies() -> None:
    found = summarize([RequestOutcome(0.0, error="refused")], LIMITS)
    assert (found["ttft_ms"], found["good_share"], found["output_tokens_per_s"]) == (None, 0.0, 0.0)
