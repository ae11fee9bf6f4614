"""Processes that start quickly: a parent that has imported what takes seconds forks one for each order.

The parent runs a module that ends in :func:`serve_orders`. It reads one order per line and answers with one line, both
JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
CLOSE_SECONDS = 60


class ForkServer:
    """The parent, seen by the tests."""

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Args:
        module: calls :func:`serve_orders`.
        folder: where its children work.
        """
        self._parent = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # no threads: it forks
            text=True,
            start_new_session=True,  # Ctrl+C is for pytest
        )

    def fork(self, log: Path, **order: object) -> ForkedProcess:
        """Starts a child that follows the order; its output goes to the end of ``log``."""
        return ForkedProcess(self, self._ask(start=order, log=str(log))["pid"])

    def exit_code(self, pid: int) -> int | None:
        """How a child ended, as in :attr:`subprocess.Popen.returncode`; None while it runs."""
        code: int | None = self._ask(code_of=pid)["code"]
        return code

    def close(self) -> None:
        """Ends the parent, and every child that still runs."""
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(CLOSE_SECONDS)

    def _ask(self, **order: object) -> dict[str, Any]:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(json.dumps(order), file=self._parent.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._parent.stdout.readline())
        return answer


class ForkedProcess:
    """One child, with the methods of :class:`subprocess.Popen`."""

    def __init__(self, parent: ForkServer, pid: int) -> None:
        self.pid = pid
        self._parent = parent

    def poll(self) -> int | None:
        return self._parent.exit_code(self.pid)

    def wait(self, timeout: float) -> int:
        for _ in poll_for(timeout):
            code = self.poll()
            if code is not None:
                return code
        raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def poll_for(seconds: float) -> Iterator[None]:
    """Looks, for so many seconds of a machine that does not stand still meanwhile: its clock would go on."""
    for _ in range(round(seconds * 100)):
        yield
        time.sleep(0.01)
    yield


def serve_orders(run: Callable[..., None]) -> None:
    """The parent's loop, until the tests end or close it. ``run`` follows an order, in a child."""
    gc.freeze()  # or each child's first collection would copy what all share
    children: dict[int, int | None] = {}  # exit codes
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            pid = os.fork()
            if pid == 0:
                _run_child(run, order["start"], order["log"])
            children[pid] = None
            answer: dict[str, Any] = {"pid": pid}
        else:
            pid = order["code_of"]
            if children[pid] is None:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    children[pid] = os.waitstatus_to_exitcode(status)
            answer = {"code": children[pid]}
        print(json.dumps(answer), flush=True)
    for pid, code in children.items():  # the tests are over
        if code is None:
            os.kill(pid, signal.SIGKILL)


def _run_child(run: Callable[..., None], order: dict[str, Any], log: str) -> NoReturn:
    code: str | int | None = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for file, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(file, number)
        run(**order)
        code = 0
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
