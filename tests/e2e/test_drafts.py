"""Drafts of replies to customers in the page: written, stopped, changed, copied, inserted, and reviewed at the desk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from testing.scripted_server import ScriptedResponse, chunk, reply, words
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.server import Server
from tests.e2e.test_sources import _add_document

MESSAGE = "Is there still a warranty on my Kestrel kettle?"


@pytest.fixture
def front(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Server]:
    with front_server(elsewhere, tmp_path) as server:
        yield server


def panel(page: Page) -> Locator:
    return page.get_by_role("region", name="Draft of a reply")


def text(page: Page) -> Locator:
    return panel(page).get_by_label("Draft", exact=True)


def held() -> ScriptedResponse:
    """A reply that does not end."""
    return reply(chunk(), chunk("The warranty "), asyncio.Event())


def test_a_draft_is_written_changed_used_and_reviewed(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    context = new_browser(front)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat = ChatPage(context.new_page(), front.url).open()
    page = chat.page
    _add_document(page, front.url)
    chat.reload().open_settings()
    page.get_by_role("checkbox", name="Knowledge").check()
    chat.box.fill(MESSAGE)
    elsewhere.server.say(words("It lasts 31 months ", "[1]."))
    page.get_by_role("button", name="Draft a reply").click()
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(text(page)).to_have_value("It lasts 31 months [1].")
    expect(text(page)).to_be_focused()  # in the new conversation, too
    expect(panel(page).locator(".dm-citation summary")).to_have_text(
        ["[1]Warranty of the Kestrel kettleHow long it lasts"]
    )
    assert chat.users.count() == 0  # nothing was sent
    elsewhere.server.say(words("31 months [1]."))
    panel(page).get_by_role("button", name="Shorter").click()
    expect(panel(page).get_by_role("group", name="Draft 2 of 2")).to_be_visible()
    expect(text(page)).to_have_value("31 months [1].")
    chat.reload()  # with its versions and its changes
    expect(text(page)).to_have_value("31 months [1].")
    panel(page).get_by_role("button", name="Previous draft").click()
    expect(text(page)).to_have_value("It lasts 31 months [1].")
    text(page).fill("Dear Eve, it lasts 31 months [1].")
    panel(page).get_by_role("button", name="Copy reply").click()
    expect(panel(page).get_by_text("Copied without")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Dear Eve, it lasts 31 months."
    panel(page).get_by_role("button", name="Insert", exact=True).click()
    expect(panel(page)).to_be_hidden()
    expect(chat.box).to_have_value("Dear Eve, it lasts 31 months.")
    assert chat.users.count() == 0
    page.goto(f"{front.url}/desk#review")
    card = page.get_by_role("article", name="Draft in")
    expect(card).to_contain_text("Changed before it was used: 3 words added, 1 removed.")
    expect(card.locator("ins")).to_have_text("Dear Eve, it")
    expect(card.locator("del")).to_have_text("It")


def test_a_draft_can_be_stopped_and_survives_a_dead_server(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page
    chat.box.press("/")
    page.get_by_label("Search canned replies").fill("draft")
    page.keyboard.press("Enter")  # nothing to reply to: it asks for the message
    field = panel(page).get_by_label("Customer’s message")
    expect(field).to_be_focused()
    field.fill(MESSAGE)
    elsewhere.server.say(held())
    panel(page).get_by_role("button", name="Write the draft").click()
    expect(text(page)).to_have_value("The warranty ")
    text(page).press("Escape")
    expect(panel(page).get_by_text("You stopped this draft.")).to_be_visible()
    other = ChatPage(page.context.new_page(), front.url).open(chat.conversation_id)
    expect(panel(other.page)).to_be_hidden()  # each tab has its own
    other.page.close()
    elsewhere.server.say(held())
    panel(page).get_by_role("button", name="Try again").click()
    expect(panel(page).get_by_role("group", name="Draft 2 of 2")).to_be_visible()
    expect(text(page)).to_have_value("The warranty ")
    front.kill()
    expect(panel(page).get_by_role("alert")).to_contain_text("Try again.", ignore_case=True)
    expect(text(page)).to_have_value("The warranty ")
    front.start()
    chat.reload()
    expect(text(page)).to_have_value("The warranty ")
    elsewhere.server.say(words("Two years."))
    panel(page).get_by_role("button", name="Try again").click()
    expect(text(page)).to_have_value("Two years.")
    chat.page.get_by_role("button", name="Canned replies").click()
    chat.page.get_by_role("option", name="Shorter, for the customer").click()
    chat.page.get_by_role("button", name="Insert", exact=True).last.click()
    expect(text(page)).to_have_value(re.compile(r"^Two years\.Rewrite your last reply"))
    expect(chat.box).to_have_value("")


def test_the_guide_says_that_it_is_too_small_and_a_phone_has_room(
    guide_chat: ChatPage,
) -> None:
    page = guide_chat.page
    page.set_viewport_size({"width": 390, "height": 844})
    guide_chat.box.fill(MESSAGE)
    page.get_by_role("button", name="Draft a reply").click()
    expect(panel(page)).to_contain_text("is too small for the prompt “Reply to a customer”")
    expect(panel(page).get_by_role("button", name="Copy reply")).to_be_disabled()
    inside = "() => document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(inside)
    panel(page).get_by_role("button", name="Close the draft").click()
    expect(panel(page)).to_be_hidden()
    expect(guide_chat.box).to_have_value(MESSAGE)
