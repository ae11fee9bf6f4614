"""A model on another server, scripted by the test, and a Deskmate without a model in front of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from testing.scripted_server import ScriptedServer
from tests.e2e.server import Server


class Elsewhere:
    """A model server in a thread of its own."""

    def __init__(self) -> None:
        self.server = ScriptedServer("far-away", max_model_len=32768)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.start()

    def start(self) -> None:
        self._do(self.server.start())

    def stop(self) -> None:
        self._do(self.server.stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open_gate(self, gate: asyncio.Event) -> None:
        """Lets a reply go on that waits for ``gate``."""
        self._loop.call_soon_threadsafe(gate.set)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def front_server(elsewhere: Elsewhere, folder: Path, *flags: str) -> Server:
    """Returns a server whose model is ``elsewhere``; its data are below ``folder``."""
    return Server(folder / "there is none", folder / "data", "--remote-url", elsewhere.server.url, *flags)
