"""Which number format a model is served in, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineSettings, ModelLoadError
from engine.execution.load import load_model
from engine.model import served_format
from engine.model.loaded_model import LoadedModel
from engine.model.sizing import WEIGHT_FORMATS, model_size
from testing import quantized
from testing.gguf_files import make_gguf
from testing.models import make_model
from testing.quantized import Packing, save_quantized


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", hidden=128, std=0.1, max_position_embeddings=256)


def load(model: Path, **settings: Any) -> LoadedModel:
    return load_model(
        EngineSettings(model=str(model), device="cpu", native=False, **settings), lambda _stage, _fraction: None
    )


def free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(served_format, "available_memory", lambda _device: int(size))


def test_auto_takes_the_most_exact_format_that_fits(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    cache = size.cache(256)
    needed = {name: size.weights(WEIGHT_FORMATS[name]) for name in ("bf16", "int8", "int4")}
    assert needed["bf16"] > needed["int8"] > needed["int4"]
    for stored, expected in (("bf16", "none"), ("int8", "int8"), ("int4", "int4")):
        free(monkeypatch, (needed[stored] + cache) / served_format.USABLE + 1)
        model = load(llama, quantization="auto", dtype="bfloat16")
        assert model.quantization == expected
        assert model.quantization_reason is not None
        for part in ("bfloat16", "int8", "int4", "a chat of 256 tokens", "are free"):
            assert part in model.quantization_reason


def test_a_chat_that_does_not_fit_leaves_the_smallest_format(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, model_size(str(llama)).weights(WEIGHT_FORMATS["int4"]) + 1)
    model = load(llama, quantization="auto", dtype="bfloat16")
    assert model.quantization == "int4"
    assert "chats must be shorter" in str(model.quantization_reason)


def test_a_shorter_context_counts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    free(monkeypatch, (size.weights(WEIGHT_FORMATS["bf16"]) + size.cache(64)) / served_format.USABLE + 1)
    assert load(llama, quantization="auto", dtype="bfloat16", max_model_len=64).quantization == "none"
    assert load(llama, quantization="auto", dtype="bfloat16").quantization != "none"


def test_an_int8_cache_leaves_more_for_the_weights(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    weights, cache = size.weights(WEIGHT_FORMATS["bf16"]), size.cache(256, "int8")
    assert cache < size.cache(256)
    free(monkeypatch, (weights + cache) / served_format.USABLE + 1)
    chosen = {"quantization": "auto", "dtype": "bfloat16"}
    assert load(llama, **chosen, kv_cache_dtype="int8").quantization == "none"
    assert load(llama, **chosen).quantization != "none"


def test_a_model_larger_than_memory_is_refused_with_the_numbers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1000)
    with pytest.raises(ModelLoadError) as caught:
        load(llama, quantization="auto", dtype="bfloat16")
    assert "does not fit into memory in any format: weights take bfloat16 " in str(caught.value)
    assert "MB are free" in str(caught.value)


FOUR_BITS, EIGHT_BITS, FLOAT8 = quantized.awq(32), quantized.compressed_tensors_int8(), quantized.float8()


@pytest.mark.parametrize(
    ("packing", "settings", "expected"),
    [
        (FOUR_BITS, {}, "int4"),
        (FOUR_BITS, {"quantization": "auto"}, "int4"),
        (FOUR_BITS, {"quantization": "auto", "dtype": "bfloat16"}, "int4"),
        (FOUR_BITS, {"quantization": "int8"}, "int8"),
        (FOUR_BITS, {"dtype": "bfloat16"}, "none"),
        (EIGHT_BITS, {}, "int8"),
        (FLOAT8, {}, "int8"),
        (FLOAT8, {"dtype": "float32"}, "none"),
    ],
)
def test_a_quantized_checkpoint_keeps_its_bits_unless_another_format_is_asked_for(
    llama: Path, tmp_path: Path, packing: Packing, settings: dict[str, Any], expected: str
) -> None:
    save_quantized(llama, packing, tmp_path / "quantized", tmp_path / "dense")
    model = load(tmp_path / "quantized", **settings)
    assert model.quantization == expected
    is_asked_for = settings.get("quantization") == "int8" or expected == "none"
    assert model.quantization_reason is None if is_asked_for else "stored as" in str(model.quantization_reason)


async def test_what_is_known_of_the_model_says_which_format_and_why(llama: Path, tmp_path: Path) -> None:
    save_quantized(llama, EIGHT_BITS, tmp_path / "quantized", tmp_path / "dense")
    async with Engine(EngineSettings(model=str(tmp_path / "quantized"), device="cpu", native=False)) as engine:
        assert engine.info.dtype.startswith("int8 and ")
        assert engine.info.quantization == "int8"
        assert engine.info.cache_bytes_per_token > 0
        assert "int-quantized" in str(engine.info.quantization_reason)


def test_a_gguf_file_keeps_its_own_format(tmp_path: Path) -> None:
    model = load(make_gguf(tmp_path / "tiny-Q8_0.gguf", "llama", "Q8_0"), quantization="auto")
    assert model.quantization == "none"
    assert "Q8_0" in str(model.quantization_reason)


def test_a_device_without_the_format_serves_dequantized_weights(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_format, "runs_quantization", lambda *_: False)
    save_quantized(llama, EIGHT_BITS, tmp_path / "quantized", tmp_path / "dense")
    model = load(tmp_path / "quantized")
    assert model.quantization == "none"
    assert "this device runs no such format" in str(model.quantization_reason)
