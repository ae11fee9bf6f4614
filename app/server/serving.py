"""Runs the application under uvicorn: the port first, an orderly end last."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn

from app.concurrency.cpu_affinity import pin_to_first_cpu
from app.errors import StartupError
from app.server.http_protocol import protocol_for, raise_open_file_limit
from app.settings import AppSettings
from engine import ChatEngine

if TYPE_CHECKING:
    from app.services.container import Services

#: How long answers in flight may take after the replies were finished; what is left then is cut after as long again.
_CLOSE_SECONDS = 1


def require_loopback(host: str, *, accounts: bool = False) -> None:
    """Refuse to be reachable from other machines without accounts.

    Raises:
        StartupError: ``host`` is not this machine's own loopback address.
    """
    if accounts:
        return
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise StartupError(
            f"Deskmate does not listen on {host} without accounts: whoever can reach this machine could read every "
            "conversation. Use --host 127.0.0.1, or have people sign in with --accounts."
        )


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow begins. Connections are accepted once the server runs.

    Raises:
        StartupError: the port is taken, or not ours to use.
    """
    name = host.strip("[]")
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:  # this machine has no IPv6
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, port))
    except (OSError, TypeError, UnicodeError) as error:  # the last two where a name's part is longer than 63 characters
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    settings: AppSettings,
    engine: AbstractAsyncContextManager[ChatEngine],
    listener: socket.socket,
    on_ready: Callable[[str | None], None],
) -> None:
    """Serve until SIGINT or SIGTERM. Replies in flight are finished or marked before this returns.

    Args:
        on_ready: called once, with the path of the link to the first admin's account where there is none yet.

    Raises:
        StartupError, EngineError: the application cannot start.
        asyncio.CancelledError: SIGTERM came while it started.
    """
    # Gradio reads these when it is imported, and importing it takes seconds that the checks before should not wait.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(settings.data_dir.resolve() / "gradio")
    from app.main import create_app, wind_down

    app = create_app(settings, _with_affinity(engine))
    config = uvicorn.Config(
        app,
        http=protocol_for(raise_open_file_limit()),
        lifespan="off",  # ours, below: its errors must reach the command line as they are
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )
    starting = _CancelledBySigterm()
    async with starting, app.router.lifespan_context(app):
        people = cast("Services", app.state.services).accounts
        setup = await people.setup_token() if people is not None else None
        starting.end()
        # Behind a # it stays in the browser, out of every log.
        path = f"/setup#{setup}" if setup is not None else None
        server = _Server(config, lambda: on_ready(path), lambda: wind_down(app))
        try:
            await server.serve(sockets=[listener])
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error


@asynccontextmanager
async def _with_affinity(engine: AbstractAsyncContextManager[ChatEngine]) -> AsyncIterator[ChatEngine]:
    """The engine, with a processor that this thread and the others are not on."""
    async with engine as running:
        if running.info.device == "cpu":
            pin_to_first_cpu()
        yield running


class _CancelledBySigterm:
    """While the application starts, SIGTERM ends it as Ctrl+C does; later the server has handlers of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop.add_signal_handler(signal.SIGTERM, task.cancel)

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No more. A second time, nothing happens."""
        self._loop.remove_signal_handler(signal.SIGTERM)


def _cannot_listen(host: str, port: int, error: Exception) -> StartupError:
    if not isinstance(error, OSError):
        reason = f"cannot listen on {host}: that is no host name."
    elif error.errno == errno.EADDRINUSE:
        reason = f"port {port} is in use: stop the other program, or choose another port with --port."
    elif error.errno == errno.EACCES:
        reason = f"port {port} needs more rights than this user has: choose one above 1023 with --port."
    else:
        reason = f"cannot listen on {host}, port {port}: {error.strerror or error}."
    return StartupError(reason[0].upper() + reason[1:])


_GC_THRESHOLDS = (10_000, 20, 20)
"""Objects made, and collections of younger ones, before the next collection. By Python's own numbers it goes through
what a few tokens left behind, again and again, and finds nothing: with many readers a twentieth of all that is done."""


class _Server(uvicorn.Server):
    """Finishes the replies while their readers still listen, and only then closes connections."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], wind_down: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._wind_down = wind_down

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # models and libraries stay: to look through all of them again and again takes tenths of a second
        gc.set_threshold(*_GC_THRESHOLDS)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()  # no new connections
        winding_down = asyncio.ensure_future(self._wind_down())
        while not winding_down.done() and not self.force_exit:
            await asyncio.wait({winding_down}, timeout=0.1)
        winding_down.cancel()
        # Uvicorn's own patience is a time, and would be over on a machine that stood still meanwhile.
        for _ in range(_CLOSE_SECONDS * 10):
            if not self.server_state.tasks or self.force_exit:
                break
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)
        with suppress(asyncio.CancelledError):  # a second Ctrl+C
            await winding_down

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        """The first signal ends in order, a second Ctrl+C at once. Unlike uvicorn's, neither is raised again after."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
