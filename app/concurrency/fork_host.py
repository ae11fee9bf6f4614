"""A process that has imported a module, and forks a child for each task: starting Python takes longer than most tasks.

The host never touches the data of a task, so each child is as clean as a process of its own. It gives orders one at a
time, and ends when it has none for a while, or when the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from types import ModuleType
from typing import Any, NoReturn

IDLE_SECONDS = 60.0
"""A host without orders ends after this time, and its memory is free. The next order starts another one."""
_REUSE_SECONDS = 40.0
"""After this time another host is started, since the old one may end while an order is on its way."""
_MAX_LINE_BYTES = 65_536
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


class HostEnded(Exception):
    """The host has ended, such as by the system when memory ran out."""


class ForkHost:
    """The host, seen by the process that gives the orders. Used from one event loop, for one order at a time.

    Args:
        module: a module with ``prepare(*arguments)``, which the host calls once, and ``main()``, which each child runs.
        arguments: of ``prepare``.
        environment: of the host.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._module = module
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._used = monotonic()

    async def fork(self, arguments: Sequence[str], descriptors: Sequence[int], imports: Sequence[str]) -> int:
        """Starts a child and returns its process id.

        Args:
            arguments: of the child's ``sys.argv``, after the number of the result's descriptor.
            descriptors: standard input, output and error, and the result's.
            imports: modules that the host imports before, for this child and later ones.

        Raises:
            OSError: the host cannot be started.
            HostEnded: it ends at once.
        """
        order = json.dumps({"arguments": list(arguments), "imports": list(imports)}).encode() + b"\n"
        if monotonic() - self._used > _REUSE_SECONDS:
            self.kill()
        for _ in range(2):
            orders = self._socket
            if orders is None:
                orders = await asyncio.to_thread(self._start)
            try:
                socket.send_fds(orders, [order], list(descriptors))
            except (BrokenPipeError, ConnectionResetError):  # the host had ended, and nothing has begun
                self.kill()
                continue
            return int((await self._answer())["pid"])
        raise HostEnded

    async def exit_code(self) -> int:
        """Waits for the child's end; a negative number is a signal, as in :attr:`subprocess.Popen.returncode`.

        Raises:
            HostEnded: see there.
        """
        code = int((await self._answer())["code"])
        self._used = monotonic()
        return code

    def kill(self) -> None:
        """Ends the host, and its child."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> socket.socket:
        here, there = socket.socketpair()
        with there:
            descriptor = str(there.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, descriptor, self._module, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
                env=dict(self._environment),
            )
        here.setblocking(False)
        self._socket = here
        return here

    async def _answer(self) -> dict[str, Any]:
        """Reads a line, which is never followed by another before the next order or the child's end."""
        orders, line = self._socket, b""
        if orders is None:
            raise HostEnded
        loop = asyncio.get_running_loop()
        while not line.endswith(b"\n"):
            try:
                part = await loop.sock_recv(orders, 1)
            except ConnectionResetError:
                part = b""
            if not part:
                raise HostEnded
            line += part
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve(orders: socket.socket, module: ModuleType) -> None:
    orders.settimeout(IDLE_SECONDS)
    libc = ctypes.CDLL(None)
    host = os.getpid()
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, _MAX_LINE_BYTES, 4)
            while data and not data.endswith(b"\n"):
                data += orders.recv(_MAX_LINE_BYTES)
        except TimeoutError:
            return
        if not data:
            return
        order = json.loads(data)
        for name in order["imports"]:
            with suppress(ImportError):  # the child says what is missing
                importlib.import_module(name)
        pid = os.fork()
        if pid == 0:
            orders.close()
            if sys.platform == "linux":  # a child ends with its host
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != host:
                    os._exit(1)
            _run(module, descriptors, order["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)
        orders.sendall(b'{"pid": %d}\n' % pid)
        _, status = os.waitpid(pid, 0)
        orders.sendall(b'{"code": %d}\n' % os.waitstatus_to_exitcode(status))


def _run(module: ModuleType, descriptors: Sequence[int], arguments: Sequence[str]) -> NoReturn:
    """The child's whole life."""
    *standard, result = descriptors
    code = 1
    try:
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.argv = [module.__name__, str(result), *arguments]
        module.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    descriptor, name, *arguments = sys.argv[1:]
    module = importlib.import_module(name)
    module.prepare(*arguments)
    with socket.socket(fileno=int(descriptor)) as orders, suppress(BrokenPipeError, ConnectionResetError):
        _serve(orders, module)


if __name__ == "__main__":
    main()
