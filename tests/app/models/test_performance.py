"""Whether a model's weights fit into memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from app.models import performance
from app.models.local_model import LocalModel, Source, Weights
from app.models.scan import Scan
from app.services.container import Services
from engine import EngineSettings, EngineState, ModelInfo
from testing.fake_engine import FakeEngine

SIZE = 10**9


def model(format_: str) -> LocalModel:
    weights = Weights(format_, SIZE, SIZE, 4096)
    return LocalModel(name="model", source=Source.MODELS_DIR, target="folder", size_bytes=SIZE, weights=weights)


@pytest.mark.parametrize(
    ("format_", "quantization", "share"),
    [
        ("BF16", "none", 1.0),
        ("BF16", "int8", 0.55),
        ("BF16", "auto", 0.4),  # int4, if it must
        ("AWQ 4-bit", "auto", 1.0),
        ("AWQ 4-bit", "none", 1.0),
    ],
)
def test_the_memory_that_weights_take(
    format_: str, quantization: Literal["none", "int8", "auto"], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "may_have_gpu", lambda: False)
    settings = EngineSettings(quantization=quantization)
    assert performance.needed_bytes(model(format_), settings) == int(SIZE * share)
    monkeypatch.setattr(performance, "available_host_memory", lambda: int(SIZE * share) - 1)
    assert performance.memory_problem(model(format_), settings) is not None
    monkeypatch.setattr(performance, "available_host_memory", lambda: int(SIZE * share))
    assert performance.memory_problem(model(format_), settings) is None


def test_the_limit_of_a_loaded_model_is_that_of_how_it_was_loaded(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "may_have_gpu", lambda: False)
    monkeypatch.setattr(performance, "memory_bandwidth", lambda: 20e9)
    settings = EngineSettings(quantization="auto")
    info = replace(engine.info, quantization="int8", dtype="int8 and bfloat16", cache_bytes_per_token=1000)
    limit = performance.decode_limit(model("BF16"), info, settings)
    assert limit == performance.DecodeLimit(20e9, 0.55 * SIZE, 1000)
    plain = performance.decode_limit(model("BF16"), replace(info, quantization="none", dtype="float32"), settings)
    assert plain is not None
    assert plain.weight_bytes == 2 * SIZE
    monkeypatch.setattr(performance, "may_have_gpu", lambda: True)
    assert performance.decode_limit(model("BF16"), info, settings) is None


async def test_the_limit_is_measured_once_for_each_model_that_is_loaded(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [performance.DecodeLimit(20e9, 1e9, 1000), performance.DecodeLimit(20e9, 2e9, 1000)]
    measured: list[str] = []

    def measure(model: LocalModel, info: ModelInfo, settings: EngineSettings) -> performance.DecodeLimit:
        measured.append(f"{model.name} as {info.name} from {settings.model}")
        return limits[len(measured) - 1]

    async def find() -> Scan:
        return Scan([replace(model("BF16"), target=engine.source)])

    monkeypatch.setattr("app.services.models.decode_limit", measure)
    monkeypatch.setattr(services.models, "find", find)
    assert [await services.models.decode_limit() for _ in range(2)] == [limits[0]] * 2
    await engine.swap("models/other")
    assert await services.models.decode_limit() == limits[1]
    assert measured == ["model as fake from models/fake", "model as other from models/other"]
    engine.state = EngineState.STARTING
    assert await services.models.decode_limit() is None
