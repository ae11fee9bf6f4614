"""Runs the stages of ``python -m benchmarks.gpu_check``, one process after another."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import torch

import benchmarks.gpu_check
from benchmarks.gpu_check.agreement import agreement, more_agreement
from benchmarks.gpu_check.check import Results, Stage, StageContext, about, default_output
from benchmarks.gpu_check.idle import idle
from benchmarks.gpu_check.memory import memory
from benchmarks.gpu_check.speed import beside_generate, eight_bits, graphs, llama
from benchmarks.gpu_check.workload import workload

STAGES = (
    Stage("agreement", 2, "attention kernels, 8-bit products, CUDA graphs and greedy replies agree", agreement),
    Stage("llama-8b", 4, "one chat on Llama-3-8B's shape: share of bandwidth, first token, weights to ready", llama),
    Stage("eight-bits", 5, "int8 and fp8 against bfloat16 on that shape; perplexity of the guide", eight_bits),
    Stage("workload", 8, "nano-vllm's workload, beside transformers' continuous batching", workload),
    Stage("graphs", 3, "decodes with CUDA graphs against decodes without", graphs),
    Stage("idle", 4, "share of time the GPU is idle with 128 chats", idle),
    Stage("beside-generate", 4, "1, 8 and 64 chats beside transformers' generate", beside_generate),
    Stage("memory", 3, "memory at start, asleep, awake, and run out", memory),
    Stage("more-agreement", 4, "other families, GGUF, adapters, bfloat16, batch invariance", more_agreement),
)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for stage in STAGES:
            print(f"{stage.name:16} {stage.minutes:g} minutes at most: {stage.tells}")
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    output: Path = options.output or default_output(datetime.now(UTC).isoformat())
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results(output)
    if options.stage:
        run(options.stage, device, options, results)
        return 0
    results.all |= {"machine": about(device), "rehearsal": options.rehearse}
    results.write()
    deadline = monotonic() + 60 * options.minutes
    left: list[str] = []
    for stage in STAGES:
        if stage.name in (options.only or [stage.name]) and not results.stages.get(stage.name, {}).get("done"):
            if options.rehearse:
                run(stage.name, device, options, results)
            elif monotonic() + 60 * stage.minutes > deadline:
                left.append(stage.name)
            else:
                in_a_process(stage, options, output)
                results = Results(output)
    failed = results.failed()
    print("\n".join(f"FAILED {line}" for line in failed) or "no failures")
    if left:
        print(f"no time left for {', '.join(left)}: run again with --output {output}")
    print(f"written to {output}")
    return 1 if failed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=benchmarks.gpu_check.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [stage.name for stage in STAGES]
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("--only", nargs="+", choices=names, help="run only these stages")
    parser.add_argument("--minutes", type=float, default=30, help="time limit; a stage that may not fit is skipped")
    parser.add_argument("--rehearse", action="store_true", help="tiny models, a few tokens; needs no GPU")
    parser.add_argument("--output", type=Path, help="results file; an existing one is continued")
    parser.add_argument("--nano-vllm", type=Path, help="folder that holds the package nanovllm")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "deskmate-gpu-check", help="model folder, 18 GB"
    )
    parser.add_argument("--stage", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not (torch.cuda.is_available() or options.rehearse or options.list):
        parser.error("PyTorch finds no GPU. Use --rehearse to test the script without one.")
    return options


def run(name: str, device: str, options: argparse.Namespace, results: Results) -> None:
    stage = next(stage for stage in STAGES if stage.name == name)
    results.stages.pop(name, None)  # from an incomplete run
    check = StageContext(device, options.rehearse, options.folder, name, results, options.nano_vllm)
    stage.run(check)
    results.stages.setdefault(name, {"parts": {}})["done"] = True
    results.write()


def in_a_process(stage: Stage, options: argparse.Namespace, output: Path) -> None:
    """Runs a stage in its own process: a device fault ends only this stage, and its memory is freed afterwards."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--stage", stage.name]
    command += ["--output", str(output), "--folder", str(options.folder)]
    if options.nano_vllm is not None:
        command += ["--nano-vllm", str(options.nano_vllm)]
    said = ""
    try:
        ended = subprocess.run(command, check=False, timeout=60 * stage.minutes)
        if ended.returncode:
            said = f"its process ended with {ended.returncode}"
    except subprocess.TimeoutExpired:
        said = f"it was not done after {stage.minutes:g} minutes"
    if said:
        results = Results(output)
        parts = results.stages.setdefault(stage.name, {"parts": {}})["parts"]
        parts["all of it"] = {"ok": False, "error": said}
        results.write()


if __name__ == "__main__":
    sys.exit(main())
