"""The page where the model is on another server, which goes away and returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.server import Server

pytestmark = pytest.mark.full


@pytest.fixture
def front(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Server]:
    with front_server(elsewhere, tmp_path) as server:
        yield server


def test_the_page_says_where_the_model_is_and_when_it_is_away(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page
    introduction = page.locator(".dm-welcome-model")
    expect(introduction).to_contain_text("whose model runs on another server. What you write is sent there.")
    expect(introduction).to_contain_text("You are talking to far-away, with a context of ")
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
