"""The mean of several legs' weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.guide.average import average


def leg(folder: Path, number: float, size: int = 3) -> Path:
    folder.mkdir()
    save_file({"weight": torch.full((size,), number, dtype=torch.bfloat16)}, folder / "model.safetensors")
    (folder / "loss.svg").write_text(str(number), encoding="utf-8")
    return folder


def test_the_mean_of_the_weights_and_the_rest_of_the_last(tmp_path: Path) -> None:
    average([leg(tmp_path / "a", 1.0), leg(tmp_path / "b", 4.0)], tmp_path / "out")
    mean = load_file(tmp_path / "out" / "model.safetensors")["weight"]
    assert mean.dtype == torch.bfloat16
    assert mean.tolist() == [2.5] * 3
    assert (tmp_path / "out" / "loss.svg").read_text(encoding="utf-8") == "4.0"


def test_models_of_other_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b does not hold the same tensors as .*a"):
        average([leg(tmp_path / "a", 1.0), leg(tmp_path / "b", 4.0, size=4)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
