"""Controls a peer's process from the bench: starts it, sends chats, freezes it between its turns, and ends it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 900
RUN_SECONDS = 900
LAST_WORDS_SECONDS = 5


class PeerError(Exception):
    """A peer failed or cannot run a workload; the message says why."""


class PeerProcess:
    """One loaded peer, in a session of its own.

    A peer is frozen by a signal between its turns, because some engines spin or wake up while they are idle.

    Args:
        command: Python and the peer's module.
        load: the model and settings to load.
        log: file for the peer's output.
        environment: added to this process's environment.
    """

    def __init__(self, command: Sequence[str], load: PeerConfig, log: Path, environment: Mapping[str, str]) -> None:
        began = monotonic()
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(load))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
                env={**_environment(), "OMP_NUM_THREADS": str(load.threads), **environment},
                start_new_session=True,
                bufsize=0,
            )
        self._rest = b""
        try:
            self.versions: dict[str, str] = self._read(START_SECONDS)["versions"]
        except BaseException:
            self.stop()
            raise
        self.start_seconds = monotonic() - began  #: from the start of the process to its first token

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps([asdict(chat) for chat in chats]) + "\n").encode())
        except BrokenPipeError:
            raise PeerError(f"it died: {_last_line(self._log)}") from None
        answer = self._read(RUN_SECONDS)
        return [TimedReply(**reply) for reply in answer["replies"]], answer["extra"]

    @property
    def session(self) -> int:
        return self._process.pid

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process. Idempotent."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.session, number)
        except ProcessLookupError:
            return  # the process has ended; the next read reports it

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                raise PeerError(f"it did not answer within {seconds:.0f} s")
            piece = self._process.stdout.read(1 << 20)
            if not piece:
                with suppress(subprocess.TimeoutExpired):  # its last words may follow the end of its output
                    self._process.wait(LAST_WORDS_SECONDS)
                raise PeerError(f"it died: {_last_line(self._log)}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer


def _environment() -> dict[str, str]:
    """Returns this process's environment, in which the project is found, less what ``import engine`` set for itself."""
    inherited = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][:300]} ({log})" if lines else f"it printed nothing ({log})"
