"""While the server takes its time, people go on: typing, clicking, changing settings. Nothing of it is lost."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.chat_page import ChatPage


@pytest.fixture
def short(chat: ChatPage) -> ChatPage:
    """A new chat whose replies end soon."""
    chat.open_settings()
    chat.set_number("Maximum length", "10")
    return chat


class Held:
    """Requests that the network keeps until they are let go."""

    def __init__(self, chat: ChatPage, url: str) -> None:
        self._page = chat.page
        self._url = url
        self._routes: list[Route] = []
        self._page.route(url, self._hold)

    def _hold(self, route: Route) -> None:
        self._routes.append(route)

    def let_go(self) -> None:
        for route in self._routes:
            route.continue_()
        self._page.unroute(self._url)


def test_a_part_of_the_page_that_did_not_arrive_is_loaded_again(chat: ChatPage) -> None:
    chat.page.route("**/ui/static/markdown.js", lambda route: route.abort())
    chat.page.reload()
    expect(chat.alert).to_contain_text("did not arrive")
    chat.page.unroute("**/ui/static/markdown.js")
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
    expect(short.alert).to_contain_text("still being opened")
    opening.let_go()
    expect(short.users).to_have_text(["in the first chat"])
    expect(short.box).to_have_value("")  # the box of the first chat; the words wait in the second
    short.go(second)
    expect(short.users).to_have_text(["in the second chat"])
    expect(short.box).to_have_value("where does this go?")


def test_settings_are_kept_when_a_message_is_refused(short: ChatPage) -> None:
    short.ask("before")
    short.page.route("**/api/turns", lambda route: route.abort())
    short.set_number("Seed", "77")
    short.box.fill("does not arrive")
    short.box.press("Enter")
    expect(short.alert).not_to_be_empty()
    expect(short.box).to_have_value("does not arrive")
    expect(short.page.locator("#dm-settings-note")).to_have_text("Saved with this conversation.")
    short.reload().open_settings()
    expect(short.setting("Seed")).to_have_value("77")


def test_a_slider_takes_no_value_it_does_not_show(short: ChatPage) -> None:
    short.ask("before")
    short.set_number("Temperature", "0.5")
    short.set_number("Temperature", "5")
    expect(short.page.locator("#dm-settings-note")).to_contain_text("goes from 0 to 2")
    expect(short.setting("Temperature")).to_have_value("0.5")
    short.reload().open_settings()
    expect(short.setting("Temperature")).to_have_value("0.5")


def test_a_message_whose_answer_was_lost_is_not_sent_twice(short: ChatPage) -> None:
    """The server has it, the page does not know: sending again shows the one that is there."""
    chat = short

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    chat.page.route("**/api/turns", lose_the_answer, times=1)
    chat.box.fill("only once, please")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("cannot be reached")
    expect(chat.box).to_have_value("only once, please")
    chat.box.press("Enter")
    expect(chat.box).to_have_value("")
    chat.wait_for_end()
    expect(chat.users).to_have_count(1)
    chat.reload()
    expect(chat.users).to_have_text(["only once, please"])
