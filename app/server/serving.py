"""Runs the application under uvicorn: binds the port before anything slow, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, cast

import uvicorn

from app.concurrency.cpu_affinity import follow_pinning, give_way_to_engine
from app.concurrency.garbage_collection import exempt_imported_objects, exempt_loaded_objects, paused_gc
from app.errors import StartupError
from app.server.http_protocol import protocol_for, raise_open_file_limit
from app.settings import AppSettings
from engine import BackgroundStart, ChatEngine

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
    on_loading: Callable[[], None] = lambda: None,
) -> None:
    """Serves until SIGINT or SIGTERM. Replies in flight are finished, or marked as interrupted, before it returns.

    An engine that can start in the background does so once the page is served: until its model is loaded, the page
    and ``GET /api/engine`` show the progress, ``/ready`` fails, and messages are refused. With PostgreSQL it is loaded
    before the server accepts connections: other servers may share the database, and a proxy sends messages to them
    meanwhile.

    Args:
        on_ready: called once, when messages can be answered, with the path of the link that creates the first admin's
            account, or None if there is an admin already.
        on_loading: called once, before that, if the page is served while the model is still loading.

    Raises:
        StartupError, EngineError: the application cannot start, or its model cannot be loaded.
        asyncio.CancelledError: SIGTERM arrived during the start.
        KeyboardInterrupt: SIGINT arrived while the model was loading.
    """
    # Gradio reads these when it is imported. The import takes seconds, so it comes after the checks that fail early.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(settings.data_dir.resolve() / "gradio")
    # The statistics of the monitoring page, which is off. By default every event that ends computes them from the last
    # 10,000 events, which takes 7 ms.
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(2**31)
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(thread_name_prefix="to-thread", initializer=follow_pinning)
    )
    with paused_gc():
        from app.main import create_app, wind_down

        is_only_server = settings.resolved_database_url.startswith("sqlite")
        load = _Load(engine, on_loading) if is_only_server and isinstance(engine, BackgroundStart) else None
        app = create_app(settings, load or _with_affinity(engine))
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
        server = _Server(config, lambda: on_ready(path), lambda: wind_down(app), load)
        try:
            await server.serve(sockets=[listener])
        except OSError as error:
            host, port = listener.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error
        if load is not None:
            load.check(server.stopped_by)


@asynccontextmanager
async def _with_affinity(engine: AbstractAsyncContextManager[ChatEngine]) -> AsyncIterator[ChatEngine]:
    """Wraps the engine: once it runs, on CPU, the event loop and its pools give way to the engine's thread."""
    async with engine as running:
        _give_way(running)
        yield running


def _give_way(engine: ChatEngine) -> None:
    """On CPU, the calling thread, which runs the event loop, and those that work for it give way to the engine."""
    if engine.info.device == "cpu":
        give_way_to_engine()


class _Load(AbstractAsyncContextManager[ChatEngine]):
    """Wraps an engine that starts in the background: :meth:`start` begins, leaving the context cancels or stops.

    Args:
        on_loading: called when the start begins.
    """

    def __init__(self, engine: AbstractAsyncContextManager[ChatEngine], on_loading: Callable[[], None]) -> None:
        assert isinstance(engine, BackgroundStart)
        self._background: BackgroundStart = engine
        self._engine = cast(ChatEngine, engine)
        self._on_loading = on_loading
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ChatEngine:
        return self._engine

    def start(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Starts the engine. ``on_end`` gets its error, None if it serves; it is not called for a cancelled start."""

        def end(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                _give_way(self._engine)
            on_end(error)

        self._task = self._background.start_in_background()
        self._task.add_done_callback(end)
        self._on_loading()

    def check(self, stopped_by: int | None) -> None:
        """Raises why the server did not become ready: the engine's error, or the signal that arrived before."""
        assert self._task is not None
        if self._task.done():
            self._task.result()
        elif stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise asyncio.CancelledError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        if self._task.done():
            if not self._task.cancelled() and self._task.exception() is None:
                await self._background.stop()
            return
        self._task.cancel()
        await asyncio.wait({self._task})  # ends within seconds, even if the load does not


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


class _Server(uvicorn.Server):
    """uvicorn's server, which on shutdown finishes the replies while their readers are connected, then disconnects."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        wind_down: Callable[[], Awaitable[None]],
        load: _Load | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._wind_down = wind_down
        self._load = load
        self.stopped_by: int | None = None  #: the first signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._load is None:
            self._become_ready(None)
        else:
            exempt_imported_objects()  # which the collector would scan while the model is loaded
            self._load.start(self._become_ready)

    def _become_ready(self, error: BaseException | None) -> None:
        if error is not None:
            self.should_exit = True
        elif not self.should_exit:
            exempt_loaded_objects()
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
        if self.stopped_by is None:
            self.stopped_by = sig
        self.should_exit = True
