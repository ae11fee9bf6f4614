"""A step fails: its requests end with a sentence, the engine starts again, and nobody is taken down twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Delta, Engine, EngineSettings, EngineState, EngineStoppedError, FinishReason, SamplingParams
from engine.errors import EngineFailedError, PoisonedPromptError
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.runtime import model_loading
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_processor import OutputProcessor, StepOutput
from engine.scheduling.block_pool import BlockPool, IntegrityError
from engine.scheduling.step_plan import StepPlan
from testing.models import make_model
from testing.waiting import eventually

ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)
POISON = 66


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", eos=False)


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    # Faults are put into transformers' modules.
    settings = EngineSettings(model=str(model), dtype="float32", native=False, max_num_seqs=4, max_batched_tokens=64)
    async with Engine(settings) as running:
        yield running


class Fault:
    """Breaks steps of every runner, those of later cores too."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError("the device fell off")
        self.once = False  #: break the next step, whoever is in it
        self.poison = False  #: break each step with the poisoned prompt in it, once it has three tokens of reply
        self.broken: list[set[int]] = []  #: first tokens of the prompts in each broken step

    def strike(self, plan: StepPlan) -> None:
        if plan.chunks[0].request.id == "warm-up":
            return
        poisoned = any(
            chunk.request.prompt_token_ids[0] == POISON and chunk.request.num_output_tokens == 3
            for chunk in plan.chunks
        )
        if self.once or (self.poison and poisoned):
            self.once = False
            self.broken.append({chunk.request.prompt_token_ids[0] for chunk in plan.chunks})
            raise self.error


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    fault = Fault()
    execute, execute_steps = Runner.execute, Runner.execute_steps

    def faulty(self: Runner, plan: StepPlan) -> object:
        fault.strike(plan)
        return execute(self, plan)

    def faulty_several(self: Runner, plan: StepPlan, *others: Any) -> object:
        fault.strike(plan)
        return execute_steps(self, plan, *others)

    monkeypatch.setattr(Runner, "execute", faulty)
    monkeypatch.setattr(Runner, "execute_steps", faulty_several)
    return fault


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


def begin(engine: Engine, first: int, params: SamplingParams = ENDLESS) -> asyncio.Task[list[Delta]]:
    return asyncio.create_task(read(engine.complete([first, 12, 13], params)))


async def running(engine: Engine, count: int) -> None:
    await eventually(lambda: engine.stats().num_requests_running == count)


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def settled(engine: Engine) -> None:
    await eventually(lambda: engine.status.state is EngineState.READY and not engine._core.has_work)
    engine._core.check()
    assert engine.stats().kv_cache_usage == 0


async def test_those_in_the_step_fail_and_those_that_waited_are_served(engine: Engine, fault: Fault) -> None:
    expected = tokens(await begin(engine, 30, SHORT))
    tasks = [begin(engine, first) for first in (20, 21, 22, 23)]  # as many as run at once
    await running(engine, 4)
    waiting = begin(engine, 30, SHORT)
    await eventually(lambda: engine.stats().num_requests_waiting == 1)
    fault.once = True
    for task in tasks:
        with pytest.raises(EngineFailedError, match=r"the device fell off.*restarts by itself"):
            await task
    assert tokens(await waiting) == expected
    await settled(engine)
    assert engine.status.num_restarts == 1
    assert engine.stats().requests_finished["error"] == 4


async def test_a_reply_that_ended_before_the_failure_has_its_end(
    engine: Engine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline passes at the beginning of the very step that fails."""
    ends = asyncio.create_task(read(engine.complete([20, 12, 13], ENDLESS, deadline=500)))
    fails = begin(engine, 21)
    await running(engine, 2)
    expire_overdue = OutputProcessor.expire_overdue

    def expire(self: OutputProcessor, output: StepOutput) -> None:
        if self._deadlines:
            self._deadlines = dict.fromkeys(self._deadlines, 0.0)
            fault.once = True
        expire_overdue(self, output)

    monkeypatch.setattr(OutputProcessor, "expire_overdue", expire)
    with pytest.raises(EngineFailedError):
        await fails
    async with asyncio.timeout(10):
        assert (await ends)[-1].finish_reason is FinishReason.DEADLINE
    await settled(engine)


async def test_a_reply_whose_end_is_what_fails_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks cannot be released: by then it has left the scheduler."""
    release, broken = BlockPool.release, [True]

    def fail_once(self: BlockPool, blocks: Any) -> None:
        if blocks and broken:
            broken.clear()
            raise IntegrityError("no request holds it")
        release(self, blocks)

    monkeypatch.setattr(BlockPool, "release", fail_once)
    with pytest.raises(EngineFailedError, match="no request holds it"):
        async with asyncio.timeout(10):
            await begin(engine, 20, SHORT)
    await settled(engine)


def test_another_core_goes_on_where_the_failed_one_stood(model: Path) -> None:
    """Also with requests that had been computed in part: their tokens stay, their blocks are gone."""
    settings = EngineSettings(model=str(model), dtype="float32", max_num_seqs=4, max_batched_tokens=8)
    loaded = load_model(settings, lambda *_: None)
    prompts = [[20, 12, 13], list(range(30, 60)), [40, 41]]

    def cores() -> tuple[EngineCore, EngineCore]:
        core = EngineCore(loaded, settings)
        for number, prompt in enumerate(prompts):
            core.add(
                core.request_processor.process(f"r{number}", prompt, core.request_processor.resolve(prompt, SHORT))
            )
        return core, EngineCore(loaded, settings)

    def finish(core: EngineCore) -> dict[str, list[int]]:
        requests = [one.request for one in core._submissions.values()]
        while core.has_work:
            core.step()
        return {request.id: request.token_ids for request in requests}

    core, other = cores()
    expected = finish(core)
    core, other = cores()
    for _ in range(3):
        core.step()
    core.strategy.request_ids = ()  # nobody is to blame
    failed, waiting = core.evacuate()
    assert (failed, len(waiting)) == ([], 3)
    assert {one.request.num_output_tokens > 0 for one in waiting} == {True, False}
    for submission in waiting:
        other.add(submission)
    assert finish(other) == expected
    other.check()


async def test_ready_tells_while_it_restarts_and_requests_that_come_wait(
    engine: Engine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, entered = threading.Event(), threading.Event()
    rebuild = engine._supervisor.running_worker()._rebuild

    def slowly(model):  # type: ignore[no-untyped-def]
        entered.set()
        assert held.wait(20)
        return rebuild(model)

    engine._supervisor.running_worker()._rebuild = slowly
    fault.once = True
    with pytest.raises(EngineFailedError):
        await begin(engine, 20)
    assert await asyncio.to_thread(entered.wait, 20)
    assert not engine.health().ready
    assert "the device fell off" in (engine.health().error or "")
    assert engine.status.state is EngineState.RESTARTING
    late = begin(engine, 30, SHORT)
    await asyncio.sleep(0.05)
    assert not late.done()
    held.set()
    assert len(tokens(await late)) == 5
    assert engine.health().ready


@pytest.mark.slow
async def test_a_poisoned_prompt_takes_others_down_once_and_is_refused_after_its_second_failure(
    engine: Engine, fault: Fault
) -> None:
    fault.poison = True
    others = [begin(engine, first) for first in (20, 21)]
    await running(engine, 2)
    poisoned = begin(engine, POISON)
    for task in (*others, poisoned):
        with pytest.raises(EngineFailedError):
            await task
    # All of them try again, and again.
    expected = tokens(await begin(engine, 30, ENDLESS))[:20]
    long = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
    again = [begin(engine, first, long) for first in (20, 30, 21)]
    with pytest.raises(EngineFailedError):
        await begin(engine, POISON)
    assert tokens(await again[1]) == expected
    assert [len(tokens(await task)) for task in again] == [20, 20, 20]
    for _ in range(3):
        with pytest.raises(PoisonedPromptError, match="2 times"):
            await begin(engine, POISON)
    assert fault.broken == [{20, 21, POISON}, {POISON}]
    await settled(engine)


async def test_a_suspect_that_was_innocent_runs_with_others_again(engine: Engine, fault: Fault) -> None:
    fault.once = True
    with pytest.raises(EngineFailedError):
        await begin(engine, 20)
    first = begin(engine, 20)
    await running(engine, 1)
    second = begin(engine, 21)
    await running(engine, 2)  # both at once, long before the first has ended
    fault.once = True
    for task in (first, second):
        with pytest.raises(EngineFailedError):
            await task
    # It was cleared in between, so this was its first failure: it is not refused.
    assert len(tokens(await begin(engine, 20, SHORT))) == 5


async def test_weights_that_cannot_be_used_again_are_read_again(
    engine: Engine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runtime.worker.BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    loaded = []
    load = load_model
    monkeypatch.setattr(model_loading, "load_model", lambda *args: loaded.append(1) or load(*args))
    expected = tokens(await begin(engine, 20, SHORT))
    task = begin(engine, 21)
    await running(engine, 1)
    module: Any = engine._core.model.module
    weights = module.model.layers[0].mlp
    weights.forward = lambda *_: 1 / 0  # stays broken, whoever computes with these weights
    with pytest.raises(EngineFailedError, match="division by zero"):
        await task
    assert tokens(await begin(engine, 20, SHORT)) == expected
    assert loaded == [1]


async def test_an_engine_that_cannot_start_again_says_why_and_can_be_woken(
    engine: Engine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runtime.worker.BACKOFF_SECONDS", (0.0, 0.0))
    task = begin(engine, 20)
    await running(engine, 1)
    core = EngineCore
    monkeypatch.setattr(model_loading, "EngineCore", lambda *_: (_ for _ in ()).throw(MemoryError()))
    fault.once = True
    with pytest.raises(EngineFailedError):
        await task
    await eventually(lambda: engine.status.state is EngineState.FAILED)
    assert "could not restart: it ran out of memory" in (engine.health().error or "")
    with pytest.raises(EngineStoppedError, match="could not restart"):
        await begin(engine, 21)
    monkeypatch.setattr(model_loading, "EngineCore", core)
    await engine.wake()
    assert engine.health().ready
    assert len(tokens(await begin(engine, 21, SHORT))) == 5


async def test_an_engine_that_fails_all_the_time_stays_down(
    engine: Engine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runtime.worker.MAX_FAILURES_PER_WINDOW", 3)
    worker = engine._supervisor.running_worker()
    worker._failed_at = type(worker._failed_at)(maxlen=3)
    for first in (20, 21, 22):
        assert engine.status.state is not EngineState.FAILED
        fault.once = True
        with pytest.raises(EngineFailedError):
            await begin(engine, first)
    await eventually(lambda: engine.status.state is EngineState.FAILED)
    assert "3 times" in (engine.health().error or "")


async def test_out_of_memory_says_what_to_lower(engine: Engine, fault: Fault) -> None:
    fault.error, fault.once = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.20 GiB"), True
    with pytest.raises(EngineFailedError, match="max_num_seqs"):
        await begin(engine, 20)
    await settled(engine)
    assert (await begin(engine, 21, SHORT))[-1].finish_reason is FinishReason.LENGTH
