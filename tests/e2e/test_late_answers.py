"""An answer that comes late, or after a newer one: nothing that was written is lost, nothing old is shown again."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.server import Server
from tests.e2e.test_desk import desk, go, short_replies  # noqa: F401  # a fixture
from tests.e2e.test_slow_answers import Held


def test_what_is_typed_behind_the_slash_is_searched_for(chat: ChatPage) -> None:
    listing = Held(chat, "**/api/canned")
    chat.box.press("/")
    chat.page.keyboard.type("solved")
    expect(chat.page.get_by_role("option")).to_have_count(0)
    listing.let_go()
    expect(chat.page.get_by_role("option")).to_have_count(1)
    chat.page.keyboard.press("Escape")
    expect(chat.box).to_have_value("/solved")


def test_the_list_of_canned_replies_says_why_it_is_empty(chat: ChatPage) -> None:
    chat.page.route("**/api/canned", lambda route: route.abort(), times=1)
    chat.page.get_by_role("button", name="Canned replies").click()
    expect(chat.page.locator(".dm-canned-note")).to_contain_text("cannot be reached")
    chat.page.keyboard.press("Escape")
    expect(chat.box).to_be_focused()


def test_a_comment_that_was_just_typed_stays_when_something_else_is_pressed(chat: ChatPage) -> None:
    short_replies(chat)
    chat.ask("to be commented")
    page, comment = chat.page, chat.page.get_by_role("textbox", name="Comment")
    saving = Held(chat, "**/feedback")
    page.get_by_role("button", name="Bad reply").click()
    comment.fill("On second thought")
    page.get_by_role("button", name="Good reply").click()
    expect(comment).to_have_value("On second thought")
    comment.fill("It is right.")
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="comment", exact=True).click()
    expect(comment).to_have_value("It is right.")
    saving.let_go()
    expect(page.locator(".dm-thumbs")).to_have_attribute("data-saved", "up")
    chat.reload()
    page.get_by_role("button", name="comment", exact=True).click()
    expect(comment).to_have_value("It is right.")


def test_another_template_that_is_opened_while_one_is_saved_stays_open(
    desk: Page,  # noqa: F811
    server: Server,
) -> None:
    section = ChatPage(desk, server.url)
    go(desk, "Canned replies")
    desk.get_by_role("button", name="New canned reply").click()
    desk.get_by_label("Title", exact=True).fill("Late answer")
    desk.get_by_label("Description").fill("Saved slowly.")
    text = desk.get_by_label("Text", exact=True)
    text.fill("It took a while.")
    saving, listing = Held(section, "**/canned/late-answer"), Held(section, "**/api/desk/templates/canned")
    desk.get_by_role("button", name="Add this canned reply").click()
    expect(desk.locator(".dk-editor")).to_have_js_property("inert", True)  # what is written now would be lost
    with desk.expect_request("**/api/desk/templates/canned"):
        saving.let_go()
    desk.locator(".dk-entry").first.click()
    expect(desk.locator(".dk-entry").first).to_have_attribute("aria-current", "true")
    text.fill("written meanwhile")
    listing.let_go()
    expect(desk.locator('[data-name="late-answer"]')).to_be_visible()
    expect(text).to_have_value("written meanwhile")
    expect(desk.locator(".dk-entry").first).to_have_attribute("aria-current", "true")
    removed = desk.request.post(f"{server.url}/api/desk/templates/canned/late-answer/remove", data={"after": 1})
    assert removed.ok, removed.text()
