"""Runs the application under uvicorn: binds the port before anything slow, and shuts down gracefully."""

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

#: Seconds that open responses get after the replies have finished. uvicorn then waits as long again and cuts the rest.
_CLOSE_SECONDS = 1


def require_loopback(host: str, *, accounts: bool = False) -> None:
    """Refuses to listen on a network address without accounts.

    Raises:
        StartupError: ``host`` is not a loopback address.
    """
    if accounts:
        return
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise StartupError(
            f"Deskmate does not listen on {host} without accounts: anyone who can reach this machine could read every "
            "conversation. Use --host 127.0.0.1, or require users to sign in with --accounts."
        )


def bind(host: str, port: int) -> socket.socket:
    """Binds the port before anything slow starts. Connections are accepted once the server runs.

    Raises:
        StartupError: the port is in use, or this user may not bind it.
    """
    name = host.strip("[]")
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:  # this machine has no IPv6
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, port))
    except (OSError, TypeError, UnicodeError) as error:  # the last two: a part of the name exceeds 63 characters
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Returns the address to open in a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    settings: AppSettings,
    engine: AbstractAsyncContextManager[ChatEngine],
    listener: socket.socket,
    on_ready: Callable[[str | None], None],
) -> None:
    """Serves until SIGINT or SIGTERM. Replies in flight are finished, or marked as interrupted, before it returns.

    Args:
        on_ready: called once, with the path of the link that creates the first admin's account, or None if there is
            an admin already.

    Raises:
        StartupError, EngineError: the application cannot start.
        asyncio.CancelledError: SIGTERM arrived during the start.
    """
    # Gradio reads these when it is imported. The import takes seconds, so it comes after the checks that fail early.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(settings.data_dir.resolve() / "gradio")
    # The statistics of the monitoring page, which is off. By default every event that ends computes them from the last
    # 10,000 events, which takes 7 ms.
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(2**31)
    from app.main import create_app, wind_down

    app = create_app(settings, _with_affinity(engine))
    config = uvicorn.Config(
        app,
        http=protocol_for(raise_open_file_limit()),
        lifespan="off",  # entered below instead: its errors must reach the command line unchanged
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )
    starting = _CancelledBySigterm()
    async with starting, app.router.lifespan_context(app):
        accounts = cast("Services", app.state.services).accounts
        setup = await accounts.setup_token() if accounts is not None else None
        starting.end()
        # A URL's fragment stays in the browser, so the token appears in no log.
        path = f"/setup#{setup}" if setup is not None else None
        server = _Server(config, lambda: on_ready(path), lambda: wind_down(app))
        try:
            await server.serve(sockets=[listener])
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error


@asynccontextmanager
async def _with_affinity(engine: AbstractAsyncContextManager[ChatEngine]) -> AsyncIterator[ChatEngine]:
    """Wraps the engine: on CPU, pins the event loop's thread so that the engine's thread has a CPU of its own."""
    async with engine as running:
        if running.info.device == "cpu":
            pin_to_first_cpu()
        yield running


class _CancelledBySigterm:
    """Makes SIGTERM cancel the start, as Ctrl+C does. Once it runs, the server has its own signal handlers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._loop.add_signal_handler(signal.SIGTERM, task.cancel)

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Removes the signal handler. Idempotent."""
        self._loop.remove_signal_handler(signal.SIGTERM)


def _cannot_listen(host: str, port: int, error: Exception) -> StartupError:
    if not isinstance(error, OSError):
        reason = f"cannot listen on {host}: that is not a valid host name."
    elif error.errno == errno.EADDRINUSE:
        reason = f"port {port} is in use: stop the other program, or choose another port with --port."
    elif error.errno == errno.EACCES:
        reason = f"port {port} needs more privileges than this user has: choose one above 1023 with --port."
    else:
        reason = f"cannot listen on {host}, port {port}: {error.strerror or error}."
    return StartupError(reason[0].upper() + reason[1:])


_GC_THRESHOLDS = (10_000, 20, 20)
"""Arguments of ``gc.set_threshold``: allocations before a collection of generation 0, then collections of the younger
generation before one of generations 1 and 2. With Python's defaults the collector scans the objects of a few tokens
again and again and frees nothing, which with many readers takes a twentieth of the CPU time."""


class _Server(uvicorn.Server):
    """uvicorn's server, which on shutdown finishes the replies while their readers are connected, then disconnects."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], wind_down: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._wind_down = wind_down

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # models and libraries are never freed, and scanning them takes tenths of a second
        gc.set_threshold(*_GC_THRESHOLDS)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()  # no new connections
        winding_down = asyncio.ensure_future(self._wind_down())
        while not winding_down.done() and not self.force_exit:
            await asyncio.wait({winding_down}, timeout=0.1)
        winding_down.cancel()
        # uvicorn's own timeout is wall-clock time, which would have passed on a machine that stalled meanwhile.
        for _ in range(_CLOSE_SECONDS * 10):
            if not self.server_state.tasks or self.force_exit:
                break
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)
        with suppress(asyncio.CancelledError):  # a second Ctrl+C
            await winding_down

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        """Shuts down gracefully at the first signal, at once at a second Ctrl+C.

        Unlike in uvicorn, neither signal is raised again afterwards.
        """
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
