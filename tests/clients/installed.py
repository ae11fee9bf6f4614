"""The clients that `scripts/clients.sh` installs, and how tests run programs with them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
NODE = ROOT / ".venv" / "bin" / "node"
PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node"
TIMEOUT_SECONDS = 300

#: Nothing is looked up elsewhere, and nothing is reported.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "OPENAI_API_KEY": "unused",
    "AI_SDK_LOG_WARNINGS": "false",
}


def require(installed: Path) -> None:
    """Skips the test if `scripts/clients.sh` has not installed the clients."""
    if not installed.exists():
        pytest.skip("the clients are not installed: scripts/clients.sh (part of make test-full) installs them")


async def run_python(program: str, *arguments: str) -> Any:
    """Runs one of :data:`PROGRAMS`, and returns the JSON value of the last line that it prints."""
    require(PYTHON.parents[1] / "installed.txt")
    return json.loads((await run([PYTHON, PROGRAMS / program, *arguments])).splitlines()[-1])


async def run_node(program: str, *arguments: str) -> Any:
    """The same with one of :data:`NODE_PROGRAMS`."""
    require(NODE_PROGRAMS / "node_modules" / "installed.json")
    return json.loads((await run([NODE, NODE_PROGRAMS / program, *arguments])).splitlines()[-1])


async def run(command: Sequence[str | Path], **environment: str) -> str:
    """Runs a command and returns what it prints. Fails with its errors if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | ENVIRONMENT | environment,
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        pytest.fail(f"{Path(command[1]).name} failed:\n{errors.decode()[-4000:]}\n{output.decode()[-2000:]}")
    return output.decode()
