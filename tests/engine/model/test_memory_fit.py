"""A model that is larger than the memory is refused before its weights are read, with the numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineSettings, ModelLoadError, advise_memory_limit
from engine.execution import load as execution_load
from engine.execution.load import load_model, prepare_model
from engine.model import memory_fit, memory_limit
from engine.model.placement import choose_dtype
from engine.model.sizing import WEIGHT_FORMATS, model_size
from testing.gguf_files import make_gguf
from testing.models import make_model
from testing.quantized import compressed_tensors_int8, save_quantized


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", hidden=128, std=0.1, max_position_embeddings=1024)


def refusal(model: Path, monkeypatch: pytest.MonkeyPatch, free: float, **settings: Any) -> str:
    """Returns what is said where ``free`` bytes are free, before and while the model is loaded."""
    monkeypatch.setattr(memory_fit, "available_memory", lambda _device: int(free))
    monkeypatch.setattr(execution_load, "available_memory", lambda _device: int(free))
    said = set()
    for act in (prepare_model, load_model):
        with pytest.raises(ModelLoadError) as caught:
            act(EngineSettings(model=str(model), device="cpu", **settings), lambda _stage, _fraction: None)
        said.add(str(caught.value))
    assert len(said) == 1
    return said.pop()


def test_a_folder_is_refused_with_the_quantizations_that_fit(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    whole, int8, int4 = (size.weights(WEIGHT_FORMATS[name]) for name in ("bf16", "int8", "int4"))
    cache = size.cache(memory_fit.MIN_CONTEXT)
    said = refusal(llama, monkeypatch, int8 + cache, native=False, dtype="bfloat16")
    for size_bytes in (whole + cache, whole, cache, int8 + cache, int4 + cache):
        assert f"{size_bytes / 1e6:.1f} MB" in said
    assert "the cache of 512 tokens" in said
    assert "quantization=int8" in said
    said = refusal(llama, monkeypatch, int4 + cache, native=False, dtype="bfloat16")
    assert "quantization=int8" not in said
    assert "quantization=int4" in said
    assert "fewer bits" in refusal(llama, monkeypatch, 1000, native=False, dtype="bfloat16")


def test_what_fits_is_loaded(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    for quantization, stored in (("none", "bf16"), ("int4", "int4")):
        free = size.weights(WEIGHT_FORMATS[stored]) + size.cache(memory_fit.MIN_CONTEXT)
        monkeypatch.setattr(memory_fit, "available_memory", lambda _device, free=free: free)
        asked: dict[str, Any] = {"native": False, "dtype": "bfloat16", "quantization": quantization}
        load_model(EngineSettings(model=str(llama), device="cpu", **asked), lambda _stage, _fraction: None)
        assert "does not fit" in refusal(llama, monkeypatch, free - 1, **asked)


def test_the_cache_that_is_asked_for_counts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    free = size.weights(WEIGHT_FORMATS["bf16"]) + size.cache(1024) - 1
    said = refusal(llama, monkeypatch, free, native=False, dtype="bfloat16", max_model_len=1024)
    assert "the cache of 1,024 tokens" in said
    assert "a smaller max_model_len, or a smaller model" in said
    needed = size.weights(WEIGHT_FORMATS["bf16"]) + size.cache(1024, "int8")
    assert needed <= free
    monkeypatch.setattr(memory_fit, "available_memory", lambda _device: needed)
    asked: dict[str, Any] = {"native": False, "dtype": "bfloat16", "max_model_len": 1024, "kv_cache_dtype": "int8"}
    load_model(EngineSettings(model=str(llama), device="cpu", **asked), lambda _stage, _fraction: None)
    said = refusal(llama, monkeypatch, needed - 1, **asked)
    assert f"{size.cache(1024, 'int8') / 1e6:.1f} MB for the cache of 1,024 tokens" in said
    said = refusal(llama, monkeypatch, free, native=False, dtype="bfloat16", kv_cache_memory=2)
    assert "and 2.15 GB for the cache, and" in said
    assert "a smaller kv_cache_memory, or a smaller model" in said
    assert "a smaller kv_cache_memory" not in refusal(llama, monkeypatch, 1000, native=False, kv_cache_memory=2)


def test_a_packed_file_needs_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_gguf(tmp_path / "llama.gguf", "llama", "Q8_0")
    said = refusal(file, monkeypatch, 1000)
    assert "Q8_0" in said
    stated = re.search(r"which are ([\d.]+) MB for its weights", said)
    assert stated is not None
    assert float(stated[1]) <= file.stat().st_size / 1e6 + 0.1
    assert "quantization=" not in said, "it is quantized already"


def test_a_quantized_checkpoint_is_counted_as_it_is_served(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_quantized(llama, compressed_tensors_int8(), tmp_path / "quantized", tmp_path / "dense")
    said = refusal(tmp_path / "quantized", monkeypatch, 1000)
    assert "in int8" in said
    assert "quantization=" not in said


@pytest.mark.parametrize(
    ("machine_gb", "advice"),
    [(64, r"or raise the container's limit to 5 GB\."), (4.9, r"or take a machine with more memory\.")],
)
def test_the_limit_of_a_container_is_named_with_the_one_that_would_do(
    llama: Path, monkeypatch: pytest.MonkeyPatch, machine_gb: float, advice: str
) -> None:
    monkeypatch.setattr(memory_fit, "host_memory_limit", lambda: 4 * 10**9)
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: int(machine_gb * 10**9))
    said = refusal(llama, monkeypatch, 1000, native=False, kv_cache_memory=0.5)
    assert "in a container that may use 4.00 GB" in said
    assert re.search(advice, said)


@pytest.mark.parametrize(("machine_gb", "named"), [(64, 7), (6.5, 5)])
def test_the_variable_that_sets_the_limit_is_named_with_its_value(
    llama: Path, monkeypatch: pytest.MonkeyPatch, machine_gb: float, named: int
) -> None:
    """The value has room for the program and a useful cache, or, on a small machine, for as much as must be."""
    monkeypatch.setattr(memory_fit, "host_memory_limit", lambda: 4 * 1024**3)
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: int(machine_gb * 1024**3))
    monkeypatch.setattr(memory_limit, "PROGRAM_BYTES", int(6.5 * 1024**3))
    said = refusal(llama, monkeypatch, 1000, native=False, memory_limit_variable="DESKMATE_MEMORY")
    assert said.endswith(f", or put DESKMATE_MEMORY={named}g into .env.")


def test_a_limit_with_room_for_few_tokens_only_is_noted(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = model_size(str(llama))
    settings = EngineSettings(model=str(llama), device="cpu", memory_limit_variable="DESKMATE_MEMORY")

    def note(settings: EngineSettings, limit: int | None) -> str | None:
        monkeypatch.setattr(memory_limit, "host_memory_limit", lambda: limit)
        return advise_memory_limit(settings, lambda _stage, _fraction: None)

    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 1024**4)
    itemsize = choose_dtype("auto", torch.device("cpu")).itemsize
    enough = memory_limit.PROGRAM_BYTES + size.parameters * itemsize + size.cache(1024) * itemsize
    assert note(settings, enough) is None
    assert note(settings, None) is None
    assert note(settings, enough - 1) == "For chats of 1,024 tokens, put DESKMATE_MEMORY=1g into .env."
    short = settings.model_copy(update={"max_model_len": 512})
    assert note(short, enough - 1) is None
    large = settings.model_copy(update={"kv_cache_memory": 6.0, "memory_limit_variable": None})
    assert note(large, enough) == "For a cache of that size, raise the container's limit to 8 GB."
    monkeypatch.setattr(memory_limit, "machine_memory", lambda: 7 * 10**9)
    assert note(large, enough) is None


def test_memory_that_the_loaded_model_frees_counts_before_a_swap(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "available_memory", lambda _device: 1000)
    settings = EngineSettings(model=str(llama), device="cpu", native=False)
    prepare_model(settings, lambda _stage, _fraction: None, released=10**9)
    with pytest.raises(ModelLoadError, match="does not fit into memory"):
        prepare_model(settings, lambda _stage, _fraction: None, released=1000)
