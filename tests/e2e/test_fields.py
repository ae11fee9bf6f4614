"""Fields of the page: their names in its sentences, their size, their placeholders, and the drawers they are in."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

#: Fields that are wider than what they stand in.
TOO_WIDE = """(dialog) => [...dialog.querySelectorAll("input, textarea, select")]
  .filter((field) => field.getBoundingClientRect().right > dialog.getBoundingClientRect().right - 8)
  .map((field) => field.outerHTML)"""
#: Contrast of each field's text and of its placeholder to what is behind them.
CONTRASTS = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const linear = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const raised = getComputedStyle(document.documentElement).getPropertyValue("--dm-raised");
  const probe = document.createElement("i");
  probe.style.color = raised;
  document.body.append(probe);
  const ground = getComputedStyle(probe).color;
  probe.remove();
  return [...document.querySelectorAll("[placeholder]:not([placeholder=''])")].map((field) => {
    const { color, opacity } = getComputedStyle(field, "::placeholder");
    const placeholder = contrast(color, ground) * Number(opacity);
    return { field: field.placeholder, text: contrast(getComputedStyle(field).color, ground), placeholder };
  });
}"""


def _assert_placeholders_are_pale(page: Page) -> None:
    fields = page.evaluate(CONTRASTS)
    assert len(fields) > 0
    wrong = [each for each in fields if not 4.5 <= each["placeholder"] <= 5 < each["text"]]
    assert wrong == []


def test_sentences_name_the_labels_of_the_page(chat: ChatPage) -> None:
    chat.open_settings()
    note = chat.page.locator(".dm-settings-note")
    chat.set_number("Maximum length", "0")
    expect(note).to_have_text("Maximum length must be at least 1.")
    expect(note).to_be_in_viewport(ratio=1)
    chat.set_number("Temperature", "7")
    expect(note).to_have_text("Temperature must be between 0 and 2. 7 was not applied.")
    # What the page lets through, the server refuses in the same words.
    chat.page.evaluate("window.deskmate.settings.value = {...window.deskmate.settings.value, max_tokens: 0}")
    chat.box.fill("hello")
    chat.box.press("Enter")
    expect(chat.alert).to_have_text("Maximum length must be at least 1.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fields_fit_and_placeholders_are_pale(new_browser: NewBrowser, server: Server, scheme: str) -> None:
    context = new_browser(server, color_scheme=scheme, viewport={"width": 720, "height": 700})
    chat = ChatPage(context.new_page(), server.url).open()
    page = chat.page

    # One drawer at a time lies over the chat, and Esc closes it wherever the focus is.
    drawers = page.locator("#dm-conversations.dm-open, #dm-settings.dm-open")
    conversations = page.locator(".dm-toggle-conversations")
    for _ in range(2):
        conversations.click()
        chat.open_settings()
        expect(drawers).to_have_count(1)
        expect(conversations).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("Escape")
        expect(drawers).to_have_count(0)
    _assert_placeholders_are_pale(page)

    chat.box.press("/")
    expect(page.get_by_role("option").first).to_be_visible()
    assert page.get_by_role("dialog").evaluate(TOO_WIDE) == []
    _assert_placeholders_are_pale(page)
    page.get_by_role("combobox", name="Search canned replies").fill("solved")
    expect(page.get_by_role("option")).to_have_count(1)  # the command for a draft is there before the replies
    page.keyboard.press("Enter")
    expect(page.locator(".dm-fill")).to_be_visible()
    assert page.locator(".dm-fill").evaluate(TOO_WIDE) == []
    page.keyboard.press("Escape")

    if scheme == "light":
        # Why a model was not loaded is said where it was asked for.
        chat.open_settings()
        page.get_by_label("Another model").fill("/nowhere/at/all")
        page.get_by_role("button", name="Load", exact=True).click()
        expect(page.locator("#dm-model-error")).to_contain_text("There is no model folder at")
        # Parts of a pixel may be cut off.
        expect(page.locator("#dm-model-error")).to_be_in_viewport(ratio=0.98)
    page.goto(f"{server.url}/desk#audit")
    expect(page.get_by_placeholder(re.compile("Name"))).to_be_visible()
    _assert_placeholders_are_pale(page)
