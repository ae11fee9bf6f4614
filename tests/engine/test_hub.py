"""Weights that come from the hub: progress by bytes, given up and gone on with, and a hub that does not answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import huggingface_hub
import pytest

from engine import EngineSettings, ModelLoadError
from engine.model.hub import fetch_description, fetch_weights
from engine.model.loading import load_model
from tests.support.hub import CHUNK, Hub
from tests.support.models import make_model

MODEL = "somebody/model"


class Told:
    """What somebody hears who waits for it."""

    def __init__(self) -> None:
        self.stages: dict[str, list[float]] = {}

    def __call__(self, stage: str, share: float) -> None:
        self.stages.setdefault(stage, []).append(share)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "made")


@pytest.fixture
def hub(made: Path, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    shutil.copytree(made, folder)
    with Hub(folder).running(tmp_path / "cache") as hub:
        yield hub


def fetch(model: str, revision: str | None, told: Callable[[str, float], None]) -> Path:
    folder = fetch_description(model, revision)
    fetch_weights(model, folder, told)
    return folder


SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def three(hub: Hub) -> Hub:
    """Whose model is in three files of one size, beside what nobody needs."""
    content = (hub.folder / "model.safetensors").read_bytes()
    (hub.folder / "model.safetensors").unlink()
    for number, name in enumerate(SHARDS):
        (hub.folder / name).write_bytes(content + bytes([number]))
    (hub.folder / "model.safetensors.index.json").write_text("{}")
    (hub.folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (hub.folder / "consolidated.safetensors").write_bytes(b"the same once more")
    return hub


def test_a_model_of_the_hub_is_fetched_and_loaded(hub: Hub) -> None:
    told = Told()
    model = load_model(EngineSettings(model=MODEL, device="cpu", native=False), told)
    assert model.name == MODEL
    assert list(told.stages)[:2] == [f"Reading {MODEL}", f"Downloading {MODEL}"]
    shares = told.stages[f"Downloading {MODEL}"]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(shares) >= (hub.folder / "model.safetensors").stat().st_size // CHUNK > 10
    assert hub.sent == ["model.safetensors"]


def test_what_is_there_is_not_fetched_again(hub: Hub) -> None:
    first = fetch(MODEL, None, Told())
    told = Told()
    assert fetch(MODEL, "main", told) == first
    assert told.stages == {}
    assert hub.sent == ["model.safetensors"]


def test_several_files_are_one_download(three: Hub) -> None:
    told = Told()
    folder = fetch(MODEL, None, told)
    shares = told.stages[f"Downloading {MODEL}"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    for share in (1 / 3, 2 / 3):
        assert any(abs(share - told) < 0.01 for told in shares)
    assert three.sent == SHARDS
    assert not {"pytorch_model.bin", "consolidated.safetensors"} & {path.name for path in folder.iterdir()}


def test_given_up_in_the_middle_it_leaves_the_whole_files_and_nothing_else(three: Hub, tmp_path: Path) -> None:
    class GivenUpError(Exception):
        pass

    def give_up(_stage: str, share: float) -> None:
        if share > 0.5:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        fetch(MODEL, None, give_up)
    assert three.sent == SHARDS[:2]
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    told = Told()
    folder = fetch(MODEL, None, told)
    assert three.sent == [*SHARDS[:2], *SHARDS[1:]]
    assert told.stages[f"Downloading {MODEL}"][-1] == 1.0
    for name in SHARDS:
        assert (folder / name).read_bytes() == (three.folder / name).read_bytes()


@pytest.mark.parametrize("how", ["refuses", "offline", "gone"])
def test_without_the_hub_what_is_there_has_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    before = load_model(EngineSettings(model=MODEL, device="cpu", native=False), Told())
    if how == "refuses":
        hub.refuses = HTTPStatus.SERVICE_UNAVAILABLE
    elif how == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    else:
        hub.end()
    hub.asked.clear()
    model = load_model(EngineSettings(model=MODEL, device="cpu", native=False), Told())
    assert len(hub.asked) <= 1
    assert model.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    with pytest.raises(ModelLoadError, match=r"nobody/nothing .*cannot be reached, and not all of it is in the cache"):
        fetch("nobody/nothing", None, Told())


@pytest.mark.usefixtures("hub")
def test_a_download_that_ended_early_and_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_description(MODEL, None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match=r"somebody/model .*not all of it is in the cache"):
        fetch(MODEL, None, Told())


def test_what_the_hub_does_not_give_is_said(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=r"nobody/nothing .*none of that name, or it is private.*HF_TOKEN"):
        fetch("nobody/nothing", None, Told())
    with pytest.raises(ModelLoadError, match=r"somebody/model .*no such revision"):
        fetch(MODEL, "v2", Told())
    hub.refuses = HTTPStatus.FORBIDDEN
    with pytest.raises(ModelLoadError, match=rf"somebody/model .*Ask at https://huggingface.co/{MODEL}.*HF_TOKEN"):
        fetch(MODEL, None, Told())


def test_what_is_no_model_is_not_downloaded(hub: Hub) -> None:
    weights = hub.folder / "model.safetensors"
    weights.rename(hub.folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"somebody/model has no weights in \*.safetensors"):
        fetch(MODEL, None, Told())
    (hub.folder / "config.json").unlink()
    hub.commit = "d" * 40
    with pytest.raises(ModelLoadError, match=r"somebody/model has no config.json"):
        fetch(MODEL, None, Told())
    assert hub.sent == []


def test_a_newer_commit_is_taken(hub: Hub) -> None:
    first = fetch(MODEL, None, Told())
    hub.commit = "d" * 40
    weights = hub.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"+")
    second = fetch(MODEL, None, Told())
    assert second != first
    assert (second / "model.safetensors").read_bytes() == weights.read_bytes()
    assert fetch(MODEL, first.name, Told()) == first
