"""While the server takes its time, people go on: typing, clicking, changing settings. Nothing of it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from app.ui.html_head import PAGE_SCRIPT
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import TIMEOUT_MS

pytestmark = pytest.mark.full


@pytest.fixture
def short(chat: ChatPage) -> ChatPage:
    """A new chat whose replies end soon."""
    chat.open_settings()
    chat.set_number("Maximum length", "10")
    return chat


class Held:
    """Requests that the network keeps until they are let go; those alone that carry ``what``."""

    def __init__(self, chat: ChatPage, url: str, what: str = "") -> None:
        self._page = chat.page
        self._url = url
        self._what = what
        self._routes: list[Route] = []
        self._page.route(url, self._hold)

    def _hold(self, route: Route) -> None:
        if self._what in (route.request.post_data or ""):
            self._routes.append(route)
        else:
            route.continue_()

    def wait(self) -> None:
        """Return once there is one."""
        until(self._page, lambda: len(self._routes) > 0)

    def let_go(self) -> None:
        for route in self._routes:
            route.continue_()
        self._page.unroute(self._url)


def until(page: Page, true: Callable[[], bool]) -> None:
    """Let the browser go on until something is so."""
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        page.wait_for_timeout(50)


def test_a_part_of_the_page_that_did_not_arrive_is_loaded_again(chat: ChatPage) -> None:
    chat.page.route(f"**/ui/static/{PAGE_SCRIPT}", lambda route: route.abort())
    chat.page.reload()
    expect(chat.alert).to_contain_text("failed to load")
    chat.page.unroute(f"**/ui/static/{PAGE_SCRIPT}")
    chat.ready()
    expect(chat.alert).to_have_text("")


def test_what_is_typed_while_the_first_message_is_sent_stays(short: ChatPage) -> None:
    sending = Held(short, "**/api/turns")
    short.box.fill("the first message")
    short.box.press("Enter")
    short.box.press_sequentially(" and more")
    sending.let_go()
    expect(short.users).to_have_count(1)
    expect(short.box).to_have_value("and more")
    short.wait_for_end()
    assert short.conversation_id
    expect(short.box).to_have_value("and more")
    short.reload()
    expect(short.box).to_have_value("and more")


def test_a_message_never_goes_to_the_chat_one_has_just_left(short: ChatPage) -> None:
    short.ask("in the first chat")
    first = short.conversation_id
    short.go(None)
    short.set_number("Maximum length", "10")
    short.ask("in the second chat")
    second = short.conversation_id
    opening = Held(short, f"**/api/conversations/{first}?*")
    short.row("in the first chat").locator("a").click()
    short.box.fill("where does this go?")
    short.box.press("Enter")
    expect(short.alert).to_contain_text("still opening")
    opening.let_go()
    expect(short.users).to_have_text(["in the first chat"])
    expect(short.box).to_have_value("")  # the box of the first chat; the words wait in the second
    short.go(second)
    expect(short.users).to_have_text(["in the second chat"])
    expect(short.box).to_have_value("where does this go?")


def test_the_focus_stays_where_the_person_has_gone_meanwhile(short: ChatPage) -> None:
    short.ask("asked before the search")
    first = short.conversation_id
    short.go(None)
    short.set_number("Maximum length", "10")
    search = short.page.get_by_label("Search conversations")
    sending = Held(short, "**/api/turns")
    short.box.fill("sent during the search")
    short.box.press("Enter")
    sending.wait()
    search.click()
    sending.let_go()
    expect(short.users).to_have_text(["sent during the search"])
    short.wait_for_end()
    expect(search).to_be_focused()

    opening = Held(short, f"**/api/conversations/{first}?*")
    short.row("asked before the search").locator("a").click()
    opening.wait()
    search.click()
    opening.let_go()
    expect(short.users).to_have_text(["asked before the search"])
    expect(search).to_be_focused()
    short.row("sent during the search").locator("a").click()
    expect(short.users).to_have_text(["sent during the search"])
    expect(short.box).to_be_focused()  # where nobody went elsewhere


def test_a_message_under_way_is_no_draft_of_the_next_chat(short: ChatPage) -> None:
    sending = Held(short, "**/api/turns")
    short.box.fill("already under way")
    short.box.press("Enter")
    sending.wait()
    short.page.get_by_role("button", name="New chat").click()
    sending.let_go()
    expect(short.box).to_have_value("")
    row = short.row("already under way")
    expect(row).to_be_visible()
    short.reload()
    expect(short.box).to_have_value("")
    row.locator("a").click()
    expect(short.users).to_have_text(["already under way"])
    short.wait_for_end()


def test_a_setting_is_saved_though_the_page_is_left_at_once(short: ChatPage) -> None:
    short.ask("before")
    address = f"{short.url}/api/conversations/{short.conversation_id}"
    short.set_number("Seed", "3")
    short.page.reload()
    until(short.page, lambda: short.page.request.get(address).json()["settings"]["seed"] == 3)


def test_a_slider_takes_no_value_it_does_not_show(short: ChatPage) -> None:
    short.ask("before")
    short.set_number("Temperature", "0.5")
    short.set_number("Temperature", "5")
    expect(short.page.locator(".dm-settings-note")).to_contain_text("must be between 0 and 2. 5 was not applied.")
    expect(short.setting("Temperature")).to_have_value("0.5")
    address = f"{short.url}/api/conversations/{short.conversation_id}"
    until(short.page, lambda: short.page.request.get(address).json()["settings"]["temperature"] == 0.5)
    short.reload().open_settings()
    expect(short.setting("Temperature")).to_have_value("0.5")
