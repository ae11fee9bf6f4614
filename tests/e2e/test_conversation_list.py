"""The list at the left: new, open, rename, delete with a question first, search."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server


@pytest.fixture
def seeded(server: Server, new_tab: NewTab) -> ChatPage:
    """A tab at a conversation named Alpha that speaks of quartz; there is a Beta too."""
    seed_conversation(server.data_dir, "Beta", ["nothing of interest", "indeed"])
    return new_tab(seed_conversation(server.data_dir, "Alpha", ["what is quartz", "A mineral named quartz."]))


def test_open_goes_into_the_address_and_back_returns(seeded: ChatPage) -> None:
    alpha = seeded.page.url
    seeded.row("Beta").first.locator("a").click()
    expect(seeded.users).to_have_text(["nothing of interest"])
    assert seeded.page.url != alpha
    seeded.page.go_back()
    expect(seeded.users).to_have_text(["what is quartz"])
    expect(seeded.row("Alpha").first.locator("a")).to_have_attribute("aria-current", "page")


def test_rename(seeded: ChatPage, new_tab: NewTab) -> None:
    other = new_tab()
    seeded.press_in_row("Alpha", "Rename")
    field = seeded.page.get_by_label("New title")
    field.fill("Rose <b>quartz</b>")
    field.press("Enter")
    expect(seeded.page.locator("#dm-title")).to_have_text("Rose <b>quartz</b>")
    expect(seeded.titles.filter(has_text="Rose")).to_have_text(["Rose <b>quartz</b>"])
    expect(other.titles.filter(has_text="Rose")).to_have_count(1)
    seeded.reload()
    expect(seeded.page.locator("#dm-title")).to_have_text("Rose <b>quartz</b>")


def test_escape_leaves_the_title(seeded: ChatPage) -> None:
    seeded.press_in_row("Alpha", "Rename")
    field = seeded.page.get_by_label("New title")
    field.fill("something else")
    field.press("Escape")
    expect(seeded.page.locator("#dm-title")).to_have_text("Alpha")
    expect(seeded.titles.first).to_have_text("Alpha")


def test_delete_asks_first(seeded: ChatPage, new_tab: NewTab) -> None:
    address = seeded.page.url
    other = new_tab(seeded.conversation_id)
    count = seeded.row("Alpha").count()
    for answer, left in (("Cancel", count), ("Delete", count - 1)):
        seeded.press_in_row("Alpha", "Delete")
        dialog = seeded.page.get_by_role("dialog")
        expect(dialog).to_contain_text("Alpha")
        dialog.get_by_role("button", name=answer).click()
        expect(seeded.row("Alpha")).to_have_count(left)
    expect(seeded.page.locator("#dm-welcome")).to_be_visible()
    expect(other.alert).to_contain_text("does not exist")
    seeded.page.goto(address)
    expect(seeded.ready().alert).to_contain_text("does not exist")


def test_deleting_a_chat_that_replies_ends_the_reply(chat: ChatPage) -> None:
    chat.send("deleted while it replies")
    chat.wait_for_text(20)
    chat.press_in_row("deleted while it replies", "Delete")
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.row("deleted while it replies")).to_have_count(0)
    expect(chat.page.locator("#dm-welcome")).to_be_visible()
    expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_search_in_titles_and_texts(seeded: ChatPage) -> None:
    search = seeded.page.get_by_label("Search conversations")
    search.fill("QUARTZ")
    expect(seeded.row("Beta")).to_have_count(0)
    expect(seeded.row("Alpha").first.locator(".dm-row-snippet")).to_contain_text("quartz")
    search.fill("no such words anywhere")
    expect(seeded.page.locator("#dm-list-note")).to_have_text("Nothing found.")
    search.fill("")
    expect(seeded.row("Beta").first).to_be_visible()


def test_more_than_a_page_of_conversations(server: Server, new_tab: NewTab) -> None:
    for number in range(60):
        seed_conversation(server.data_dir, f"One of many {number}", ["q", "a"])
    chat = new_tab()
    expect(chat.titles).to_have_count(50)
    chat.page.get_by_role("button", name="Show more").click()
    expect(chat.row("One of many 0")).to_have_count(1)
    shown = chat.titles.count()
    chat.page.evaluate("window.deskmate.conversations.refresh()")
    expect(chat.row("One of many 0")).to_have_count(1)
    expect(chat.titles).to_have_count(shown)
