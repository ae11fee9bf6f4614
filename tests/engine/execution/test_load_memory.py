"""How much memory a start takes at most, against what stays when the model is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from testing.models import make_model
from testing.native import needs_compiler

MAX_PEAK = 1.3
"""Most that the peak may be, as a multiple of the memory that the loaded model takes."""
LAYERS, HIDDEN = 36, 768  # many layers: what the check of one takes beside the weights does not grow with them

LOAD = """
import gc, json, sys
import engine.execution.native.decoder as decoder
from engine import EngineSettings
from engine.device.memory import release_memory
from engine.execution.load import load_model

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

decoder.MAX_ROWS_WITHOUT_AVX2 = sys.maxsize
load = lambda path: load_model(EngineSettings(model=path, device="cpu", dtype="bfloat16", quantization="int4"), print)
load(sys.argv[1])  # a tiny model, so that everything that a load imports is there
release_memory()
before = kilobytes("VmRSS")
model = load(sys.argv[2])
peak = kilobytes("VmHWM")
release_memory()
assert model.module is None
print(json.dumps({"before": before, "peak": peak, "after": kilobytes("VmRSS")}))
"""


def make_shards(path: Path) -> Path:
    """Saves a model of 370 M parameters in bfloat16, one shard for each layer; returns ``path``."""
    make_model(path, "llama", layers=1, hidden=HIDDEN, heads=12, kv_heads=6, vocab_size=400)
    config = json.loads((path / "config.json").read_text())
    config |= {"num_hidden_layers": LAYERS, "intermediate_size": 5 * HIDDEN, "dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").unlink()
    with torch.device("meta"):
        module: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.bfloat16)
    files: dict[str, str] = {}
    dice = torch.Generator().manual_seed(0)
    for index, part in enumerate((*module.model.layers, None)):
        prefix = f"model.layers.{index}."
        names = [name for name, _ in module.named_parameters() if name not in files]
        chosen = [name for name in names if part is None or name.startswith(prefix)]
        shapes = {name: module.get_parameter(name).shape for name in chosen}
        tensors = {name: torch.randn(shape, generator=dice).mul_(0.02).bfloat16() for name, shape in shapes.items()}
        file = f"model-{index:05}.safetensors"
        save_file(tensors, path / file, {"format": "pt"})
        files |= dict.fromkeys(chosen, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return path


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_peak_of_an_int4_start_is_little_more_than_the_model(tmp_path: Path) -> None:
    tiny, large = make_model(tmp_path / "tiny", "llama"), make_shards(tmp_path / "large")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tiny), str(large)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    memory = json.loads(done.stdout.splitlines()[-1])
    model = memory["after"] - memory["before"]
    assert model > 150_000
    assert memory["peak"] - memory["before"] < MAX_PEAK * model, memory
