"""``quantize_checkpoint`` writes what the engine computes, all of it or nothing, and refuses what it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine import EngineSettings, InvalidRequestError, ModelLoadError, quantize_checkpoint
from engine.execution.load import load_model
from engine.model.linears import to_int4, to_int8
from engine.model.loaded_model import LoadedModel
from engine.model.quantized import writer
from testing import quantized
from testing.gguf_files import make_gguf
from testing.models import make_model
from testing.quantized import save_quantized

Q_PROJ = "model.layers.0.self_attn.q_proj"


def ignore(_stage: str, _fraction: float) -> None: ...


def load(model: Path, **settings: Any) -> LoadedModel:
    return load_model(EngineSettings(model=str(model), device="cpu", native=False, **settings), ignore)


def parameters(model: LoadedModel) -> dict[str, Tensor]:
    assert model.module is not None
    return dict(model.module.named_parameters())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", hidden=128, std=0.1)


@pytest.mark.parametrize("to", ["int4", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_result_holds_what_the_engine_computes(tmp_path: Path, to: Any, *, tied: bool) -> None:
    model = make_model(tmp_path / "model", hidden=128, std=0.1, tie_word_embeddings=tied)
    written = quantize_checkpoint(str(model), to, tmp_path / "out", ignore)
    assert written.num_quantized == 2 * 7
    assert written.bytes_after < written.bytes_before
    got, exact = parameters(load(tmp_path / "out", dtype="float32")), parameters(load(model, dtype="float32"))
    assert got.keys() == exact.keys()
    for name, weight in exact.items():
        if not name.endswith("_proj.weight"):
            assert torch.equal(got[name], weight), name
            continue
        codes, scales = to_int4(weight) if to == "int4" else to_int8(weight)
        expected = codes.view(len(codes), -1, 32 if to == "int4" else codes.shape[1]) * scales.view(len(codes), -1, 1)
        assert torch.equal(got[name], expected.flatten(1)), name
    assert load(tmp_path / "out").quantization == to
    sizes = sum(tensor.nbytes for tensor in load_file(tmp_path / "out/model.safetensors").values())
    assert sizes == written.bytes_after


def test_what_a_model_needs_is_copied(llama: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama, tmp_path / "source"))
    (source / "LICENSE").write_text("free")
    (source / "train.py").write_text("not needed")
    (source / "pytorch_model.bin").write_bytes(b"x" * 1000)
    quantize_checkpoint(str(source), "int4", tmp_path / "deep/out", ignore)
    names = {file.name for file in (tmp_path / "deep/out").iterdir()}
    needed = {file.name for file in llama.iterdir()}
    assert names == needed | {"LICENSE"}
    got, expected = load(tmp_path / "deep/out"), load(llama)
    assert got.tokenizer.chat_template == expected.tokenizer.chat_template
    assert got.generation_config.eos_token_id == expected.generation_config.eos_token_id
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_large_models_are_written_in_several_files(llama: Path, tmp_path: Path) -> None:
    quantize_checkpoint(str(llama), "int4", tmp_path / "whole", ignore)
    quantize_checkpoint(str(llama), "int4", tmp_path / "out", ignore, max_file_bytes=60_000)
    files = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    whole = load_file(tmp_path / "whole/model.safetensors")
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "out" / file)[name], whole[name]), name
    assert len(index["weight_map"]) == len(whole)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    assert torch.equal(
        parameters(load(tmp_path / "out", dtype="float32"))[f"{Q_PROJ}.weight"],
        parameters(load(tmp_path / "whole", dtype="float32"))[f"{Q_PROJ}.weight"],
    )


def test_layers_whose_inputs_groups_do_not_divide_stay_as_they_are(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", hidden=48, heads=4, std=0.1)
    written = quantize_checkpoint(str(model), "int4", tmp_path / "out", ignore)
    assert f"{Q_PROJ}.weight" in written.kept
    assert "model.layers.0.mlp.down_proj.weight" not in written.kept
    ignored = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["ignore"]
    assert Q_PROJ in ignored
    assert torch.equal(
        parameters(load(tmp_path / "out", dtype="float32"))[f"{Q_PROJ}.weight"],
        parameters(load(model, dtype="float32"))[f"{Q_PROJ}.weight"],
    )


def test_a_folder_that_holds_something_is_refused(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    quantize_checkpoint(str(llama), "int8", out, ignore)  # an empty folder is used
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InvalidRequestError, match="exists already"):
        quantize_checkpoint(str(llama), "int4", out, ignore)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="exists already"):
        quantize_checkpoint(str(llama), "int4", tmp_path / "file", ignore)


def test_a_full_disk_is_refused_before_anything_is_written(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=writer._RESERVE))
    with pytest.raises(InvalidRequestError, match=r"needs 0\.00 GB, and the disk of .* has 0\.07 GB free"):
        quantize_checkpoint(str(llama), "int4", tmp_path / "out", ignore)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_failure(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_write_config", fail)
    with pytest.raises(InvalidRequestError, match="cannot be written: No space left on device"):
        quantize_checkpoint(str(llama), "int4", tmp_path / "out", ignore)
    assert list(tmp_path.iterdir()) == []


def test_what_is_quantized_already_is_refused(llama: Path, tmp_path: Path) -> None:
    save_quantized(llama, quantized.awq(32), tmp_path / "quantized", tmp_path / "dense")
    with pytest.raises(ModelLoadError, match=r"stored as AWQ \(4 bits, groups of 32\)"):
        quantize_checkpoint(str(tmp_path / "quantized"), "int4", tmp_path / "out", ignore)
    with pytest.raises(ModelLoadError, match="stored as Q8_0"):
        quantize_checkpoint(str(make_gguf(tmp_path / "a.gguf", "llama", "Q8_0")), "int4", tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_one_layer_is_in_memory_at_a_time(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each weight is released before the next is read."""
    alive: list[str] = []
    read = writer._Plan._read

    def watched(plan: Any, name: str) -> Tensor:
        alive.append(name)
        return read(plan, name)

    seen: list[int] = []

    def release(_source: object, _part: Tensor) -> None:
        seen.append(len(alive))

    monkeypatch.setattr("engine.model.safetensors_files.SafetensorsTensors.release", release)
    monkeypatch.setattr(writer._Plan, "_read", watched)
    written = quantize_checkpoint(str(llama), "int4", tmp_path / "out", ignore)
    assert len(seen) == written.num_quantized
    assert seen == sorted(set(seen))  # a release after each read
