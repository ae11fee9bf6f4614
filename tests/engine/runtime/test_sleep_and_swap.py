"""Letting go of a model and taking another, with replies in flight and with models that cannot be loaded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import (
    Delta,
    Engine,
    EngineBusyError,
    EngineSettings,
    EngineState,
    EngineStoppedError,
    FinishReason,
    ModelLoadError,
    ReplyInterruptedError,
    SamplingParams,
)
from engine.execution.batch import Batch
from engine.execution.load import load_model
from engine.execution.native.decoder import Decoder
from engine.execution.native.multi_step import Host, MultiStepOutput, MultiStepRow
from engine.model import memory_fit
from engine.runtime import model_loading
from engine.runtime.engine_core import EngineCore
from engine.runtime.supervisor import Supervisor
from testing.hub import Hub
from testing.models import make_model
from testing.waiting import eventually

MIB = 1024**2
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "one", eos=False)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "two", "qwen3", seed=5, eos=False)


@pytest.fixture
async def engine(one: Path) -> AsyncIterator[Engine]:
    async with Engine(EngineSettings(model=str(one), dtype="float32", kv_cache_memory=0.05)) as running:
        yield running


async def reply(engine: Engine, params: SamplingParams = SHORT) -> list[int]:
    return [token async for delta in engine.complete([20, 12, 13], params) for token in delta.token_ids]


async def started(engine: Engine, params: SamplingParams = ENDLESS) -> asyncio.Task[list[int]]:
    task = asyncio.create_task(reply(engine, params))
    await eventually(lambda: engine.stats().generation_tokens > 0)
    return task


SLEEP_AND_WAKE = """
import asyncio, json, sys
from pathlib import Path
from engine import Engine, EngineSettings, SamplingParams

def resident():
    \"\"\"Bytes of this process that are in memory and not merely files mapped into it.\"\"\"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

def settings(model):
    return EngineSettings(model=model, dtype="float32", kv_cache_memory=60 / 1024, max_model_len=512)

async def reply(engine):
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)
    return [token async for delta in engine.complete([20, 12, 13], params) for token in delta.token_ids]

async def main(tiny, big):
    async with Engine(settings(tiny)) as engine:  # so that everything that a start imports and builds is there
        await reply(engine)
    found = {"before": resident()}
    async with Engine(settings(big)) as engine:
        expected = await reply(engine)
        unread = engine.complete([20, 12, 13], SamplingParams(max_tokens=5, ignore_eos=True))
        await anext(unread)  # a generator that nobody closed must not hold the model
        found["awake"] = resident()
        await engine.sleep()
        found["asleep"] = resident()
        await engine.wake()
        found["same"] = await reply(engine) == expected
        await unread.aclose()
    print(json.dumps(found))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.slow
def test_sleep_gives_the_memory_back_and_wake_answers_as_before(one: Path, tmp_path: Path) -> None:
    """130 MB of weights and 60 MiB of cache, in a process of its own: what other tests freed counts for nothing."""
    path = make_model(tmp_path / "big", eos=False, std=0.05, hidden=1024, heads=16, kv_heads=16, layers=3)
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert weights > 100 * MIB
    command = [sys.executable, "-c", SLEEP_AND_WAKE, str(one), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    awake, asleep = found["awake"] - found["before"], found["asleep"] - found["before"]
    assert awake > weights
    assert asleep < 0.5 * weights, f"{asleep / MIB:.0f} MiB stayed of {weights / MIB:.0f}"
    assert found["same"]


async def test_asleep_it_refuses_says_so_and_keeps_its_name_and_its_counts(engine: Engine) -> None:
    await reply(engine)
    before, info = engine.stats(), engine.info
    await engine.sleep()
    await engine.sleep()  # twice is no error
    assert engine.status.state is EngineState.ASLEEP
    assert "asleep" in (engine.health().error or "")
    for refused in (reply(engine), engine.prepare([{"role": "user", "content": "hi"}])):
        with pytest.raises(EngineStoppedError, match=r"asleep.*Wake it up"):
            await refused
    assert engine.info == info
    assert engine.stats().generation_tokens == before.generation_tokens == 5
    assert engine.registry.get_sample_value("deskmate_generation_tokens_total") == 5
    assert engine.registry.get_sample_value("deskmate_engine_state", {"state": "asleep"}) == 1
    assert engine.registry.get_sample_value("deskmate_engine_state", {"state": "ready"}) == 0
    await engine.wake()
    await engine.wake()
    await reply(engine)
    assert engine.stats().generation_tokens == 10
    assert engine.registry.get_sample_value("deskmate_time_to_first_token_seconds_count") == 2


async def test_a_request_at_the_moment_of_falling_asleep_is_told_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is gone, and the state is not changed yet."""
    refusals = list[str]()
    close = Supervisor._close_worker

    def close_and_ask(self: Supervisor, *args: Any) -> Any:
        core = close(self, *args)
        with pytest.raises(EngineStoppedError) as caught:
            self.running_worker()
        refusals.append(str(caught.value))
        return core

    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "_close_worker", close_and_ask)
        await engine.sleep()
    assert len(refusals) == 1
    assert "asleep" in refusals[0]


@pytest.mark.parametrize("act", ["sleep", "swap"])
async def test_replies_in_flight_are_finished_first(engine: Engine, two: Path, act: str) -> None:
    task = await started(engine, SamplingParams(max_tokens=60, ignore_eos=True, temperature=0))
    await (engine.sleep() if act == "sleep" else engine.swap(str(two)))
    assert len(await task) == 60


@pytest.mark.parametrize("act", ["sleep", "swap"])
async def test_replies_that_take_too_long_are_interrupted(
    engine: Engine, two: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Decoder.execute_steps

    def slowly(
        decoder: Decoder,
        batch: Batch,
        replies: Sequence[MultiStepRow],
        _max_steps: int,
        host: Host | None = None,
    ) -> MultiStepOutput:
        time.sleep(0.02)  # or the reply ends while the other model is loaded
        return execute(decoder, batch, replies, 1, host)

    monkeypatch.setattr(Decoder, "execute_steps", slowly)  # with AVX2: elsewhere steps are slow enough
    task = await started(engine)
    await (engine.sleep(0.01) if act == "sleep" else engine.swap(str(two), timeout=0.01))
    with pytest.raises(ReplyInterruptedError, match="before the reply was finished"):
        await task


async def test_after_a_swap_the_other_model_answers(engine: Engine, one: Path, two: Path) -> None:
    first = await reply(engine)
    await engine.swap(str(two))
    assert engine.info.name == "two"
    assert engine.health().ready
    second = await reply(engine)
    assert second != first
    await engine.swap(str(one))
    assert await reply(engine) == first
    assert engine.stats().generation_tokens == 15


async def test_a_swap_wakes_it_up(engine: Engine, two: Path) -> None:
    await engine.sleep()
    await engine.swap(str(two))
    assert engine.info.name == "two"
    assert len(await reply(engine)) == 5


async def test_a_model_of_the_hub_is_fetched_while_the_old_one_serves(
    engine: Engine, two: Path, tmp_path: Path
) -> None:
    with Hub(two).running(tmp_path / "cache") as hub:
        hub.resume.clear()
        swap = asyncio.create_task(engine.swap("somebody/model"))
        assert await asyncio.to_thread(hub.paused.wait, 20)
        await eventually(lambda: engine.status.stage == "Downloading somebody/model")
        await eventually(lambda: (engine.status.progress or 0) > 0.4)
        assert not hub.resume.is_set()
        assert engine.health().ready
        assert len(await reply(engine)) == 5
        hub.resume.set()
        await swap
        assert engine.info.name == "somebody/model"
        with pytest.raises(ModelLoadError, match="nobody/nothing"):
            await engine.swap("nobody/nothing")
        assert len(await reply(engine)) == 5


async def test_a_start_that_is_given_up_waits_for_no_download(two: Path, tmp_path: Path) -> None:
    with Hub(two).running(tmp_path / "cache") as hub:
        hub.resume.clear()
        engine = Engine(EngineSettings(model="somebody/model", dtype="float32", kv_cache_memory=0.05))
        start = asyncio.create_task(engine.start())
        assert await asyncio.to_thread(hub.paused.wait, 20)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not hub.resume.is_set()
        hub.resume.set()
        await eventually(lambda: not engine._supervisor._exclusive.locked())
        await engine.start()  # and can be started after all
        assert len(await reply(engine)) == 5
        await engine.stop()


async def test_requests_during_a_swap_are_told_and_a_second_swap_waits_for_nobody(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, entered = threading.Event(), threading.Event()
    load = load_model

    def slowly(*args):  # type: ignore[no-untyped-def]
        entered.set()
        assert held.wait(20)
        return load(*args)

    monkeypatch.setattr(model_loading, "load_model", slowly)
    swap = asyncio.create_task(engine.swap(str(two)))
    assert await asyncio.to_thread(entered.wait, 20)
    assert engine.status.state is EngineState.SWAPPING
    with pytest.raises(EngineStoppedError, match="Another model is being loaded"):
        await reply(engine)
    with pytest.raises(EngineBusyError):
        await engine.swap(str(two))
    with pytest.raises(EngineBusyError):
        await engine.sleep()
    assert engine.info.name == "one"
    held.set()
    await swap
    assert len(await reply(engine)) == 5


def no_such_folder(two: Path) -> EngineSettings:
    return EngineSettings(model=str(two / "nowhere"))


def damaged_weights(two: Path) -> EngineSettings:
    copy = two.parent / "damaged"
    copy.mkdir(exist_ok=True)
    for file in two.iterdir():
        content = file.read_bytes()
        (copy / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    return EngineSettings(model=str(copy), dtype="float32")


def no_room_for_the_cache(two: Path) -> EngineSettings:
    return EngineSettings(model=str(two), dtype="float32", num_kv_blocks=2, max_model_len=400)


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "one after the other"])
@pytest.mark.parametrize("fault", [no_such_folder, damaged_weights, no_room_for_the_cache])
async def test_a_model_that_cannot_be_loaded_leaves_the_old_one_serving(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any], beside: bool
) -> None:
    monkeypatch.setattr(model_loading, "can_fit", lambda *_: beside)
    loaded = []
    load = load_model
    monkeypatch.setattr(model_loading, "load_model", lambda s, p: loaded.append(Path(s.model).name) or load(s, p))
    expected = await reply(engine)
    with pytest.raises(ModelLoadError, match=r"There is no model folder|cannot be read|Lower max_model_len"):
        await engine.swap(fault(two))
    assert engine.health().ready
    assert engine.info.name == "one"
    assert Path(engine.settings.model).name == "one"
    assert await reply(engine) == expected
    if beside:
        assert "one" not in loaded, "it was kept and need not be read again"


async def test_a_failure_nobody_foresaw_leaves_the_old_one_too(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = EngineCore

    def explode(model, settings):  # type: ignore[no-untyped-def]
        if model.name == "two":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return core(model, settings)

    monkeypatch.setattr(model_loading, "EngineCore", explode)
    with pytest.raises(ModelLoadError, match="not enough memory"):
        await engine.swap(str(two))
    assert len(await reply(engine)) == 5


async def test_a_slept_model_that_is_gone_keeps_it_asleep_and_can_be_tried_again(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", eos=False)
    async with Engine(EngineSettings(model=str(path), dtype="float32")) as engine:
        await engine.sleep()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(ModelLoadError):
            await engine.wake()
        assert engine.status.state is EngineState.ASLEEP
        (tmp_path / "elsewhere").rename(path)
        await engine.wake()
        assert len(await reply(engine)) == 5


@pytest.mark.parametrize("when", ["Loading weights", "Warming up"])
async def test_a_start_that_is_cancelled_ends_at_once_and_can_be_repeated(one: Path, when: str) -> None:
    reached, others = threading.Event(), set(threading.enumerate())

    def progress(stage: str, _fraction: float) -> None:
        if stage == when:
            reached.set()

    def own_threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each not in others and each.name.startswith("deskmate")]

    engine = Engine(EngineSettings(model=str(one), dtype="float32"), progress=progress)
    # Slow from there on: each further piece waits for the cancellation.
    report = engine._supervisor._report

    def slow(stage: str, fraction: float) -> None:
        report(stage, fraction)
        if stage == when:
            engine._supervisor._cancelled.wait(20)

    engine._supervisor._report = slow  # type: ignore[method-assign]
    start = asyncio.create_task(engine.start())
    assert await asyncio.to_thread(reached.wait, 20)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await eventually(lambda: not own_threads())
    assert engine.status.state is EngineState.STOPPED
    engine._supervisor._report = report  # type: ignore[method-assign]
    await engine.start()
    assert len(await reply(engine)) == 5
    await engine.stop()


async def test_stopping_in_the_middle_of_a_swap_gives_it_up(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = threading.Event()
    load = load_model

    def slowly(settings, progress):  # type: ignore[no-untyped-def]
        entered.set()
        assert engine._supervisor._cancelled.wait(20)
        return load(settings, progress)

    monkeypatch.setattr(model_loading, "load_model", slowly)
    swap = asyncio.create_task(engine.swap(str(two)))
    assert await asyncio.to_thread(entered.wait, 20)
    await engine.stop()
    with pytest.raises(ModelLoadError, match="was cancelled"):
        await swap
    assert engine.status.state is EngineState.STOPPED


async def test_a_reply_that_is_read_late_is_whole(engine: Engine, two: Path) -> None:
    stream = engine.complete([20, 12, 13], SHORT)
    got: list[Delta] = [await anext(stream)]
    await engine.swap(str(two))
    got += [delta async for delta in stream]
    assert sum(len(delta.token_ids) for delta in got) == 5
    assert got[-1].finish_reason is FinishReason.LENGTH


async def test_a_model_larger_than_memory_is_refused_while_the_old_one_serves(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the memory that the old model would leave is too small, so it is not unloaded for nothing."""
    expected = await reply(engine)
    monkeypatch.setattr(memory_fit, "available_memory", lambda _device: 0)
    monkeypatch.setattr(model_loading, "_memory_of", lambda _core: 1000)
    closed: list[object] = []
    monkeypatch.setattr(Supervisor, "_close_worker", lambda *arguments: closed.append(arguments))
    with pytest.raises(ModelLoadError, match=r"needs .* MB for its weights .* are free"):
        await engine.swap(str(two))
    assert not closed
    monkeypatch.undo()
    assert engine.status.state is EngineState.READY
    assert await reply(engine) == expected
