"""scripts/setup.sh ends and says what to do when npm does not finish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which everything is installed except what checks the pages' scripts."""
    for folder in ("scripts", "tests/web", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    requirements = "torch==1\n"
    (tmp_path / "requirements-test.txt").write_text(requirements)
    (tmp_path / ".venv/installed-requirements-test.txt").write_text(f"cpu {tmp_path}\n{requirements}")
    (tmp_path / "tests/web/package-lock.json").write_text("{}")
    return tmp_path


def set_up(checkout: Path, npm: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a stand-in for npm."""
    stand_in = checkout / ".venv/bin/npm"
    stand_in.write_text(f"#!/usr/bin/env bash\n[ $1 = ci ] || {{ echo https://mirror; exit; }}\n{npm}\n")
    stand_in.chmod(0o755)
    return subprocess.run(
        ["bash", "scripts/setup.sh", "test"],
        cwd=checkout,
        env={**os.environ, "TORCH": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of a process from /proc")
def test_npm_that_hangs_is_stopped_with_what_it_started(checkout: Path) -> None:
    done = set_up(checkout, "sleep 600 & echo $! > child; wait", NPM_TIMEOUT_S="1")
    assert done.returncode == 1
    assert "npm was stopped because it did not finish within 1 seconds" in done.stderr
    assert "https://mirror" in done.stderr
    assert "NPM_TIMEOUT_S" in done.stderr
    child = int((checkout / "child").read_text())
    for _ in range(100):
        if not is_running(child):
            break
        time.sleep(0.1)
    assert not is_running(child)
    assert not (checkout / "tests/web/node_modules").exists()


def test_npm_that_fails_shows_what_it_said(checkout: Path) -> None:
    done = set_up(checkout, "echo network ENOTFOUND; exit 3")
    assert done.returncode == 1
    assert "network ENOTFOUND" in done.stderr
    assert "cannot be reached: https://mirror" in done.stderr


def test_npm_runs_again_only_when_the_lock_file_changes(checkout: Path) -> None:
    install = "mkdir -p tests/web/node_modules; echo run >> runs"
    for _ in range(2):
        assert set_up(checkout, install).returncode == 0
    assert (checkout / "runs").read_text() == "run\n"
    (checkout / "tests/web/package-lock.json").write_text('{"changed": true}')
    assert set_up(checkout, install).returncode == 0
    assert (checkout / "runs").read_text() == "run\nrun\n"
