"""Servers as processes: started, killed, asked to stop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 60  #: for what takes a moment on an idle machine

#: For what should happen soon: replies are written often, and a dead process is known for dead at once.
QUICK = {"checkpoint_seconds": 0.03, "shutdown_seconds": 0.5, "lease_seconds": 1}
#: Where there are several servers, and none of them dies: a slow one is not taken for dead.
LONG_LEASE = {"lease_seconds": 600}


class ServerHost:
    """The parent of all servers."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for logs."""
        self._folder = folder
        # No setting of the person who runs the tests reaches the servers, nor does a .env file.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("APP_", "ENGINE_"))}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl+C is for pytest
        )
        self._started = 0

    def close(self) -> None:
        """End the parent, and every server that still runs."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(TIMEOUT_SECONDS)

    def launch(
        self,
        data_dir: Path,
        database_url: str | None = None,
        *,
        delay: float = 0.002,
        constants: dict[str, float] | None = None,
        page: bool = False,
        **settings: object,
    ) -> ServerProcess:
        """A server that begins to start.

        Args:
            delay: seconds before each word of a reply.
            constants: of modules, by their full name.
            page: with the page, not only the APIs.
            settings: fields of ``AppSettings``; None is the default.
        """
        self._started += 1
        log = self._folder / f"server-{self._started}.log"
        values = {"port": 0, "data_dir": data_dir, **QUICK, **settings}
        if database_url is not None:
            values["database_url"] = database_url
        order = {
            "log": str(log),
            "environment": {f"APP_{name.upper()}": str(value) for name, value in values.items() if value is not None},
            "constants": constants or {},
            "delay": delay,
            "page": page,
        }
        return ServerProcess(self, self.ask(start=order)["pid"], log)

    def ask(self, **order: object) -> dict[str, Any]:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(json.dumps(order), file=self._parent.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._parent.stdout.readline())
        return answer


class ServerProcess:
    """One server. It may die at any time."""

    def __init__(self, host: ServerHost, pid: int, log: Path) -> None:
        self.pid = pid
        self.url = ""
        self._host = host
        self._log = log

    @property
    def log(self) -> str:
        """What it has written to its terminal."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        code: int | None = self._host.ask(code_of=self.pid)["code"]
        return code

    def wait_until_ready(self) -> None:
        if not self.wait_for_start():
            raise AssertionError(f"The server ended with {self.code}:\n{self.log}")

    def wait_for_start(self) -> bool:
        """Wait until it is ready, or has ended."""
        for _ in _poll_for(TIMEOUT_SECONDS):
            ready = re.search(r"Deskmate is ready at (\S+)", self.log)
            if ready:
                self.url = ready[1]
                return True
            if self.code is not None:
                return False
        raise AssertionError(f"The server is not ready yet:\n{self.log}")

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait(TIMEOUT_SECONDS) == -signal.SIGKILL

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """Wait for its end; returns the exit code."""
        for _ in _poll_for(seconds):
            code = self.code
            if code is not None:
                return code
        raise AssertionError(f"The server has not ended in {seconds} seconds:\n{self.log}")

    async def ended(self, seconds: float) -> int:
        """The same without holding up the event loop."""
        return await asyncio.to_thread(self.wait, seconds)

    def end(self) -> None:
        """Make sure that it does not run."""
        if self.code is None:
            self.kill()


def _poll_for(seconds: float) -> Iterator[None]:
    """Looks, for so many seconds of a machine that does not stand still meanwhile: its clock would go on."""
    for _ in range(round(seconds * 100)):
        yield
        time.sleep(0.01)
    yield
