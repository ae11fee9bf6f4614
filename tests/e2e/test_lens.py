"""The sampling lens in the browser: a reply's tokens, the choice of one, sliders, and a branch by a click."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.test_for_everyone import AXE


def facts(page: Page) -> str:
    return page.locator(".dm-lens-facts").inner_text()


def test_a_reply_is_looked_into_and_branches_at_a_token(chat: ChatPage) -> None:
    page = chat.page
    chat.open_settings()
    chat.set_number("Maximum length", "12")
    chat.set_number("Temperature", "1")
    first = chat.ask("How was this chosen?")

    page.get_by_role("button", name="Lens: show how likely each word was").click()
    tokens = page.locator(".dm-lens-token")
    expect(tokens.first).to_have_attribute("aria-label", re.compile(r"\d %"))
    page.get_by_text("As a table").click()
    expect(page.locator(".dm-lens-table tbody tr")).to_have_count(tokens.count())

    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    alternatives = page.locator(".dm-lens-alternative")
    expect(alternatives).to_have_count(20)
    before = facts(page)
    page.get_by_label("Temperature").last.fill("0")  # redrawn here, without the server
    expect(page.locator(".dm-lens-facts")).to_contain_text("; 1 of ")
    expect(alternatives.last).to_contain_text("temperature 0")
    page.get_by_role("button", name="Reset").last.click()
    assert facts(page) == before
    page.add_script_tag(content=AXE.read_text())
    assert page.evaluate("axe.run('.dm-lens-popover').then(({violations}) => violations.map(({id}) => id))") == []

    page.keyboard.press("Escape")
    expect(alternatives).to_have_count(0)
    expect(tokens.first).to_be_focused()
    page.keyboard.press("Enter")
    other = alternatives.and_(page.locator(":enabled")).filter(has_text=re.compile(r"^[a-zA-Z]\d")).first
    letter = other.locator(".dm-lens-word").inner_text()
    other.click()
    versions = page.locator(".dm-reply .dm-versions")
    expect(versions).to_have_text("2 / 2")
    assert chat.wait_for_end().startswith(letter)
    page.get_by_role("button", name="Previous version").click()
    expect(versions).to_have_text("1 / 2")
    assert chat.text() == first
