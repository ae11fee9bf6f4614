"""The engine loads its encoder with its model, and a wrong one stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import Engine, EngineSettings, EngineStoppedError, ModelLoadError
from engine.device import host_memory
from testing.encoders import make_encoder
from testing.models import make_model


def settings(folder: Path, encoder: Path) -> EngineSettings:
    model = make_model(folder / "model")
    return EngineSettings(
        _env_file=None, model=str(model), encoder=str(encoder), encoder_vectors=1000, native=False, num_kv_blocks=32
    )


async def test_the_encoder_lives_as_long_as_the_engine(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path, make_encoder(tmp_path / "encoder")))
    encoder = engine.encoder
    assert encoder is not None
    with pytest.raises(EngineStoppedError):
        await encoder.embed(["too early"])
    async with engine:
        encoder = engine.encoder
        assert encoder is not None
        assert (await encoder.embed(["now"])).vectors.shape == (1, 32)
        assert sum(host_memory._reserved.values()) == 1000 * 32 * 4
        await engine.sleep()
        assert (await encoder.embed(["asleep"])).vectors.shape == (1, 32)
    assert sum(host_memory._reserved.values()) == 0
    with pytest.raises(EngineStoppedError):
        await encoder.embed(["too late"])


async def test_a_wrong_encoder_stops_the_start_before_the_model_is_loaded(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path, make_model(tmp_path / "writer")))
    with pytest.raises(ModelLoadError, match="is not an encoder"):
        await engine.start()
    assert engine.status.state == "stopped"


async def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    assert Engine(EngineSettings(_env_file=None, model=str(tmp_path))).encoder is None
