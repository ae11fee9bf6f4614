"""Servers as processes: started, killed, asked to stop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

from tests.fork_server import ForkedProcess, ForkServer, poll_for

TIMEOUT_SECONDS = 60  #: for what takes a moment on an idle machine

#: For what should happen soon: replies are written often, and a dead process is known for dead at once.
QUICK = {"checkpoint_seconds": 0.03, "shutdown_seconds": 0.5, "lease_seconds": 1}
#: Where there are several servers, and none of them dies: a slow one is not taken for dead.
LONG_LEASE = {"lease_seconds": 600}


class ServerHost(ForkServer):
    """The parent of all servers."""

    def __init__(self, folder: Path) -> None:
        """``folder``: for logs."""
        # No setting of the person who runs the tests reaches the servers, nor does a .env file.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("APP_", "ENGINE_"))}
        super().__init__("tests.faults.server", folder, environment)
        self._folder = folder
        self._started = 0

    def launch(
        self,
        data_dir: Path,
        database_url: str | None = None,
        *,
        delay: float = 0.002,
        constants: dict[str, float] | None = None,
        page: bool = False,
        encoder: bool = False,
        **settings: object,
    ) -> ServerProcess:
        """A server that begins to start.

        Args:
            delay: seconds before each word of a reply.
            constants: of modules, by their full name.
            page: with the page, not only the APIs.
            encoder: with search by meaning.
            settings: fields of ``AppSettings``; None is the default.
        """
        self._started += 1
        log = self._folder / f"server-{self._started}.log"
        values = {"port": 0, "data_dir": data_dir, **QUICK, **settings}
        if database_url is not None:
            values["database_url"] = database_url
        process = self.fork(
            log,
            environment={f"APP_{name.upper()}": str(value) for name, value in values.items() if value is not None},
            constants=constants or {},
            delay=delay,
            page=page,
            encoder=encoder,
        )
        return ServerProcess(process, log)


class ServerProcess:
    """One server. It may die at any time."""

    def __init__(self, process: ForkedProcess, log: Path) -> None:
        self.pid = process.pid
        self.url = ""
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it has written to its terminal."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def wait_until_ready(self) -> None:
        if not self.wait_for_start():
            raise AssertionError(f"The server ended with {self.code}:\n{self.log}")

    def wait_for_start(self) -> bool:
        """Wait until it is ready, or has ended."""
        for _ in poll_for(TIMEOUT_SECONDS):
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
        for _ in poll_for(seconds):
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
