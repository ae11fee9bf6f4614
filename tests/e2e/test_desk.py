"""The desk's own work in the browser: feedback, prompts, canned replies, usage."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import AXE

pytestmark = pytest.mark.full


@pytest.fixture
def desk(context: BrowserContext, server: Server) -> Iterator[Page]:
    """A tab at the page for those who run the desk."""
    page = context.new_page()
    page.goto(f"{server.url}/desk")
    yield page
    page.close()


def go(desk: Page, section: str) -> None:
    desk.bring_to_front()
    desk.get_by_role("link", name=section, exact=True).click()
    expect(desk.get_by_role("heading", level=1, name=section)).to_be_visible()
    expect(desk.locator(".dk-section[data-ready]:not([aria-busy])")).to_be_visible()


def short_replies(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "8")


def test_what_is_thought_of_a_reply_is_saved_and_reviewed(chat: ChatPage, desk: Page) -> None:
    short_replies(chat)
    chat.ask("an odd question about turbots")
    down = chat.page.get_by_role("button", name="Bad reply")
    down.click()
    chat.page.get_by_role("button", name="Missed the question").click()
    chat.page.get_by_role("textbox", name="Comment").fill("It is about plaice.")
    expect(chat.page.locator(".dm-feedback-note")).to_have_text("Saved.")
    chat.reload()
    expect(chat.page.get_by_role("button", name="Bad reply")).to_have_attribute("aria-pressed", "true")
    chat.page.get_by_role("button", name="Missed the question, comment").click()
    expect(chat.page.get_by_role("textbox", name="Comment")).to_have_value("It is about plaice.")

    go(desk, "Review")
    card = desk.get_by_role("article").filter(has_text="turbots")
    expect(card).to_contain_text("Missed the question")
    card.get_by_role("button", name="Show the conversation").click()
    expect(card.locator(".dk-exchange")).to_contain_text("an odd question about turbots")
    card.get_by_role("button", name="Mark as reviewed").click()
    expect(card).to_have_count(0)

    chat.page.bring_to_front()
    chat.page.get_by_role("button", name="Bad reply").click()
    expect(chat.page.locator(".dm-thumbs")).to_have_attribute("data-saved", "none")
    chat.reload()
    expect(chat.page.get_by_role("button", name="Bad reply")).to_have_attribute("aria-pressed", "false")


def test_a_prompt_is_edited_and_the_file_comes_back_with_a_click(chat: ChatPage, desk: Page) -> None:
    go(desk, "Prompts")
    desk.locator('[data-name="support-desk"]').click()
    text = desk.get_by_label("Text", exact=True)
    expect(text).to_have_value(re.compile("support desk of {{ company }}"))
    text.fill("You answer for {{ company }} and {{ product }}.")
    desk.get_by_role("button", name="Save as a new version").click()
    expect(desk.get_by_role("alert")).to_contain_text("'product', which is not declared")
    desk.get_by_role("button", name="Add a variable").click()
    added = desk.locator(".dk-variable").last
    added.get_by_label("Name").fill("product")
    added.get_by_label("Description").fill("What is sold.")
    added.get_by_label("Default").fill("boats")
    desk.get_by_role("button", name="Preview").click()
    expect(desk.locator(".dk-preview")).to_contain_text("You answer for our company and boats.")
    desk.get_by_role("button", name="Save as a new version").click()
    expect(desk.locator(".dk-said-by-editor")).to_have_text("Saved.")
    expect(desk.locator(".dk-version").first).to_contain_text("Version 1")

    chat.reload()
    chat.open_settings()
    chat.page.locator(".dm-prompt input").click()
    chat.page.get_by_role("option", name="Support desk").click()
    chat.page.get_by_label("What is sold.").fill("kayaks")
    told = chat.page.locator(".dm-prompt-text textarea")
    expect(told).to_have_value("You answer for our company and kayaks.")
    chat.page.get_by_role("button", name="Use these").click()
    expect(chat.page.locator(".dm-prompt-about")).to_contain_text("Already in use.")
    expect(chat.setting("Temperature")).to_have_value("0.3")

    desk.bring_to_front()
    desk.get_by_role("button", name="Restore Original").click()
    expect(desk.locator(".dk-said-by-editor")).to_have_text("Original is in use again.")
    expect(desk.get_by_label("Text", exact=True)).to_have_value(re.compile("support desk of {{ company }}"))

    # The page shows what the prompt is now, without being loaded again.
    chat.page.bring_to_front()
    for title in ("None", "Support desk"):
        chat.page.locator(".dm-prompt input").click()
        chat.page.get_by_role("option", name=title).click()
    expect(told).to_have_value(re.compile("support desk of our company"))
    expect(chat.page.get_by_label("What is sold.")).to_have_count(0)


def test_what_is_not_saved_is_there_after_a_look_at_another_section(desk: Page) -> None:
    go(desk, "Prompts")
    desk.get_by_role("button", name="New prompt").click()
    desk.get_by_label("Title", exact=True).fill("Half a thought")
    desk.get_by_label("Text", exact=True).fill("You are")
    go(desk, "Canned replies")
    go(desk, "Prompts")
    expect(desk.get_by_label("Title", exact=True)).to_have_value("Half a thought")
    expect(desk.get_by_label("Text", exact=True)).to_have_value("You are")
    expect(desk.locator(".dk-said-by-editor")).to_contain_text("not saved yet")
    asked: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    desk.once("dialog", dismiss)
    desk.evaluate("location.reload()")
    expect(desk.get_by_label("Text", exact=True)).to_have_value("You are")
    assert asked == ["beforeunload"]

    desk.get_by_role("button", name="Add this prompt").click()
    expect(desk.get_by_role("alert")).to_have_text("Description must not be empty.")
    desk.once("dialog", lambda dialog: dialog.accept())
    desk.locator('[data-name="support-desk"]').click()
    expect(desk.get_by_label("Title", exact=True)).to_have_value("Support desk")
    go(desk, "Audit")
    go(desk, "Prompts")
    expect(desk.locator(".dk-said-by-editor")).to_be_empty()


def test_a_canned_reply_is_put_into_the_box_with_the_keyboard_alone(chat: ChatPage) -> None:
    page = chat.page
    chat.box.press("/")
    search = page.get_by_role("combobox", name="Search canned replies")
    expect(search).to_be_focused()
    search.press("Escape")
    expect(chat.box).to_have_value("/")
    chat.box.fill("")
    chat.box.press("/")
    before = page.locator(".dm-canned").bounding_box()
    search.fill("solved")
    expect(page.get_by_role("option")).to_have_count(1)
    box, popover = page.locator(".dm-composer-row").bounding_box(), page.locator(".dm-canned").bounding_box()
    assert popover == before, "it keeps its size, whatever the search finds"
    assert box is not None
    assert popover is not None
    assert popover["y"] + popover["height"] <= box["y"], "it stands above the box"
    search.press("Enter")
    form = page.locator(".dm-fill")
    expect(form).to_be_visible()
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("a cable was loose")
    page.keyboard.press("Enter")
    expect(chat.box).to_have_value(re.compile(r"^Hello Ada,\n\nwe have found the cause: a cable was loose\."))
    expect(chat.box).to_be_focused()


def test_usage_shows_what_happened_and_the_file_agrees(chat: ChatPage, desk: Page) -> None:
    short_replies(chat)
    chat.ask("to be counted")
    go(desk, "Review")
    go(desk, "Usage")
    expect(desk.locator(".dk-plot canvas")).to_have_count(6)
    heads, cells = (
        desk.get_by_role("region", name="Day by day")
        .locator("table")
        .evaluate(
            "table => [table.rows[0], table.rows[1]].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
    )
    shown = dict(zip(heads, cells, strict=True))
    assert int(shown["Messages"].replace(",", "")) >= 1
    with desk.expect_download() as downloading:
        desk.get_by_role("link", name="Download as CSV").click()
    today = list(csv.DictReader(io.StringIO(downloading.value.path().read_text())))[-1]
    assert today["day"] == shown["Day"]
    columns = {"messages": "Messages", "replies": "Replies", "completion_tokens": "Completion tokens"}
    for name, column in columns.items():
        assert int(today[name]) == int(shown[column].replace(",", ""))


def test_every_section_can_be_read_by_everybody(desk: Page) -> None:
    desk.evaluate(AXE.read_text())
    for section in ("Usage", "Review", "Prompts", "Canned replies", "Knowledge", "Gaps", "Audit"):
        go(desk, section)
        found = desk.evaluate("async () => (await axe.run()).violations.map((v) => [v.id, v.nodes.map((n) => n.html)])")
        assert found == [], section
        assert desk.evaluate("document.documentElement.scrollWidth <= innerWidth"), section
