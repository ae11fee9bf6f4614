"""Python that has imported Gradio and nothing of Deskmate: the apps of others in the tests are forks of it."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import uvicorn.protocols.http.auto  # noqa: F401

from tests.fork_server import serve_orders


def _run(script: str, environment: dict[str, str]) -> None:
    """Runs a script as Python does, in its folder."""
    os.environ.update(environment)
    folder = str(Path(script).parent)
    os.chdir(folder)
    sys.path[0] = folder
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    assert not any(name.partition(".")[0] in ("app", "engine") for name in sys.modules)
    serve_orders(_run)
