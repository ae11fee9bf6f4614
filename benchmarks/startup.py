"""Measures how soon Deskmate starts: its commands, and the server until its page and the model's first token.

    python -m benchmarks.startup                              # five rounds, about a minute on an idle machine
    python -m benchmarks.startup --rounds 9 --against FOLDER  # in alternation with another checkout
    python -m benchmarks.startup --save                       # also writes benchmarks/results/DATE-startup.json
    ENGINE_MODEL=model.gguf python -m benchmarks.startup      # of another model than the guide

Prints medians: the wall-clock seconds that a user waits, and the CPU seconds, which other programs on the machine
hardly affect. A first round, which reads the files from the disk and compiles them, is not counted. While the model
loads, ``GET /health`` is asked again and again on one connection: the longest answer is the page's longest stall.
Memory is what the server's process holds after the first reply (RSS, with the model and the part of its cache that was
used), beside that of a process that only imports torch and gradio.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from benchmarks import machine
from benchmarks.result_files import write_result

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("--help", "doctor", "db check", "user list", "export --to -")
START_TIMEOUT_S = 180.0
POLL_PAUSE_S = 0.1
"""Pause between two requests while the model loads: their CPU seconds count as the server's."""
ADDRESS = re.compile(r"(?:page is|ready) at http://127\.0\.0\.1:(\d+)")
QUESTION = {"stream": True, "messages": [{"role": "user", "content": "Hello"}]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default: 5)")
    parser.add_argument("--against", type=Path, help="another checkout, measured in alternation")
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")
    options = parser.parse_args(arguments)
    checkouts = {"this checkout": ROOT} | ({"the other checkout": options.against} if options.against else {})
    measured: dict[str, dict[str, list[float]]] = {name: {} for name in checkouts}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.rounds + 1):
            for name, folder in checkouts.items():
                for figure, value in _measure(folder, Path(scratch) / name.replace(" ", "-")):
                    if number > 0:
                        measured[name].setdefault(figure, []).append(value)
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    figures = {name: {key: round(median(values), 2) for key, values in each.items()} for name, each in measured.items()}
    for name, each in figures.items():
        print(f"\n{name}:")
        for key, value in each.items():
            print(f"  {key:<42} {value:6.2f}")
    if options.save:
        about = {"machine": machine.describe(), "rounds": options.rounds, "load_average": os.getloadavg()[0]}
        write_result(about | {"medians": figures}, "startup")


def _measure(folder: Path, data: Path) -> Iterator[tuple[str, float]]:
    """Yields each figure of one round, named with its unit."""
    environment = {
        **os.environ,
        "APP_DATA_DIR": str(data),
        "APP_SECRET_KEY": secrets.token_urlsafe(48),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with _server(folder, data, environment) as (process, log):
        begin = monotonic()
        port = _wait_for_address(process, log)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_TIMEOUT_S)
        _get(connection, "/")
        yield "page answers, s", monotonic() - begin
        yield "page answers, CPU s", _cpu_seconds(process.pid)
        stall = 0.0
        while True:
            asked = monotonic()
            _get(connection, "/health")
            stall = max(stall, monotonic() - asked)
            if _get(connection, "/ready") == 200:
                break
            sleep(POLL_PAUSE_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(QUESTION), {"Content-Type": "application/json"})
        response = connection.getresponse()
        while not re.search(rb'"content":"[^"]', response.readline()):
            pass
        yield "first token, s", monotonic() - begin
        yield "first token, CPU s", _cpu_seconds(process.pid)
        yield "longest answer while the model loads, s", stall
        response.read()
        yield "memory after the first reply, MiB", _resident_mib(process.pid)
        connection.close()
    yield "memory of torch and gradio alone, MiB", _imported_mib()
    for command in COMMANDS:
        used = _children_seconds()
        begin = monotonic()
        subprocess.run(
            [sys.executable, "-m", "app", *command.split()],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        yield f"{command}, s", monotonic() - begin
        yield f"{command}, CPU s", _children_seconds() - used


@contextmanager
def _server(folder: Path, data: Path, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    data.mkdir(exist_ok=True)
    log = data / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--port", "0"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, log
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = monotonic() + START_TIMEOUT_S
    while monotonic() < deadline and process.poll() is None:
        if said := ADDRESS.search(log.read_text(errors="replace")):
            return int(said[1])
        sleep(0.01)
    raise RuntimeError(f"The server did not start:\n{log.read_text(errors='replace')}")


def _get(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def _cpu_seconds(pid: int) -> float:
    """CPU seconds that a running process has used, with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    """Memory of a running process in RAM, with the pages of mapped files that it has touched."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


def _imported_mib() -> float:
    process = subprocess.Popen(
        [sys.executable, "-c", "import torch, gradio; print(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"GRADIO_ANALYTICS_ENABLED": "False"},
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        mib = _resident_mib(process.pid)
        process.stdin.close()
    return mib


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
