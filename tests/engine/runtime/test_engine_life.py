"""Starting, draining, failing and starting again: what happens to the readers, and to the books."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from engine import (
    ChatMessage,
    Delta,
    Engine,
    EngineBusyError,
    EngineError,
    EngineOverloadedError,
    EngineSettings,
    EngineState,
    EngineStoppedError,
    FinishReason,
    ModelLoadError,
    SamplingParams,
)
from engine.execution.load import load_model
from engine.model.folders import UNKNOWN_LENGTH, expected_info
from engine.model.loaded_model import LoadedModel
from engine.runtime import model_loading
from engine.runtime.output_processor import StepOutput
from engine.runtime.supervisor import Supervisor
from testing.models import make_model
from testing.waiting import eventually

ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)
PROMPT = [11, 12, 13]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama")


def settings(model: Path, **more: object) -> EngineSettings:
    return EngineSettings(model=str(model), dtype="float32", **more)  # type: ignore[arg-type]


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    async with Engine(settings(model)) as running:
        yield running


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


async def until_first_token(engine: Engine, params: SamplingParams = ENDLESS) -> asyncio.Task[list[Delta]]:
    """A task that reads a reply to its end, once its first token is there."""
    arrived = asyncio.Event()

    async def follow() -> list[Delta]:
        deltas = []
        async for delta in engine.complete(PROMPT, params):
            deltas.append(delta)
            arrived.set()
        return deltas

    task = asyncio.create_task(follow())
    await arrived.wait()
    return task


async def settled(engine: Engine) -> None:
    """Wait until nothing is in flight: aborts cross over to the worker thread."""
    assert await asyncio.to_thread(engine._supervisor.running_worker().wait_idle, 60)


def books(engine: Engine) -> None:
    assert engine._core is not None
    engine._core.check()
    assert engine.stats().kv_cache_usage == 0


async def test_before_the_start_everything_says_so(model: Path) -> None:
    engine = Engine(settings(model))
    assert not engine.health().ready
    with pytest.raises(EngineStoppedError, match="not started"):
        await read(engine.complete(PROMPT))
    with pytest.raises(EngineStoppedError, match="not started"):
        engine.stats()


async def test_an_engine_that_starts_in_the_background_reports_its_state(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, load = threading.Event(), load_model

    def slowly(settings: EngineSettings, progress: Callable[[str, float], None]) -> LoadedModel:
        progress("Reading slowly", 0.5)
        assert held.wait(60)
        return load(settings, progress)

    monkeypatch.setattr(model_loading, "load_model", slowly)
    engine = Engine(settings(model))
    start = engine.start_in_background()
    assert engine.status.state is EngineState.STARTING, "at once"
    assert engine.info.name == "llama"
    await eventually(lambda: engine.status.stage == "Reading slowly")
    assert engine.status.progress == 0.5
    assert not engine.health().ready
    assert "still being loaded" in (engine.health().error or "")
    expected, stats = engine.info, engine.stats()
    assert stats.state is EngineState.STARTING
    assert engine.registry.get_sample_value("deskmate_engine_state", {"state": "starting"}) == 1
    assert engine.default_sampling_params == SamplingParams.neutral()
    for refused in (engine.complete(PROMPT), engine.chat([{"role": "user", "content": "hi"}])):
        with pytest.raises(EngineStoppedError, match="still being loaded"):
            await read(refused)
    for change in (engine.sleep(), engine.wake(), engine.swap(str(model))):
        with pytest.raises(EngineBusyError):
            await change
    assert await engine.drain(0)
    held.set()
    await start
    assert engine.health().ready
    assert engine.info.max_model_len == expected.max_model_len, "config.json has told it"
    assert len(await read(engine.complete(PROMPT, SHORT))) > 0
    await engine.stop()


def test_no_other_command_comes_between_the_announcement_of_a_start_and_the_start(model: Path) -> None:
    supervisor = Supervisor(settings(model), lambda _stage, _fraction: None)
    supervisor.announce_start()
    for command in (partial(supervisor.sleep, 0), supervisor.wake, partial(supervisor.swap, settings(model), 0)):
        with supervisor._exclusive, pytest.raises(EngineBusyError):
            command()
        with pytest.raises(EngineBusyError):  # also while the start does not hold the lock yet
            command()
    supervisor.start()
    assert supervisor.status.state is EngineState.READY
    supervisor.stop()


def test_a_start_leaves_the_garbage_collection_as_the_program_has_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is a library, too: objects of the program that were frozen would never be freed."""
    monkeypatch.setattr("engine.runtime.supervisor._MODEL_LOADING", "colorsys")  # stands for what is imported first
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    before = gc.get_threshold(), gc.isenabled()
    supervisor = Supervisor(settings(model), lambda _stage, _fraction: None)
    supervisor.start()
    supervisor.stop()
    assert "colorsys" in sys.modules
    assert (gc.get_threshold(), gc.isenabled()) == before
    assert not frozen


async def test_a_background_start_that_fails_or_is_cancelled_leaves_a_stopped_engine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Engine(EngineSettings(model=str(tmp_path / "nowhere")))
    start = wrong.start_in_background()
    assert wrong.info.name == str(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match="There is no model folder"):
        await start
    assert wrong.status.state is EngineState.STOPPED
    with pytest.raises(EngineStoppedError, match="not started"):
        wrong.stats()
    await wrong.stop()

    entered = threading.Event()

    def never(_settings: EngineSettings, progress: Callable[[str, float], None]) -> LoadedModel:
        entered.set()
        while True:
            progress("Reading for ever", 0.1)
            threading.Event().wait(0.01)

    monkeypatch.setattr(model_loading, "load_model", never)
    engine = Engine(settings(model))
    start = engine.start_in_background()
    assert await asyncio.to_thread(entered.wait, 60)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await eventually(lambda: engine.status.state is EngineState.STOPPED)
    monkeypatch.setattr(model_loading, "load_model", load_model)
    await engine.start()  # and can be started after all
    assert len(await read(engine.complete(PROMPT, SHORT))) > 0
    await engine.stop()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ('{"max_position_embeddings": 77}', 77),
        ('{"text_config": {"max_position_embeddings": 99}}', 99),
        ('{"max_position_embeddings": "many"}', UNKNOWN_LENGTH),
        ('{"max_position_embeddings": -5}', UNKNOWN_LENGTH),
        ('["a list"]', UNKNOWN_LENGTH),
        ("{", UNKNOWN_LENGTH),
        ("", UNKNOWN_LENGTH),
    ],
)
def test_what_is_expected_of_a_model_takes_any_config(tmp_path: Path, config: str, length: int) -> None:
    (tmp_path / "config.json").write_text(config)
    assert expected_info(EngineSettings(model=str(tmp_path))).max_model_len == length
    assert expected_info(EngineSettings(model=str(tmp_path), max_model_len=55)).max_model_len == 55


async def test_a_failed_start_can_be_tried_again(model: Path) -> None:
    engine = Engine(settings(model, num_kv_blocks=2, max_model_len=100))
    with pytest.raises(ModelLoadError, match="Lower max_model_len"):
        await engine.start()
    assert not engine.health().ready
    engine.settings = settings(model)
    await engine.start()
    assert len(await read(engine.complete(PROMPT, SHORT))) > 0
    await engine.stop()


async def test_warming_up_leaves_no_trace(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.num_steps) == (0, 0, 0)
    assert sum(stats.requests_finished.values()) == 0
    books(engine)


async def test_leaving_the_loop_frees_the_blocks(engine: Engine) -> None:
    async for delta in engine.complete(PROMPT, ENDLESS):
        if delta.token_ids:
            break
    await settled(engine)
    assert engine.stats().requests_finished["abort"] == 1
    books(engine)


async def test_cancelling_the_reader_frees_the_blocks(engine: Engine) -> None:
    task = await until_first_token(engine)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await settled(engine)
    books(engine)


HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]


async def test_forwarded_deltas_are_those_that_iterating_yields(engine: Engine) -> None:
    iterated = await read(engine.chat(HELLO, SHORT))
    forwarded: list[Delta] = []
    await engine.chat(HELLO, SHORT).forward_to(forwarded.append)
    for deltas in (iterated, forwarded):
        assert deltas[-1].is_last
        assert sum(delta.is_last for delta in deltas) == 1
    assert [token for delta in forwarded for token in delta.token_ids] == [
        token for delta in iterated for token in delta.token_ids
    ]
    assert "".join(delta.text for delta in forwarded) == "".join(delta.text for delta in iterated)
    await settled(engine)
    books(engine)


async def test_cancelling_a_forward_or_raising_in_its_callback_frees_the_blocks(engine: Engine) -> None:
    begun = asyncio.Event()
    forwarding = asyncio.create_task(engine.chat(HELLO, ENDLESS).forward_to(lambda _delta: begun.set()))
    await begun.wait()
    forwarding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forwarding
    await settled(engine)
    assert engine.stats().requests_finished["abort"] == 1

    def refuse(_delta: Delta) -> None:
        raise LookupError("not this one")

    with pytest.raises(LookupError):
        await engine.chat(HELLO, ENDLESS).forward_to(refuse)
    await settled(engine)
    assert engine.stats().requests_finished["abort"] == 2
    books(engine)


async def test_forwarding_raises_when_the_engine_stops(engine: Engine) -> None:
    begun = asyncio.Event()
    forwarding = asyncio.create_task(engine.chat(HELLO, ENDLESS).forward_to(lambda _delta: begun.set()))
    await begun.wait()
    await engine.stop()
    with pytest.raises(EngineStoppedError):
        await forwarding
    with pytest.raises(EngineStoppedError, match="not started"):
        await engine.chat(HELLO, ENDLESS).forward_to(lambda _delta: None)


async def test_draining_finishes_what_runs_and_refuses_what_comes(engine: Engine) -> None:
    task = await until_first_token(engine, SamplingParams(max_tokens=60, ignore_eos=True))
    worker = engine._supervisor.running_worker()
    draining = asyncio.create_task(engine.drain(30))
    await eventually(lambda: worker.refusal is not None)
    with pytest.raises(EngineStoppedError, match="takes no new requests"):
        await read(engine.complete(PROMPT, SHORT))
    assert await draining
    assert (await task)[-1].finish_reason is FinishReason.LENGTH
    assert not engine.health().ready


async def test_draining_gives_up_in_time(engine: Engine) -> None:
    task = await until_first_token(engine)
    assert not await engine.drain(0.01)
    task.cancel()


async def test_stopping_ends_every_reader_with_an_error(model: Path) -> None:
    others = set(threading.enumerate())
    engine = Engine(settings(model))
    await engine.start()
    task = await until_first_token(engine)
    await engine.stop()
    with pytest.raises(EngineStoppedError, match="stopped before the reply was finished"):
        await task
    assert not any(thread.name == "deskmate-engine" for thread in set(threading.enumerate()) - others)
    await engine.start()
    assert (await read(engine.complete(PROMPT, SHORT)))[-1].finish_reason is FinishReason.LENGTH
    await engine.stop()


@pytest.mark.usefixtures("single_steps")
async def test_unusable_scores_fail_their_own_request_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine._core is not None
    runner = engine._core.strategy.runner
    execute = runner.execute

    def poison(plan):  # type: ignore[no-untyped-def]
        logits = execute(plan).clone()
        for row, chunk in enumerate(plan.sampling):
            if chunk.request.prompt_token_ids[0] == 66 and chunk.request.num_output_tokens == 2:
                logits[row] = torch.nan
                for layer in runner.layers:  # as a broken kernel would leave it
                    layer.values[chunk.request.tables[0]] = torch.nan
        return logits

    monkeypatch.setattr(runner, "execute", poison)
    healthy = [asyncio.create_task(read(engine.complete([n, 2, 3], SHORT))) for n in (20, 30)]
    with pytest.raises(EngineError, match="no usable scores"):
        await read(engine.complete([66, 2, 3], SHORT))
    for task in healthy:
        assert sum(len(delta.token_ids) for delta in await task) == 5
    await settled(engine)
    assert engine.health().ready
    assert engine.stats().requests_finished["error"] == 1
    books(engine)
    # The blocks go to others next, who read the unused rows behind their own as padding.
    assert all(torch.isfinite(layer.values).all() for layer in runner.layers)


async def test_one_more_than_fits_is_refused_and_room_comes_back(model: Path) -> None:
    async with Engine(settings(model, max_num_seqs=2, max_waiting=1)) as engine:
        tasks = [await until_first_token(engine) for _ in range(2)]
        waiting = asyncio.create_task(read(engine.complete(PROMPT, SHORT)))
        await eventually(lambda: len(engine._supervisor.running_worker().readers) == 3)
        with pytest.raises(EngineOverloadedError, match="of at most 3"):
            await read(engine.complete(PROMPT, SHORT))
        with pytest.raises(EngineOverloadedError):
            await engine.prepare([{"role": "user", "content": "hi"}])
        for task in tasks:
            task.cancel()
        assert (await waiting)[-1].finish_reason is FinishReason.LENGTH


async def test_a_slow_reader_gets_everything_in_fewer_pieces(engine: Engine) -> None:
    deltas = []
    async for delta in engine.complete(PROMPT, SamplingParams(max_tokens=50, ignore_eos=True, temperature=0)):
        deltas.append(delta)
        await eventually(lambda: engine.stats().num_requests_running == 0)
    eager = await read(engine.complete(PROMPT, SamplingParams(max_tokens=50, ignore_eos=True, temperature=0)))
    assert len(deltas) < 50
    assert sum((delta.token_ids for delta in deltas), ()) == sum((delta.token_ids for delta in eager), ())
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in eager)


def test_offline_generation_keeps_the_order_and_needs_no_loop(model: Path) -> None:
    engine = Engine(settings(model, max_num_seqs=3, max_waiting=0))
    lengths = [7, 1, 5, 3, 9, 2, 4]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=0) for n in lengths]
    completions = engine.generate([[n + 10, 5] for n in range(7)], params, show_progress=False)
    assert [len(each.token_ids) for each in completions] == lengths
    assert [each.prompt_token_ids[0] for each in completions] == [n + 10 for n in range(7)]
    with pytest.raises(ValueError, match="2 prompts need as many params"):
        engine.generate(["a", "b"], params)
    asyncio.run(engine.stop())


async def test_offline_generation_refuses_to_block_a_loop(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="use complete"):
        engine.generate(["a"])


async def test_a_reader_whose_loop_is_gone_does_not_hold_blocks(engine: Engine) -> None:
    def visit() -> None:
        """Begins a reply in an event loop of its own and closes the loop without saying goodbye."""
        loop = asyncio.new_event_loop()
        stream = engine.complete(PROMPT, ENDLESS)
        loop.run_until_complete(anext(stream))
        loop.close()
        abandoned.append(stream)

    abandoned: list[object] = []
    await asyncio.to_thread(visit)
    await settled(engine)
    assert engine.health().ready
    books(engine)


async def test_prefill_progress_is_told_for_long_prompts(model: Path) -> None:
    async with Engine(settings(model, max_batched_tokens=64, max_num_seqs=8)) as engine:
        core = engine._supervisor.running_worker().core
        step, heard, told = core.step, threading.Event(), threading.Event()
        heard.set()

        def no_faster_than_the_reader(output: StepOutput | None = None) -> StepOutput:
            heard.wait(10)
            if not told.is_set():
                heard.clear()
            return step(output)

        core.step = no_faster_than_the_reader  # type: ignore[method-assign]
        deltas = []
        async for delta in engine.complete(list(range(20, 220)), SHORT):
            deltas.append(delta)
            if delta.progress is not None and delta.progress.processed == 192:
                told.set()  # the steps that follow are told of in fewer deltas than there are steps
            heard.set()
        seen = [delta.progress.processed for delta in deltas if delta.progress is not None]
        assert seen[:3] == [64, 128, 192]
        assert all(delta.progress is None or delta.progress.total == 200 for delta in deltas)
