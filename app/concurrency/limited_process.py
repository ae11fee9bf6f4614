"""Runs a module of this program in a process of its own, with limits, that reports by lines of JSON.

The child's last line is its result: ``done``, or ``error`` and ``kind``; lines with ``progress`` come before it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import app
from app.concurrency.fork_host import ForkHost, HostEnded
from app.errors import AppError, BrokenFile, StorageUnavailable, TooLarge

_log = logging.getLogger(__name__)

_MAX_LINE_BYTES = 2**20
_MAX_LOGGED_BYTES = 4096
_SECONDS_TO_END = 5


class ProcessFailed(Exception):
    """The process could not be started, or wrote what is no report. The log has the cause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended."""

    message: dict[str, Any]  #: the last report; empty if there is none
    returncode: int | None
    last_error: str  #: the end of what it wrote to standard error

    @property
    def is_done(self) -> bool:
        return bool(self.message.get("done"))

    def raise_reported(self) -> None:
        """Raises the error that the process reported, if it did."""
        if "error" in self.message:
            kinds: dict[str, type[AppError]] = {one.__name__: one for one in (BrokenFile, StorageUnavailable, TooLarge)}
            raise kinds.get(self.message["kind"], AppError)(self.message["error"])

    @property
    def was_killed(self) -> bool:
        """Whether the system ended it, out of memory: its own limits raise an error or another signal."""
        return self.returncode == -signal.SIGKILL

    @property
    def exceeded_a_limit(self) -> bool:
        """A signal comes from the system, out of memory, or from the CPU time limit."""
        ended_by_signal = self.returncode is not None and self.returncode < 0
        return ended_by_signal or self.last_error.rpartition("\n")[2].startswith("MemoryError")


async def run_limited(
    module: str,
    arguments: tuple[str, ...],
    *,
    source: IO[bytes],
    result: IO[bytes],
    errors: IO[bytes],
    progress: Callable[[float], None],
    started: Callable[[int], None] = lambda _: None,
) -> Ended:
    """Runs ``python -m module descriptor_of_result *arguments`` with ``source`` as its standard input; kills it when
    this task is cancelled. ``errors`` takes its standard error.

    Args:
        started: called with the process's id.

    Raises:
        ProcessFailed: see there.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, str(result.fileno()), *arguments),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            pass_fds=(result.fileno(),),
            env=child_environment(),
            limit=_MAX_LINE_BYTES,
        )
    except OSError as error:
        _log.exception("the process of %s could not be started", module)
        raise ProcessFailed(str(error)) from error
    try:
        started(child.pid)
        assert child.stdout is not None
        message = await _last_message(child.stdout, progress)
        await child.wait()
    except _UnexpectedOutput as error:
        _log.error("the process of %s wrote unexpected output: %s", module, error)
        raise ProcessFailed(str(error)) from error
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    ended = Ended(message, child.returncode, _end_of(errors))
    if "error" not in message and not ended.is_done:
        _log.error(
            "the process of %s ended with status %s: %s", module, child.returncode, ended.last_error or "no output"
        )
    return ended


async def run_forked(
    host: ForkHost,
    arguments: tuple[str, ...],
    *,
    imports: tuple[str, ...],
    source: IO[bytes],
    result: IO[bytes],
    errors: IO[bytes],
    progress: Callable[[float], None],
    started: Callable[[int], None] = lambda _: None,
) -> Ended:
    """The same with a child of ``host``, for one at a time. Ends the host, too, when this task is cancelled.

    Args:
        imports: modules that the child needs; see :meth:`ForkHost.fork`.

    Raises:
        ProcessFailed: as :func:`run_limited`.
    """
    reading, writing = os.pipe()
    pid: int | None = None
    code: int | None = None
    try:
        with os.fdopen(reading, "rb", 0) as reports:
            try:
                descriptors = (source.fileno(), writing, errors.fileno(), result.fileno())
                pid = await host.fork(arguments, descriptors, imports)
            finally:
                os.close(writing)
            started(pid)
            stdout = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stdout), reports
            )
            try:
                message = await _last_message(stdout, progress)
            finally:
                transport.close()
        code = await host.exit_code()
    except (OSError, HostEnded, _UnexpectedOutput) as error:
        _log.error("the process of a task failed: %s", error or "the host has ended")
        raise ProcessFailed(str(error)) from error
    finally:
        if code is None:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            host.kill()
    ended = Ended(message, code, _end_of(errors))
    if "error" not in message and not ended.is_done:
        _log.error("a forked process ended with status %s: %s", code, ended.last_error or "no output")
    return ended


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has taken; None where the system does not tell, or the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def send(**message: object) -> None:
    """Reports to the process that runs this one by :func:`run_limited`."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def progress_sender() -> Callable[[float], None]:
    """A function that reports progress, at most once for each hundredth."""
    shown = -1.0

    def progress(fraction: float) -> None:
        nonlocal shown
        if fraction - shown >= 0.01:
            shown = fraction
            send(progress=fraction)

    return progress


def limit_this_process(*, max_memory_bytes: int, max_seconds: int) -> None:
    """Limits this process's memory and CPU time. If the system supports no such limit, the server's own limits hold."""
    for kind, soft, hard in (
        (resource.RLIMIT_AS, max_memory_bytes, max_memory_bytes),
        (
            resource.RLIMIT_CPU,
            max_seconds,
            max_seconds + _SECONDS_TO_END,
        ),  # SIGXCPU at the first, SIGKILL at the second
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


class _UnexpectedOutput(Exception):
    """The child's standard output has a line that :func:`send` does not write."""


async def _last_message(stdout: asyncio.StreamReader, progress: Callable[[float], None]) -> dict[str, Any]:
    """The child's last message; empty if it wrote none.

    Raises:
        _UnexpectedOutput: a line is not such a message.
    """
    message: dict[str, Any] = {}
    while True:
        try:
            line = await stdout.readline()
        except ValueError as error:  # line longer than the stream's limit
            raise _UnexpectedOutput(str(error)) from error
        if not line:
            return message
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise TypeError("an object should stand here")
            fraction = float(message["progress"]) if "progress" in message else None
            if "error" in message:
                message["error"], message["kind"] = str(message["error"]), str(message["kind"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _UnexpectedOutput(repr(line[:_MAX_LOGGED_BYTES])) from error
        if fraction is not None:
            progress(fraction)


def child_environment() -> dict[str, str]:
    """The environment of a process that imports what this one does."""
    return os.environ | {"PYTHONPATH": _search_path()}


def _search_path() -> str:
    """This process's module search path for another process, without the current folder, which may contain any files,
    unless it contains this program."""
    here, home = os.getcwd(), str(Path(app.__file__).parents[1])
    folders = [folder or here for folder in sys.path if not folder or os.path.isabs(folder)]
    return os.pathsep.join(folder for folder in folders if folder != here or folder == home)


def _end_of(errors: IO[bytes]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MAX_LOGGED_BYTES))
    return errors.read().decode(errors="replace").strip()
