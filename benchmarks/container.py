"""Compares the speed of decodes in the container image with that in this checkout, in alternation.

    docker compose build app
    python -m benchmarks.container                 # the image deskmate:cpu, nine rounds
    python -m benchmarks.container --model FILE.gguf --rounds 5
    python -m benchmarks.container --save          # also writes benchmarks/results/DATE-container-MODEL.json

Each round starts the engine in both, one after the other, and takes the best of several replies. The ratio is the
median of the rounds' ratios, so that a busy machine, which slows both sides of a round, hardly changes it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import decode_speed, machine
from benchmarks.result_files import write_result

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(decode_speed.__file__)
IMAGE = "deskmate:cpu"
GUIDE = "models/guide"
ROUNDS = 9
TIMEOUT_S = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default=IMAGE, help=f"default: {IMAGE}")
    parser.add_argument("--model", default=GUIDE, help="a folder or file; default: the bundled guide")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")
    options = parser.parse_args(arguments)
    compared = compare(options.image, options.model, options.rounds)
    print(sentence(compared))
    if options.save:
        about = {"machine": machine.describe(), "model": Path(options.model).name, "load_average": os.getloadavg()[0]}
        write_result(about | compared, f"container-{Path(options.model).stem}")


def compare(image: str, model: str = GUIDE, rounds: int = ROUNDS) -> dict[str, Any]:
    """Returns the medians of both sides, and the medians of the rounds' ratios: above 1, the container is faster."""
    measured: dict[str, list[dict[str, float]]] = {"container": [], "checkout": []}
    for number in range(rounds):
        sides = [("container", in_container(image, model)), ("checkout", in_checkout(model))]
        for name, command in sides if number % 2 == 0 else sides[::-1]:
            measured[name].append(_run(command))
    pairs = list(zip(measured["container"], measured["checkout"], strict=True))
    return {
        "rounds": rounds,
        "medians": {
            name: {figure: median(one[figure] for one in each) for figure in each[0]} for name, each in measured.items()
        },
        "ratios": {
            "tokens_per_s": round(median(ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in pairs), 3),
            "cpu_us_per_token": round(
                median(theirs["cpu_us_per_token"] / ours["cpu_us_per_token"] for ours, theirs in pairs), 3
            ),
        },
    }


def sentence(compared: dict[str, Any]) -> str:
    ours, theirs = compared["medians"]["container"], compared["medians"]["checkout"]
    ratios = compared["ratios"]
    return (
        f"decodes of one chat in the container: {ours['tokens_per_s']:.0f} tok/s, in this checkout "
        f"{theirs['tokens_per_s']:.0f}: {ratios['tokens_per_s']:.2f}x; CPU time for a token "
        f"{ours['cpu_us_per_token']:.0f} and {theirs['cpu_us_per_token']:.0f} µs: {ratios['cpu_us_per_token']:.2f}x"
    )


def in_container(image: str, model: str) -> list[str]:
    """Returns the command that measures in the image, as confined as docker-compose.yml confines it."""
    path = Path(model).resolve()
    mount = [] if model == GUIDE else ["--volume", f"{path}:{path}:ro"]
    confined = ["--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    inside = GUIDE if model == GUIDE else str(path)
    return ["docker", "run", "--rm", "--interactive", *confined, *mount, image, "python", "-", inside]


def in_checkout(model: str) -> list[str]:
    return [sys.executable, "-", model if model == GUIDE else str(Path(model).resolve())]


def _run(command: list[str]) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
    with SCRIPT.open("rb") as script:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=script, capture_output=True, check=False, timeout=TIMEOUT_S
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main()
