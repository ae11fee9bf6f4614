"""A file that passed the checks is loaded without them at a later start, as long as it computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine import EngineSettings
from engine.execution.load import load_model
from engine.execution.native import checked, decoder, eligibility
from engine.execution.native.checked import CheckedModel
from engine.execution.native.parity_check import check_sample
from engine.execution.native.verified import logits_sample
from engine.execution.native.weights import DecoderWeights
from engine.model.loaded_model import LoadedModel
from testing.gguf_files import make_gguf
from testing.native import needs_compiler

pytestmark = needs_compiler

READ, REMEMBER = CheckedModel._read, CheckedModel.remember  # before the other tests' fixture


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the records."""
    monkeypatch.setattr(decoder, "MAX_ROWS_WITHOUT_AVX2", 10**9)
    monkeypatch.setattr(checked, "cache_folder", lambda: tmp_path / "records")
    monkeypatch.setattr(CheckedModel, "_read", READ)
    monkeypatch.setattr(CheckedModel, "remember", REMEMBER)
    return tmp_path / "records"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that a model was checked."""
    made: list[str] = []
    whole = check_sample
    monkeypatch.setattr(eligibility, "check_sample", lambda *given: [made.append("checked"), whole(*given)])
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_gguf(tmp_path / "tiny.gguf", "llama", "Q8_0")


def load(path: Path) -> LoadedModel:
    model = load_model(EngineSettings(model=str(path), device="cpu"), lambda _stage, _fraction: None)
    assert isinstance(model.decoder, DecoderWeights)
    assert model.decoder.number_format == "blocks"
    return model


def test_a_second_start_checks_nothing(path: Path, checks: list[str]) -> None:
    first, second = load(path), load(path)
    assert len(checks) == 1
    samples = [logits_sample(model.decoder) for model in (first, second)]  # type: ignore[arg-type]
    assert torch.equal(*samples)


def test_other_weights_under_the_same_names_are_checked_anew(path: Path, checks: list[str]) -> None:
    load(path)
    data = np.memmap(path, np.uint8, "r+")
    end = len(data) - 8000
    data[end : end + 4000] ^= 1  # the lowest bits of some codes
    data.flush()
    load(path)
    assert len(checks) == 2
    load(path)
    assert len(checks) == 2  # the new record holds the new logits


@pytest.mark.parametrize("text", ["", "{", "[]", '{"logits": "no"}', '{"logits": [1, 2]}', '{"logits": [null]}'])
def test_a_damaged_record_is_ignored(path: Path, records: Path, checks: list[str], text: str) -> None:
    load(path)
    (record,) = records.glob("checked-*.json")
    record.write_text(text)
    load(path)
    assert len(checks) == 2


def test_a_change_of_the_code_makes_it_stale(
    path: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(path)
    (tmp_path / "other.py").write_text("")
    monkeypatch.setattr("engine.execution.native.verified._CODE", (tmp_path,))
    load(path)
    assert len(checks) == 2


def test_where_nothing_can_be_written_each_start_checks(path: Path, records: Path, checks: list[str]) -> None:
    records.write_text("a file in the folder's place")
    load(path)
    load(path)
    assert len(checks) == 2
