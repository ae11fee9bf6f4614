"""The container is as fast as a checkout: its image has the C++ decoder compiled for this processor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from statistics import median

import pytest

from tests.e2e.compose.desk import ComposeProject
from tests.fork_server import ROOT

MODEL = "models/guide"
SCRIPT = ROOT / "benchmarks" / "decode_speed.py"
ROUNDS = 3


def test_the_image_has_the_decoder_for_this_processor(desk: ComposeProject) -> None:
    found = desk.try_compose("run", "--rm", "-T", "--no-deps", "app", "deskmate", "doctor").stdout.decode()
    assert re.search(r"C\+\+ decoder: prebuilt for \S+", found), found


def test_decodes_are_as_fast_as_in_a_checkout(desk: ComposeProject, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured in turns, and shown, not asserted: other programs may be busy on this machine."""
    contained, here = [], []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
    for _ in range(ROUNDS):
        command = ("run", "--rm", "-T", "--no-deps", "app", "python", "-", MODEL)
        contained.append(float(desk.compose(*command, given=SCRIPT.read_bytes())))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.decode_speed", MODEL],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        here.append(float(done.stdout))
    with capsys.disabled():
        print(
            f"\ndecodes of one chat in the container: {median(contained):.0f} tok/s, in this checkout "
            f"{median(here):.0f}: {median(contained) / median(here):.2f}x"
        )
