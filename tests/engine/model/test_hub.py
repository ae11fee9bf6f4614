"""Models that come from the hub: progress by bytes, given up in the middle, and a hub that does not answer."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import huggingface_hub
import pytest

from engine import EngineSettings, ModelLoadError
from engine.execution.load import load_model
from engine.model.hub import fetch_description, fetch_weights
from engine.model.loaded_model import LoadedModel
from testing.hub import Hub
from testing.models import make_model

MODEL = "somebody/model"
READING, DOWNLOADING = f"Reading {MODEL}", f"Downloading {MODEL}"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


class ProgressRecorder:
    """Records the progress of a load; resumes a paused hub once half of a file has been reported."""

    def __init__(self, held: Hub | None = None) -> None:
        self.stages: dict[str, list[float]] = {}
        self._held = held
        if held is not None:
            held.resume.clear()

    def __call__(self, stage: str, share: float) -> None:
        self.stages.setdefault(stage, []).append(share)
        if self._held is not None and stage == DOWNLOADING and share > 0.4:
            self._held.resume.set()


class GivenUpError(Exception):
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "made")


@pytest.fixture
def hub(made: Path, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    shutil.copytree(made, folder)
    with Hub(folder).running(tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def three(hub: Hub) -> Hub:
    """Whose model is in three files of one size, beside what nobody needs."""
    content = (hub.folder / "model.safetensors").read_bytes()
    (hub.folder / "model.safetensors").unlink()
    for number, name in enumerate(SHARDS):
        (hub.folder / name).write_bytes(content + bytes([number]))
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(SHARDS))}))
    (hub.folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (hub.folder / "consolidated.safetensors").write_bytes(b"the same once more")
    return hub


def fetch(model: str, revision: str | None, progress: Callable[[str, float], None]) -> Path:
    folder = fetch_description(model, revision, progress)
    fetch_weights(model, folder, progress)
    return folder


def load(progress: Callable[[str, float], None]) -> LoadedModel:
    return load_model(EngineSettings(model=MODEL, device="cpu", native=False), progress)


def test_a_model_of_the_hub_is_fetched_and_loaded(hub: Hub) -> None:
    progress = ProgressRecorder(held=hub)
    assert load(progress).name == MODEL
    assert list(progress.stages)[:2] == [READING, DOWNLOADING]
    shares = progress.stages[DOWNLOADING]
    assert shares == sorted(shares)
    assert 0.4 < shares[-2] < 0.6
    assert shares[-1] == 1.0
    assert hub.sent == ["model.safetensors"]


def test_what_is_there_is_not_fetched_again(hub: Hub) -> None:
    first = fetch(MODEL, None, ProgressRecorder())
    progress = ProgressRecorder()
    assert fetch(MODEL, "main", progress) == first
    assert DOWNLOADING not in progress.stages
    assert hub.sent == ["model.safetensors"]


def test_several_files_are_one_download(three: Hub) -> None:
    shares: list[float] = []
    three.resume.clear()

    def tell(stage: str, share: float) -> None:
        if stage == DOWNLOADING:
            shares.append(share)
            if share > (len(three.sent) - 0.6) / 3:  # half of each is reported before the other half is sent
                three.resume.set()
                three.resume.clear()

    folder = fetch(MODEL, None, tell)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    for share in (1 / 6, 3 / 6, 5 / 6):
        assert any(abs(share - reported) < 0.05 for reported in shares)
    assert three.sent == SHARDS
    assert not {"pytorch_model.bin", "consolidated.safetensors"} & {path.name for path in folder.iterdir()}


def test_given_up_in_the_middle_it_waits_for_nothing_and_keeps_the_whole_files(three: Hub) -> None:
    def give_up(_stage: str, share: float) -> None:
        if share > 0.4:
            raise GivenUpError

    others = set(threading.enumerate())
    ProgressRecorder(held=three)  # which nobody tells to go on
    three.never_paused = {SHARDS[0]}
    with pytest.raises(GivenUpError):
        fetch(MODEL, None, give_up)
    assert not three.resume.is_set()
    left = set(threading.enumerate()) - others
    assert all(thread.daemon for thread in left), "a program would wait for them before it ends"
    three.go_on()
    assert three.sent == SHARDS[:2]  # the second not to its end, the third not at all
    snapshots = Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("model-*.safetensors")
    assert {path.name for path in snapshots} == set(SHARDS[:1])
    progress = ProgressRecorder()
    folder = fetch(MODEL, None, progress)
    assert three.sent == [*SHARDS[:2], *SHARDS[1:]]
    assert progress.stages[DOWNLOADING][-1] == 1.0
    for name in SHARDS:
        assert (folder / name).read_bytes() == (three.folder / name).read_bytes()


def test_a_hub_that_says_nothing_is_given_up_too(hub: Hub) -> None:
    hub.unresponsive.set()

    def give_up(_stage: str, _share: float) -> None:
        if hub.requested_paths:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        fetch(MODEL, None, give_up)
    assert hub.unresponsive.is_set()


@pytest.mark.parametrize("how", ["refuses", "offline", "gone"])
def test_without_the_hub_what_is_there_has_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    (hub.folder / "LICENSE.txt").write_text("listed, and not needed")
    before = load(ProgressRecorder())
    for path in Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("LICENSE.txt"):
        path.unlink()  # as if another program had fetched the model
    if how == "refuses":
        hub.refuses = HTTPStatus.SERVICE_UNAVAILABLE
    elif how == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    else:
        hub.end()
    assert load(ProgressRecorder()).tokenizer.get_vocab() == before.tokenizer.get_vocab()


def test_a_download_that_ended_early_and_no_hub(three: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_description(MODEL, None, ProgressRecorder())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match=r"somebody/model .*offline mode"):
        fetch(MODEL, None, ProgressRecorder())
    with pytest.raises(ModelLoadError, match=r"nobody/nothing .*cannot be reached, and it is not in the cache"):
        fetch("nobody/nothing", None, ProgressRecorder())
    assert three.sent == []


def test_what_the_hub_does_not_give_is_said(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=r"nobody/nothing .*no model of that name, or it is private.*HF_TOKEN"):
        fetch("nobody/nothing", None, ProgressRecorder())
    with pytest.raises(ModelLoadError, match=r"somebody/model .*no such revision"):
        fetch(MODEL, "v2", ProgressRecorder())
    hub.refuses = HTTPStatus.FORBIDDEN
    with pytest.raises(
        ModelLoadError, match=rf"somebody/model .*Request access at https://huggingface.co/{MODEL}.*HF_TOKEN"
    ):
        fetch(MODEL, None, ProgressRecorder())


def test_what_is_no_model_is_not_downloaded(three: Hub) -> None:
    (three.folder / SHARDS[1]).unlink()
    with pytest.raises(ModelLoadError, match=r"somebody/model has no weights in \*.safetensors files, or not all"):
        fetch(MODEL, None, ProgressRecorder())
    index = three.folder / "model.safetensors.index.json"
    for content, sentence in (
        ("{", "is damaged"),
        ("{}", "is damaged"),
        ('{"weight_map": {"a": "../../authorized_keys"}}', "names files outside of its folder"),
    ):
        index.write_text(content)
        three.next_commit()
        with pytest.raises(ModelLoadError, match=sentence):
            fetch(MODEL, None, ProgressRecorder())
    (three.folder / "config.json").unlink()
    three.next_commit()
    with pytest.raises(ModelLoadError, match=r"somebody/model .*has no config.json"):
        fetch(MODEL, None, ProgressRecorder())
    assert three.sent == []


def test_a_newer_commit_is_taken_and_an_older_one_stays(hub: Hub) -> None:
    first = fetch(MODEL, None, ProgressRecorder())
    weights = hub.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"+")
    hub.next_commit()
    second = fetch(MODEL, None, ProgressRecorder())
    assert second != first
    assert (second / "model.safetensors").read_bytes() == weights.read_bytes()
    assert fetch(MODEL, first.name, ProgressRecorder()) == first


def test_an_adapter_of_the_hub_is_no_model(hub: Hub) -> None:
    (hub.folder / "config.json").unlink()
    (hub.folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    with pytest.raises(ModelLoadError, match=r"holds a LoRA adapter for some/base.*--lora NAME="):
        fetch(MODEL, None, ProgressRecorder())
