"""What the page says of a conversation is so: why a reply ended, what can be done with it, what was saved and lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.test_desk import short_replies

CONVERSATION = re.compile(r"/api/conversations/[^/?]+(\?.*)?$")


def _changed(page: Page, url: str | re.Pattern[str], change: Callable[[dict[str, Any]], None]) -> None:
    """Answers to GET requests of ``url`` come changed."""

    def handle(route: Route) -> None:
        if route.request.method != "GET":
            route.fallback()
            return
        answer = route.fetch()
        told = answer.json()
        change(told)
        route.fulfill(response=answer, body=json.dumps(told))

    page.route(url, handle)


@pytest.fixture
def short(chat: ChatPage) -> ChatPage:
    """A tab whose replies are short."""
    short_replies(chat)
    return chat


def test_a_reply_that_a_stop_string_cut_says_so_and_unknown_numbers_are_not_shown(short: ChatPage) -> None:
    short.ask("stop string")
    stats = short.replies.last.locator(".dm-stats")
    expect(stats).to_have_text(re.compile(r" · reached its maximum length$"))
    _changed(
        short.page,
        CONVERSATION,
        lambda told: told["messages"][-1]["stats"].update(
            finish_reason="stop_string", cached_prompt_tokens=None, queue_ms=None
        ),
    )
    short.reload()
    expect(stats).to_have_text(re.compile(r"· reached a stop string$"))
    stats.click()
    popover = short.page.get_by_role("dialog", name="Where the time went")
    expect(popover).to_contain_text("how many came from the cache is not known")
    expect(popover.get_by_role("row", name=re.compile("^Queue"))).to_contain_text("not known")
    short.page.keyboard.press("Escape")
    expect(short.page.get_by_role("button", name="Continue this reply")).to_be_hidden()


@pytest.mark.full
def test_continue_is_not_offered_where_the_model_server_cannot(short: ChatPage) -> None:
    short.ask("cut short")
    resume = short.page.get_by_role("button", name="Continue this reply")
    expect(resume).to_be_visible()
    _changed(short.page, "**/ui/options", lambda told: told["model"].update(can_continue=False))
    short.page.evaluate("window.deskmate.modelChanged()")
    expect(resume).to_be_hidden()
    short.reload()
    expect(short.replies).to_have_count(1)
    expect(resume).to_be_hidden()


def test_a_conversation_without_messages_is_not_a_blank_page(short: ChatPage) -> None:
    page, welcome = short.page, short.page.locator(".dm-welcome")
    short.ask("to be deleted")
    conversation = short.conversation_id
    page.get_by_role("button", name="Delete this message and everything after it").click()
    expect(short.users).to_have_count(0)
    expect(welcome).to_be_visible()
    expect(page.locator(".dm-temporary")).to_be_hidden()  # it is decided already
    page.get_by_role("button", name="Undo").click()
    expect(short.users).to_have_count(1)
    expect(welcome).to_be_hidden()
    page.get_by_role("button", name="Delete this message and everything after it").click()
    expect(welcome).to_be_visible()
    short.reload()
    expect(welcome).to_be_visible()
    short.ask("begun again")
    expect(welcome).to_be_hidden()
    assert short.conversation_id == conversation
    short.go(None)
    expect(page.locator(".dm-temporary")).to_be_visible()


@pytest.mark.full
def test_settings_whose_save_fails_after_the_chat_was_left_are_told_of_and_saved_later(short: ChatPage) -> None:
    page = short.page
    short.ask("settings lost")
    left = short.conversation_id
    short.go(None)
    short_replies(short)
    short.ask("settings elsewhere")
    elsewhere = short.conversation_id
    short.go(left)
    expect(short.users).to_have_text(["settings lost"])
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == "PATCH" and "settings" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.fallback()

    page.route(CONVERSATION, hold)
    with page.expect_request(lambda request: request.method == "PATCH"):
        short.set_number("Temperature", "0.35")
    short.go(elsewhere)
    expect(short.users).to_have_text(["settings elsewhere"])
    held[0].abort()
    expect(page.locator("#dm-toast")).to_contain_text("settings of the chat you left were not saved")
    page.unroute(CONVERSATION, hold)
    expect(short.setting("Temperature")).not_to_have_value("0.35")
    short.go(left)
    expect(short.setting("Temperature")).to_have_value("0.35")
    expect(page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
    short.reload().open_settings()
    expect(short.setting("Temperature")).to_have_value("0.35")


@pytest.mark.full
def test_a_page_that_is_opened_at_a_conversation_asks_for_the_list_and_its_tags_once(
    short: ChatPage,
) -> None:
    short.ask("asked once")
    asked: list[str] = []
    address = f"{short.url}/?c={short.conversation_id}"
    # A tab that marks the reply as read, or tells the others that it did, has them ask for the list again.
    conversation = f"{short.url}/api/conversations/{short.conversation_id}"
    page = short.page.context.new_page()  # which has not asked for anything yet
    short.page.close()
    assert page.request.patch(conversation, data={"unread": False}).ok
    page.on("request", lambda request: asked.append(request.url.removeprefix(short.url).partition("?")[0]))
    page.goto(address)
    ChatPage(page, short.url).ready()
    page.wait_for_timeout(1000)
    assert [asked.count(name) for name in ("/ui/options", "/api/conversations", "/api/tags")] == [1, 1, 1]
