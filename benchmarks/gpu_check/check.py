"""The context shared by all stages: the device, the models, and the results file."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks import machine, models
from engine import EngineSettings
from testing.models import make_model

SHAPES = {"llama-8b": (models.make_llama_8b, "llama"), "qwen3-0.6b": (models.make_qwen3_06b, "qwen3")}
"""Shape -> the function that makes the model, and the tiny model's family that replaces it in a rehearsal."""


@dataclass(frozen=True)
class Stage:
    """A group of checks that runs in one process."""

    name: str
    minutes: float  #: time limit; the process is killed after it
    tells: str
    run: Callable[[StageContext], None]


class Results:
    """The results, a JSON file that is written completely after every part."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.all: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"stages": {}}

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.all["stages"]
        return found

    def write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self.all, indent=1) + "\n")
        new.replace(self._file)

    def failed(self) -> list[str]:
        return [
            f"{stage}: {name}: {part['error']}"
            for stage, found in self.stages.items()
            for name, part in found["parts"].items()
            if not part["ok"]
        ]


@dataclass
class StageContext:
    """One stage's run.

    Args:
        rehearse: use tiny models and a few tokens, on any device.
        nano_vllm: folder that holds the package nanovllm, or None.
    """

    device: str
    rehearse: bool
    folder: Path
    stage: str
    results: Results
    nano_vllm: Path | None = None

    def part(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs one part and records its result or its error."""
        print(f"{self.stage}: {name} ...", flush=True)
        begin = perf_counter()
        try:
            result = {"ok": True} | work()
        except Exception as error:  # recorded as a failure; the other parts still run
            traceback.print_exc()
            result = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        result["seconds"] = round(perf_counter() - begin, 1)
        self.results.stages.setdefault(self.stage, {"parts": {}})["parts"][name] = result
        self.results.write()
        print(f"  {json.dumps(result)}", flush=True)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return result

    def settings(self, path: Path, **options: Any) -> EngineSettings:
        return EngineSettings.model_validate({"model": str(path), "device": self.device, **options})

    def tiny(self, family: str) -> Path:
        path = self.folder / family
        return path if path.exists() else make_model(path, family, eos=False)

    def model(self, shape: str) -> Path:
        """Returns the folder of a model of :data:`SHAPES`, made once for all stages."""
        make, family = SHAPES[shape]
        if self.rehearse:
            return self.tiny(family)
        path = self.folder / shape
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as unfinished:
                make(Path(unfinished) / shape).rename(path)
        return path

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def about(device: str) -> dict[str, Any]:
    """Describes the machine, its GPU and driver, and the versions."""
    found = machine.describe()
    versions: dict[str, str] = {}
    for package in ("torch", "transformers", "triton", "flash-attn", "flash-attn-3"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    found["versions"] = versions
    if device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["gpu"] = torch.cuda.get_device_name()
        found["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["cuda"] = torch.version.cuda
        found["driver"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return found


def default_output(date: str) -> Path:
    where = Path(os.environ.get("OUT") or Path(__file__).resolve().parents[1] / "results")
    return where / f"{date[:10]}-gpu_check.json"
