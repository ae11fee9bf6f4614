"""Drafts of replies to customers in the page: written, changed, copied, inserted, and reviewed at the desk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from testing.scripted_server import words
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.server import Server
from tests.e2e.test_sources import add_document

pytestmark = pytest.mark.full

MESSAGE = "Is there still a warranty on my Kestrel kettle?"


@pytest.fixture
def front(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Server]:
    with front_server(elsewhere, tmp_path) as server:
        yield server


def panel(page: Page) -> Locator:
    return page.get_by_role("region", name="Draft of a reply")


def text(page: Page) -> Locator:
    return panel(page).get_by_label("Draft", exact=True)


def test_a_draft_is_written_changed_used_and_reviewed(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    context = new_browser(front)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat = ChatPage(context.new_page(), front.url).open()
    page = chat.page
    add_document(page, front.url)
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


def test_a_draft_in_a_chat_that_was_new_is_of_that_chat_with_its_sources(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page
    add_document(page, front.url)
    chat.reload().open_settings()
    page.get_by_role("checkbox", name="Knowledge").check()
    elsewhere.server.say(words("It lasts 31 months [1]."), words("A title"))
    chat.ask(MESSAGE)
    elsewhere.server.say(words("31 months [1]."))
    page.get_by_role("button", name="Draft a reply").click()
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(panel(page).locator(".dm-citation")).to_have_count(1)
    conversations = page.request.get(f"{front.url}/api/conversations").json()["items"]
    assert [one["id"] for one in conversations] == [chat.conversation_id]
    chat.reload()
    expect(text(page)).to_have_value("31 months [1].")
