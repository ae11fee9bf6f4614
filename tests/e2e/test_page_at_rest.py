"""A page that nobody touches: what it asks for when it opens, and that it then rests."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page

from app.ui.gradio_patches import SWITCH
from app.ui.html_head import PAGE_SCRIPT
from app.ui.theme import PAGE_STYLE
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

COUNT_FRAMES = """
window.framesAsked = 0;
const request = window.requestAnimationFrame;
window.requestAnimationFrame = (callback) => {
  window.framesAsked++;
  return request.call(window, callback);
};
"""
ARE_PATCHES_ON = os.environ.get(SWITCH) != "off"
PATIENCE = 60  #: seconds; the springs of Gradio's picture of loading swing for four after it is gone


def wait_for_rest(page: Page) -> None:
    for _ in range(PATIENCE):
        before = page.evaluate("window.framesAsked")
        page.wait_for_timeout(1000)
        if page.evaluate("window.framesAsked") == before:
            return
    raise AssertionError("It still asks for frames: each draws the page, for as long as it is open.")


@pytest.mark.full
@pytest.mark.skipif(not ARE_PATCHES_ON, reason="Gradio alone draws on for ever")
def test_a_page_that_nobody_touches_draws_nothing(new_browser: NewBrowser, server: Server) -> None:
    page = new_browser(server).new_page()
    page.add_init_script(COUNT_FRAMES)
    ChatPage(page, server.url).open()
    assert page.evaluate("window.framesAsked") > 0, "nothing was counted"
    wait_for_rest(page)


def test_what_the_page_needs_is_asked_for_once_and_before_gradio_has_run(
    new_browser: NewBrowser, server: Server
) -> None:
    page = new_browser(server).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(f"{server.url}/").partition("?")[0]))
    ChatPage(page, server.url).open()
    patches = ["shared/gradio_clock.js", "shared/gradio_requests.js"] if ARE_PATCHES_ON else []
    own = [f"ui/static/{name}" for name in (*patches, "shared/appearance_now.js", PAGE_STYLE, PAGE_SCRIPT)]
    assert sorted(
        name for name in asked if name.startswith("ui/static/") and name.endswith((".js", ".css", ".mjs"))
    ) == (sorted(own))
    gradios_second = asked.index("theme.css")  # Gradio's first script asks for it
    assert (max(asked.index(name) for name in own) < gradios_second) == ARE_PATCHES_ON
    page.wait_for_timeout(1000)
    assert [asked.count(name) for name in ("ui/options", "api/conversations", "api/tags")] == [1, 1, 1]
