"""While the server takes its time, people go on: typing, clicking, changing settings. Nothing of it is lost."""

from __future__ import annotations

import time

from playwright.sync_api import Route, expect

from tests.e2e.chat_page import ChatPage


def slow(route: Route) -> None:
    time.sleep(1)
    route.continue_()


def test_what_is_typed_while_the_first_message_is_sent_stays(chat: ChatPage) -> None:
    chat.page.route("**/api/turns", slow)
    chat.box.fill("the first message")
    chat.box.press("Enter")
    chat.box.press_sequentially(" and more")
    expect(chat.users).to_have_count(1)
    expect(chat.box).to_have_value("and more")
    chat.wait_for_end()
    assert chat.conversation_id
    expect(chat.box).to_have_value("and more")
    chat.reload()
    expect(chat.box).to_have_value("and more")


def test_a_message_never_goes_to_the_chat_one_has_just_left(chat: ChatPage) -> None:
    chat.ask("in the first chat")
    first = chat.conversation_id
    chat.go(None)
    chat.ask("in the second chat")
    second = chat.conversation_id
    chat.page.route(f"**/api/conversations/{first}?*", slow)
    chat.go(first)
    chat.box.fill("where does this go?")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("still being opened")
    expect(chat.users).to_have_text(["in the first chat"])
    expect(chat.box).to_have_value("")  # the box of the first chat; the words wait in the second
    chat.page.unroute(f"**/api/conversations/{first}?*")
    chat.go(second)
    expect(chat.users).to_have_text(["in the second chat"])
    expect(chat.box).to_have_value("where does this go?")


def test_settings_are_kept_when_a_message_is_refused(chat: ChatPage) -> None:
    chat.ask("before")
    chat.open_settings()
    chat.page.route("**/api/turns", lambda route: route.abort())
    chat.set_number("Seed", "77")
    chat.box.fill("does not arrive")
    chat.box.press("Enter")
    expect(chat.alert).not_to_be_empty()
    expect(chat.box).to_have_value("does not arrive")
    expect(chat.page.locator("#dm-settings-note")).to_have_text("Saved with this conversation.")
    chat.reload().open_settings()
    expect(chat.setting("Seed")).to_have_value("77")


def test_a_slider_takes_no_value_it_does_not_show(chat: ChatPage) -> None:
    chat.ask("before")
    chat.open_settings()
    chat.set_number("Temperature", "0.5")
    chat.set_number("Temperature", "5")
    expect(chat.page.locator("#dm-settings-note")).to_contain_text("goes from 0 to 2")
    expect(chat.setting("Temperature")).to_have_value("0.5")
    chat.reload().open_settings()
    expect(chat.setting("Temperature")).to_have_value("0.5")
