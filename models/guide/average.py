"""The mean of the weights that several legs of one training ended with.

    .venv/bin/python models/guide/average.py build/leg-1 build/leg-2 --out models/guide

Legs that go on from one another end in different places of the same valley, and between them it is deeper: the mean of
their weights answers more questions than either (Izmailov et al., "Averaging Weights Leads to Wider Optima and Better
Generalization", UAI 2018). Everything but the weights is the last leg's.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def mean(models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Of each tensor, in the dtype that it has."""
    return {name: torch.stack([one[name] for one in models]).mean(0) for name in models[0]}


def average(legs: Sequence[Path], out: Path) -> None:
    """Write the mean of the models in ``legs`` to ``out``, each number in the dtype that it had.

    Raises:
        ValueError: they are not of one shape.
    """
    weights = [load_file(leg / WEIGHTS) for leg in legs]
    shapes = [{name: (tensor.shape, tensor.dtype) for name, tensor in one.items()} for one in weights]
    for leg, shape in zip(legs, shapes, strict=True):
        if shape != shapes[0]:
            raise ValueError(f"{leg} does not hold the same tensors as {legs[0]}.")
    exact = mean([{name: tensor.double() for name, tensor in one.items()} for one in weights])
    rounded = {name: tensor.to(weights[0][name].dtype) for name, tensor in exact.items()}
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(legs[-1].iterdir()):
        if file.is_file() and file.name != WEIGHTS:
            shutil.copyfile(file, out / file.name)
    save_file(rounded, out / WEIGHTS, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Average the weights of several legs of the guide's training.")
    parser.add_argument("legs", type=Path, nargs="+", help="folders of models, in the order of their training")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to; not one of the legs")
    options = parser.parse_args()
    average(options.legs, options.out)


if __name__ == "__main__":
    main()
