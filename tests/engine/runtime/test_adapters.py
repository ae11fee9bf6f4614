"""LoRA adapters in a running engine: chosen by name, kept through sleep and swap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import (
    LLM,
    ChatMessage,
    ChatOptions,
    Engine,
    EngineSettings,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    SamplingParams,
)
from testing.lora import make_adapter
from testing.models import make_model

SHORT = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "base", eos=False)


@pytest.fixture(scope="module")
def other(base: Path) -> Path:
    return make_model(base.parent / "other", "qwen3", hidden=32, eos=False)


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    return make_adapter(base.parent / "adapter", base)


def settings(base: Path, adapter: Path) -> EngineSettings:
    return EngineSettings(model=str(base), dtype="float32", kv_cache_memory=0.05, lora=(f"mine={adapter}",))


@pytest.fixture
async def engine(base: Path, adapter: Path) -> AsyncIterator[Engine]:
    async with Engine(settings(base, adapter)) as running:
        yield running


async def reply(engine: Engine, adapter: str | None) -> list[int]:
    deltas = engine.complete(list(range(7, 30)), SHORT, adapter=adapter)
    return [token async for delta in deltas for token in delta.token_ids]


async def test_adapters_outlive_sleep_and_return_with_their_model(engine: Engine, base: Path, other: Path) -> None:
    expected = [await reply(engine, "mine"), await reply(engine, None)]
    assert expected[0] != expected[1]
    await engine.sleep()
    await engine.wake()
    assert [await reply(engine, "mine"), await reply(engine, None)] == expected
    await engine.swap(str(other))
    assert not engine.info.adapters
    with pytest.raises(InvalidRequestError, match="No adapter is loaded under the name 'mine'"):
        await reply(engine, "mine")
    await engine.swap(str(base))
    assert list(engine.info.adapters) == ["mine"]
    assert await reply(engine, "mine") == expected[0]


async def test_an_adapter_of_another_base_keeps_the_engine_from_starting(adapter: Path, other: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        await Engine(settings(other, adapter)).start()


async def test_an_adapter_needs_a_name_of_its_own(base: Path, adapter: Path) -> None:
    chosen = settings(base, adapter).model_copy(update={"lora": (f"base={adapter}",)})
    with pytest.raises(ModelLoadError, match="has the name of the model"):
        await Engine(chosen).start()


async def test_an_adapter_is_loaded_and_unloaded_while_replies_are_written(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    second = make_adapter(tmp_path / "second", base, seed=2)
    async with Engine(settings(base, second)) as other:
        expected = await reply(other, "mine")
    async with Engine(settings(base, adapter)) as engine:
        first = await reply(engine, "mine")
        endless = engine.complete([5, 6, 7], SamplingParams(max_tokens=400, ignore_eos=True), adapter="mine")
        written = asyncio.create_task(anext(endless))
        await written
        await engine.load_adapter("second", second)
        assert list(engine.info.adapters) == ["mine", "second"]
        assert await reply(engine, "second") == expected
        await engine.unload_adapter("mine")
        assert list(engine.info.adapters) == ["second"]
        await anext(endless)  # goes on
        await endless.aclose()
        with pytest.raises(InvalidRequestError, match="No adapter is loaded under the name 'mine'"):
            await reply(engine, "mine")
        await engine.sleep()
        with pytest.raises(EngineStoppedError):
            await engine.load_adapter("mine", adapter)
        await engine.wake()
        assert list(engine.info.adapters) == ["second"]
        assert await reply(engine, "second") == expected
        await engine.load_adapter("mine", adapter)
        assert await reply(engine, "mine") == first


def test_chats_offline_choose_an_adapter(base: Path, adapter: Path) -> None:
    chat: list[ChatMessage] = [{"role": "user", "content": "hello"}]
    with LLM(str(base), show_progress=False, kv_cache_memory=0.05, lora=(f"mine={adapter}",)) as llm:
        one, other = llm.chat([chat, chat], SHORT, [ChatOptions(adapter="mine"), ChatOptions()])
    assert one.token_ids != other.token_ids


async def test_what_cannot_be_loaded_changes_nothing(engine: Engine, base: Path, adapter: Path, tmp_path: Path) -> None:
    for name, folder, message in (
        ("mine", adapter, "already loaded under the name mine"),
        ("base", adapter, "has the name of the model"),
        ("a b", adapter, "cannot be named 'a b'"),
        ("other", tmp_path, "there is no adapter_config.json"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            await engine.load_adapter(name, folder)
    with pytest.raises(InvalidRequestError, match="No adapter is loaded under the name 'other'"):
        await engine.unload_adapter("other")
    assert list(engine.info.adapters) == ["mine"]
    assert engine.settings.lora == (f"mine={adapter}",)


async def test_an_adapter_larger_than_the_memory_is_not_read(
    engine: Engine, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.execution.adapters.available_memory", lambda _device: 10_000)
    with pytest.raises(ModelLoadError, match=r"takes [\d,]+ MB of memory, and only 0 MB are free"):
        await engine.load_adapter("other", adapter)
