"""Deskmate as a person starts it: a process of its own, with its own data folder."""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self

from tests.fork_server import ROOT, ForkedProcess, ForkServer

START_SECONDS = 120
STOP_SECONDS = 60


#: No server asks the Hub, and none takes more than one core.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@cache
def fork_server(module: str) -> ForkServer:
    """The parent of processes that have imported what ``module`` imports, for all tests of this process."""
    parent = ForkServer(module, ROOT, os.environ | ENVIRONMENT)
    atexit.register(parent.close)
    return parent


class Server:
    """``deskmate serve`` on a port of its own, which stays the same over restarts; ``with`` starts and stops it.

    It is forked from a process that has imported everything; with a program or an environment of its own, it imports
    them itself.
    """

    def __init__(
        self,
        model: Path,
        data_dir: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: tuple[str, ...] | None = None,
    ) -> None:
        """Args:
        environment: variables besides the tests' own.
        program: Python's arguments before the command.
        """
        self.port = 0  #: the system's to choose: one that was free a moment ago may be another's by now
        self.data_dir = data_dir
        self._log = data_dir.with_suffix(".log")
        self._arguments = ["serve", "--model", str(model), "--data-dir", str(data_dir), *options]
        self._environment = environment
        self._program = program
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:  # a test's time may end meanwhile
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it is, from its first start on."""
        assert self.port, "The server was never started."
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return once the server is ready; fail with its log if it ends or takes too long."""
        self._log.touch()
        self._process = self._launch([*self._arguments, "--port", str(self.port)])
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            code = self._process.poll()
            if code is not None:
                raise RuntimeError(f"The server ended with {code}:\n{self._log.read_text()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"The server was not ready in {START_SECONDS} s:\n{self._log.read_text()}")
            time.sleep(0.2)

    def _launch(self, arguments: list[str]) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._program is None and self._environment is None:
            return fork_server("tests.e2e.forked").fork(self._log, arguments=arguments)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *(self._program or ("-m", "app")), *arguments],
                cwd=ROOT,
                env=os.environ | ENVIRONMENT | dict(self._environment or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log_tail(self) -> str:
        """The last lines it wrote, and whether it runs."""
        state = "running" if self._process and self._process.poll() is None else "ended"
        return "\n".join([*self._log.read_text(errors="replace").splitlines()[-30:], f"[{state}]"])

    def stop(self) -> None:
        """Ask the process to end in order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._process = None

    def kill(self) -> None:
        """End the process as a power cut would."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def _is_ready(self) -> bool:
        if not self.port:
            said = re.search(r"Deskmate is ready at http://127\.0\.0\.1:(\d+)\n", self._log.read_text(errors="replace"))
            if said is None:
                return False
            self.port = int(said[1])
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
