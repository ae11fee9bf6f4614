"""A reply that takes too long ends with what it has; a request that has not begun by then is told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from engine import Delta, Engine, EngineSettings, FinishReason, InvalidRequestError, SamplingParams
from engine.errors import DeadlineError
from engine.execution.runner import Runner
from testing.models import make_model
from testing.waiting import eventually

ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
PROMPT = [20, 12, 13]


class Clock:
    """The clock of the replies in flight, put forward by the test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("engine.runtime.output_processor.monotonic", clock)
    return clock


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", eos=False)


@pytest.fixture
async def engine(model: Path, clock: Clock) -> AsyncIterator[Engine]:
    async with Engine(EngineSettings(model=str(model), dtype="float32", max_num_seqs=1)) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


@pytest.mark.usefixtures("single_steps")
async def test_a_reply_past_its_deadline_ends_with_its_text(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = "".join(delta.text for delta in await read(engine.complete(PROMPT, ENDLESS)))
    execute, steps = Runner.execute, []

    def count(self, plan):  # type: ignore[no-untyped-def]
        steps.append(1)
        clock.ahead += 1000 * (len(steps) == 8)
        return execute(self, plan)

    monkeypatch.setattr(Runner, "execute", count)
    deltas = await read(engine.complete(PROMPT, ENDLESS, deadline=500))
    text = "".join(delta.text for delta in deltas)
    assert deltas[-1].finish_reason is FinishReason.DEADLINE
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.completion_tokens == sum(len(delta.token_ids) for delta in deltas) == 8
    assert text
    assert whole.startswith(text)
    assert engine.stats().requests_finished["deadline"] == 1
    await eventually(lambda: engine.stats().kv_cache_usage == 0)
    engine._core.check()


async def test_a_request_that_still_waits_is_told_so(engine: Engine, clock: Clock) -> None:
    running = asyncio.create_task(read(engine.complete(PROMPT, ENDLESS)))
    await eventually(lambda: engine.stats().generation_tokens > 0)
    waiting = asyncio.create_task(read(engine.complete(PROMPT, ENDLESS, deadline=500)))
    await eventually(lambda: engine.stats().num_requests_waiting == 1)
    clock.ahead += 600
    with pytest.raises(DeadlineError, match="within its deadline of 500 seconds"):
        await waiting
    assert (await running)[-1].finish_reason is FinishReason.LENGTH


async def test_a_deadline_far_away_changes_nothing(engine: Engine) -> None:
    deltas = await read(engine.complete(PROMPT, ENDLESS, deadline=1e9))
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert not engine._core._output_processor._deadlines


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf")])
async def test_a_deadline_that_is_no_time_to_come_is_refused(engine: Engine, deadline: float) -> None:
    with pytest.raises(InvalidRequestError, match="deadline must be a number of seconds greater than 0"):
        await read(engine.complete(PROMPT, ENDLESS, deadline=deadline))
