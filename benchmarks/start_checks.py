"""Measures the CPU seconds of each check of a model at start, and of the whole load.

    python -m benchmarks.start_checks                      # random weights in SmolLM2-135M's shape, and model M
    python -m benchmarks.start_checks models/guide

One thread, three loads each; CPU time, because other programs on the machine hardly affect it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch

from benchmarks.models import make_m, make_smollm2
from engine import EngineSettings
from engine.execution import load
from engine.execution.native import eligibility
from engine.model import load as checkpoint

CHECKS = {
    checkpoint: ("check_positions",),
    eligibility: ("check_parts", "check_sample", "pack_and_check"),
}
LOADS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="model folders; default: models made for this run")
    folders: list[Path] = parser.parse_args().models
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    for owner, names in CHECKS.items():
        for name in names:
            setattr(owner, name, _timed(getattr(owner, name), name, seconds))
    with tempfile.TemporaryDirectory() as scratch:
        for folder in folders or [make_smollm2(Path(scratch) / "SmolLM2-135M"), make_m(Path(scratch) / "M")]:
            for _ in range(LOADS):
                seconds.clear()
                begin = process_time()
                load.load_model(EngineSettings(model=str(folder), device="cpu"), lambda _stage, _fraction: None)
                parts = ", ".join(f"{name} {spent:.2f}" for name, spent in seconds.items())
                print(f"{folder.name}: load {process_time() - begin:.2f} s ({parts})", flush=True)


def _timed(function: Callable[..., Any], name: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        begin = process_time()
        try:
            return function(*arguments, **named)
        finally:
            seconds[name] = process_time() - begin

    return timed


if __name__ == "__main__":
    main()
