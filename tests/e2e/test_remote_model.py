"""The page where the model is on another server, which goes away and returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from testing.scripted_server import ScriptedServer
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

pytestmark = pytest.mark.full


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

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.close()


@pytest.fixture
def front(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Server]:
    """A server without a model."""
    (tmp_path / "data").mkdir()
    server = Server(tmp_path / "there is none", tmp_path / "data", "--remote-url", elsewhere.server.url)
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        yield server


def test_the_page_says_where_the_model_is_and_when_it_is_away(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page
    expect(page.locator(".dm-welcome-model")).to_have_text(
        "You are talking to far-away, which runs on another server. What you write is sent there."
    )
    assert chat.ask("hi") == "Hello world"
    chat.open_settings()
    state, about = page.locator("#dm-model-state"), page.locator("#dm-model-about")
    expect(state).to_have_text("far-away · ready")
    expect(about).to_contain_text(f"Runs on another server: {elsewhere.server.label} (vLLM)")
    expect(page.get_by_label("Another model")).to_be_hidden()
    expect(page.get_by_role("button", name="Sleep")).to_be_hidden()
    elsewhere.stop()
    expect(state).to_have_text("far-away · cannot be reached")
    expect(about).to_contain_text("No model server is available")
    chat.box.fill("are you there?")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("cannot be reached")
    expect(chat.box).to_have_value("are you there?")
    assert chat.text() == "Hello world"
    elsewhere.start()
    expect(state).to_have_text("far-away · ready")
    chat.box.press("Enter")
    expect(chat.replies).to_have_count(2)
    assert chat.wait_for_end() == "Hello world"
