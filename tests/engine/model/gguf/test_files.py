"""GGUF files are found where people have them: by name, in a folder, in parts, and on the hub by quantization."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import EngineSettings, ModelLoadError, find_model
from engine.execution.load import load_model
from engine.model.download import fetch_model
from engine.model.folders import expected_info
from engine.model.gguf.checkpoint import open_gguf_checkpoint
from engine.model.gguf.files import files_of_quantization, quantization_in_name
from engine.model.gguf.header import read_header
from engine.model.gguf.model_file import open_gguf
from engine.model.load import prepare_model
from engine.model.tensors import BlockTensor
from testing.gguf_files import make_gguf, split_gguf
from testing.hub import Hub

REPOSITORY = "somebody/model"


def ignore(_stage: str, _share: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf", "qwen2", "Q8_0", layers=2)


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> list[Path]:
    return split_gguf(made, tmp_path / "parts" / "tiny-Q8_0", 3)


@pytest.fixture
def hub(made: Path, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    folder.mkdir()
    shutil.copy(made, folder / "tiny-Q8_0.gguf")
    shutil.copy(made, folder / "tiny-q4_k_m.gguf")
    shutil.copy(made, folder / "mmproj-tiny-F16.gguf")
    split_gguf(made, folder / "tiny-Q6_K", 2)
    with Hub(folder).running(tmp_path / "cache") as hub:
        yield hub


def refusal(model: Path | str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        find_model(str(model))
    return str(caught.value)


def test_a_file_is_a_model(made: Path) -> None:
    assert find_model(str(made)) == made
    settings = EngineSettings(model=str(made))
    assert prepare_model(settings, ignore) > 0
    assert expected_info(settings).name == "tiny-Q8_0"
    assert expected_info(settings).max_model_len == 512


def test_a_missing_file(tmp_path: Path) -> None:
    assert "There is no GGUF file at" in refusal(tmp_path / "nowhere.gguf")


def test_a_file_of_another_name_is_recognised_by_its_content(made: Path, tmp_path: Path) -> None:
    blob = tmp_path / "sha256-0123"
    shutil.copy(made, blob)
    assert find_model(str(blob)) == blob


def test_a_link_keeps_its_name(made: Path, tmp_path: Path) -> None:
    link = tmp_path / "chat.gguf"
    link.symlink_to(made)
    assert find_model(str(link)) == link
    assert expected_info(EngineSettings(model=str(link))).name == "chat"


def test_a_folder_with_one_file(made: Path, tmp_path: Path) -> None:
    shutil.copy(made, tmp_path / "chat.gguf")
    shutil.copy(made, tmp_path / "mmproj-chat.gguf")
    assert find_model(str(tmp_path)) == tmp_path / "chat.gguf"
    assert expected_info(EngineSettings(model=str(tmp_path))).name == "chat"


def test_a_folder_with_several_files_names_them(made: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(made, tmp_path / name)
    sentence = refusal(tmp_path)
    assert "a.gguf, b.gguf" in sentence
    assert f"such as {tmp_path / 'a.gguf'}" in sentence


@pytest.mark.parametrize("given", [0, 2])
def test_any_part_of_a_split_file_is_the_model(made: Path, parts: list[Path], given: int) -> None:
    assert find_model(str(parts[given])) == parts[0]
    assert find_model(str(parts[0].parent)) == parts[0]
    model = open_gguf(parts[given])
    assert model.name == "tiny-Q8_0"
    assert model.tensors.keys() == read_header(made).tensors.keys()
    assert {info.path for info in model.tensors.values()} == set(parts)
    settings = EngineSettings(model=str(parts[given]))
    assert expected_info(settings).max_model_len == 512
    assert open_gguf_checkpoint(parts[given], settings, ignore).weight_bytes == open_gguf(made).nbytes


def test_a_split_model_computes_the_same(made: Path, parts: list[Path]) -> None:
    one, several = (open_gguf_checkpoint(path, EngineSettings(), ignore).tensors for path in (made, parts[0]))
    assert one is not None
    assert several is not None
    for name in one.names():
        expected, actual = one.read(name), several.read(name)
        assert isinstance(actual, BlockTensor) == isinstance(expected, BlockTensor)
        if isinstance(expected, BlockTensor) and isinstance(actual, BlockTensor):
            expected, actual = expected.blocks, actual.blocks
        assert isinstance(actual, torch.Tensor)
        assert actual.equal(expected), name  # type: ignore[arg-type]


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    assert f"lacks 1 of the 3 parts of this model: {parts[1].name}" in refusal(parts[0])


def test_a_part_of_another_name(parts: list[Path]) -> None:
    other = parts[2].rename(parts[2].with_name("part.gguf"))
    assert "is part 3 of 3 of a split model" in refusal(other)


def test_parts_of_two_models(parts: list[Path]) -> None:
    shutil.copy(parts[0], parts[1])
    assert "is part 1 of 3 of a split model" in refusal(parts[0])


def test_a_quantized_file_is_not_quantized_again(made: Path) -> None:
    settings = EngineSettings(model=str(made), quantization="int8", device="cpu")
    with pytest.raises(ModelLoadError, match=r"is already quantized \(Q8_0\)"):
        load_model(settings, ignore)


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Q4_K_M/model-00001-of-00003.gguf", "Q4_K_M"),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Llama-3.2-1B-Instruct-f16.gguf", "F16"),
        ("model-bf16.gguf", "BF16"),
        ("model.gguf", None),
    ],
)
def test_the_quantization_in_a_name(name: str, quantization: str | None) -> None:
    assert quantization_in_name(name) == quantization


def test_a_whole_name_chooses_among_several_files_of_a_quantization() -> None:
    names = ["a-Q4_0.gguf", "b-Q4_0.gguf"]
    assert files_of_quantization("m", "b-q4_0", names) == ["b-Q4_0.gguf"]
    with pytest.raises(ModelLoadError, match=r"several files of the quantization Q4_0: a-Q4_0.gguf, b-Q4_0.gguf"):
        files_of_quantization("m", "Q4_0", names)


def test_a_quantization_on_the_hub(hub: Hub) -> None:
    model = load_model(EngineSettings(model=f"{REPOSITORY}:q4_K_m", device="cpu", native=False), ignore)
    assert model.name == f"{REPOSITORY}:q4_K_m"
    assert hub.sent == ["tiny-q4_k_m.gguf"]


def test_parts_on_the_hub(hub: Hub) -> None:
    stages: list[str] = []
    file = fetch_model(f"{REPOSITORY}:Q6_K", None, lambda stage, _share: stages.append(stage))
    assert hub.sent == ["tiny-Q6_K-00001-of-00002.gguf", "tiny-Q6_K-00002-of-00002.gguf"]
    assert open_gguf(file).name == "tiny-Q6_K"
    assert f"Downloading {REPOSITORY}:Q6_K" in stages


def test_an_unknown_quantization_lists_what_there_is(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=r"has no quantization Q2_K. It has Q4_K_M, Q6_K, Q8_0"):
        fetch_model(f"{REPOSITORY}:Q2_K", None, ignore)
    assert hub.sent == []


def test_a_repository_of_gguf_files_alone_offers_them(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=rf"such as {REPOSITORY}:F16|such as {REPOSITORY}:Q4_K_M"):
        fetch_model(REPOSITORY, None, ignore)


def test_without_a_network_the_cache_serves(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch_model(f"{REPOSITORY}:Q8_0", None, ignore)
    hub.go_on()
    hub.end()
    # Else the hub's library, which tries again and again, would wait 23 seconds in between.
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda _seconds: None))
    assert fetch_model(f"{REPOSITORY}:Q8_0", None, ignore) == first


def test_without_a_network_and_cache(hub: Hub) -> None:
    hub.end()
    with pytest.raises(ModelLoadError, match="the hub cannot be reached, and it is not in the cache"):
        fetch_model(f"{REPOSITORY}:Q8_0", None, ignore)


def test_a_colon_without_a_quantization() -> None:
    assert "names no quantization" in refusal(f"{REPOSITORY}:")
