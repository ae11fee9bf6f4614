"""LoRA adapters in a running engine: chosen by name, kept through sleep and swap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import Engine, EngineSettings, InvalidRequestError, ModelLoadError, SamplingParams
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
