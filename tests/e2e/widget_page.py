"""The widget's chat on a website, as a visitor uses it."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, FrameLocator, Locator, Page, expect

from tests.e2e.website import Website


def visit(visitor: BrowserContext, website: Website, path: str, heading: str) -> tuple[Page, FrameLocator]:
    """A page of the website, and the chat in it, open: its heading is the inbox's name."""
    page = visitor.new_page()
    page.goto(f"{website.origin}{path}")
    page.locator(".launcher").click()
    chat = page.frame_locator("iframe")
    expect(chat.get_by_role("heading", name=heading)).to_be_visible()
    return page, chat


def write(chat: FrameLocator, text: str) -> None:
    chat.get_by_label("Your message").fill(text)
    chat.get_by_role("button", name="Send", exact=True).click()


def heard(chat: FrameLocator, text: str) -> Locator:
    """What a message in the chat says."""
    return chat.get_by_role("log").get_by_text(text)
