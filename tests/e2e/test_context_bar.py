"""The bar above the message box, and what the model reads: of the message being typed, and of a reply."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.test_for_everyone import AXE

DIALOG = "What the model reads"


def test_the_context_is_counted_as_one_types_and_shown_as_the_model_reads_it(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    bar = page.locator(".dm-context-bar")
    expect(bar).to_have_text(re.compile(r"^Context: \d+ of [\d,]+ tokens$"))
    empty = bar.inner_text()
    chat.ask("hi")
    expect(bar).not_to_have_text(empty)
    before = bar.inner_text()
    chat.box.fill("What does top-p do, and why?")
    expect(bar).not_to_have_text(before)

    bar.press("Enter")
    popover = page.get_by_role("dialog", name="The next prompt")
    expect(popover.get_by_role("row", name=re.compile("^Your message"))).to_have_text(re.compile(r"[1-9]\d*$"))
    expect(popover.get_by_role("row", name=re.compile("^Conversation"))).to_contain_text("2 messages")
    page.add_script_tag(content=AXE.read_text())
    found = "axe.run('.dm-context-popover').then(({violations}) => violations.map(({id}) => id))"
    assert page.evaluate(found) == []
    popover.get_by_role("button", name=DIALOG).click()
    dialog = page.get_by_role("dialog", name=DIALOG)
    expect(dialog.locator(".dm-reading-text")).to_contain_text("What does top-p do, and why?")
    expect(dialog.locator("mark.dm-special").first).to_be_visible()
    found = "axe.run('.dm-reading').then(({violations}) => violations.map(({id}) => id))"
    assert page.evaluate(found) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(chat.box).to_have_value("What does top-p do, and why?")

    chat.replies.last.locator(".dm-stats").click()
    page.get_by_role("dialog", name="Where the time went").get_by_role("button", name=DIALOG).click()
    shown = dialog.locator(".dm-reading-text")
    expect(shown).to_contain_text("hi")
    expect(shown).not_to_contain_text("What does top-p do")


def test_a_text_that_does_not_fit_is_said_before_it_is_sent(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    text = "word " * 3000
    chat.box.fill(text)
    bar = page.locator(".dm-context-bar")
    expect(bar).to_have_text(re.compile(r"^Too long: [\d,]+ of [\d,]+ tokens$"))
    bar.click()
    popover = page.get_by_role("dialog", name="The next prompt")
    expect(popover).to_contain_text("the model reads at most")
    page.keyboard.press("Escape")
    expect(chat.box).to_have_value(text)
    chat.box.fill("short")
    expect(bar).to_have_text(re.compile(r"^Context: "))
