"""Starts Deskmate from the command line as an operator does, with accounts and a fresh data folder."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from benchmarks.live.browser import Browser

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180
STOP_SECONDS = 60
PASSWORD = "a benchmark's password, 1"


class ServerEnded(Exception):
    """The server process ended; the message has its last log lines."""


class LiveServer:
    """Runs ``python -m app serve`` with the bundled model on a free port; its ``with`` block ends it.

    The server trusts this client as a proxy, so that each user has an address of their own: the server rate-limits
    many accounts at one address.

    Args:
        folder: folder for the data and the log.
        options: further flags of ``deskmate serve``.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.log = folder / "server.log"
        self._command = [
            *(sys.executable, "-m", "app", "serve", "--port", "0", "--data-dir", str(folder / "data"), "--accounts"),
            *("--trusted-proxies", "127.0.0.1", "--messages-per-minute", "100000", *options),
        ]
        self._metrics_token = secrets.token_urlsafe(32)
        # Settings in this process's environment must not reach the server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("APP_", "ENGINE_"))}
        self._environment = environment | {
            "PYTHONPATH": str(ROOT),
            "APP_SECRET_KEY": secrets.token_urlsafe(48),
            "APP_METRICS_TOKEN": self._metrics_token,
        }
        self.port = 0

    def __enter__(self) -> LiveServer:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.log.parent,  # a folder without a .env file
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._setup = self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        """Process id, also the id of the session that the process leads."""
        return self._process.pid

    def require_running(self) -> None:
        """Raises :class:`ServerEnded` if the process has ended."""
        if (code := self._process.poll()) is not None:
            raise ServerEnded(f"The server ended with {code}:\n{self._last_lines()}")

    async def sign_up(self, count: int) -> list[Browser]:
        """Creates ``count`` accounts, each signed in with a browser of its own; the first is the admin."""
        browsers = [Browser(self.port, f"10.0.{number // 250}.{number % 250 + 1}") for number in range(count)]
        await browsers[0].use_link(self._setup, "person-0", PASSWORD)
        for number in range(1, count):
            made = await browsers[0].post("/api/people/invitations", {})
            token = str(made["link"]).rpartition("/invitation/")[2].rpartition("#")[2]
            await browsers[number].use_link(token, f"person-{number}", PASSWORD)
        return browsers

    async def metrics(self, browser: Browser) -> str:
        """Returns the current text of ``/metrics``."""
        return (await browser.get("/metrics", {"Authorization": f"Bearer {self._metrics_token}"})).decode()

    def _wait_until_ready(self) -> str:
        """Waits for the server; returns the token of the link that creates the first admin's account."""
        deadline = monotonic() + START_SECONDS
        while monotonic() < deadline:
            said = self.log.read_text(errors="replace")
            ready = re.search(r"Deskmate is ready at http://127\.0\.0\.1:(\d+)\n", said)
            setup = re.search(r"/setup#(\S+)", said)
            if ready and setup:
                self.port = int(ready[1])
                return setup[1]
            self.require_running()
            sleep(0.1)
        raise ServerEnded(f"The server was not ready in {START_SECONDS} s:\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
