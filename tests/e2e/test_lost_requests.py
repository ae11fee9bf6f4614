"""A request to a listener in Python is lost: the listener has failed, and the page goes on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from app.ui.gradio_patches import SWITCH
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server
from tests.e2e.test_slow_answers import until

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.environ.get(SWITCH) == "off", reason="Gradio ends all listeners of the page."),
]

LISTENERS = "**/gradio_api/run/*"

RELOADS_AFTER_MS = 5000
"""Gradio asks every two seconds whether the server is back, and then loads the page again."""


def _opened(chat: ChatPage) -> ChatPage:
    chat.open_settings()
    chat.box.fill("typed before")
    chat.page.evaluate("window.isTheSamePage = true")
    return chat


def _answer_the_next_choice(chat: ChatPage, answer: Callable[[Route], None]) -> None:
    """Its request goes to ``answer``; the others, such as the model panel's, which have no data, go to the server."""
    answered = False

    def handle(route: Route) -> None:
        nonlocal answered
        if answered or not (route.request.post_data_json or {})["data"]:
            route.continue_()
        else:
            answered = True
            answer(route)

    chat.page.route(LISTENERS, handle)


def _expect_that_the_page_goes_on(chat: ChatPage) -> None:
    """Nothing that was typed is lost, later listeners work, and the page is not loaded again."""
    page = chat.page
    expect(page.get_by_role("radio", name="Model default")).to_be_checked()
    chat.set_number("Seed", "7")  # a listener in the browser
    page.wait_for_function("window.deskmate.settings.value.seed === 7")
    page.get_by_role("radio", name="Creative").check()
    expect(chat.setting("Temperature")).to_have_value("1.1")
    page.wait_for_function("window.deskmate.settings.value.preset === 'creative'")
    page.wait_for_timeout(RELOADS_AFTER_MS)
    assert page.evaluate("window.isTheSamePage"), "the page was loaded again"
    expect(chat.box).to_have_value("typed before")
    expect(chat.setting("Seed")).to_have_value("7")


def _lose_the_answer(route: Route) -> None:
    route.fetch()
    route.abort()


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda route: route.abort(), id="the request"),
        pytest.param(_lose_the_answer, id="the answer"),
    ],
)
def test_a_preset_that_is_lost_has_failed(lose: Callable[[Route], None], chat: ChatPage) -> None:
    _opened(chat)
    _answer_the_next_choice(chat, lose)
    chat.page.get_by_role("radio", name="Precise").click()  # it does not stay checked
    expect(chat.page.locator(".dm-settings-note")).to_have_text("The server did not answer. Try again.")
    _expect_that_the_page_goes_on(chat)


@pytest.mark.full
def test_a_server_that_restarts_while_a_preset_is_applied(own_server: Server, new_browser: NewBrowser) -> None:
    chat = _opened(ChatPage(new_browser(own_server).new_page(), own_server.url).open())
    held: list[Route] = []
    _answer_the_next_choice(chat, held.append)
    chat.page.get_by_role("radio", name="Precise").click()
    until(chat.page, lambda: len(held) > 0)
    own_server.kill()
    held[0].continue_()
    expect(chat.page.locator(".dm-settings-note")).to_contain_text("Deskmate cannot be reached.")
    own_server.start()
    _expect_that_the_page_goes_on(chat)


def test_a_message_that_waits_for_a_preset_that_is_lost_stays_in_its_box(chat: ChatPage) -> None:
    _opened(chat)
    held: list[Route] = []
    _answer_the_next_choice(chat, held.append)
    chat.page.get_by_role("radio", name="Precise").click()
    until(chat.page, lambda: len(held) > 0)
    chat.page.get_by_role("radio", name="Creative").click()  # waits in the browser for the first one
    chat.box.press("Enter")
    held[0].abort()
    expect(chat.alert).to_have_text("The server did not answer. Try again.")
    expect(chat.users).to_have_count(0)
    _expect_that_the_page_goes_on(chat)
