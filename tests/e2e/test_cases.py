"""A case in the browser: its summary with links to its messages, and the article that it becomes."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import AXE

TEXTS = [f"{'Reply' if number % 2 else 'Message'} {number} about the kettle. " + "More. " * 80 for number in range(12)]


def choose(chat: ChatPage, title: str, action: str) -> None:
    chat.page.get_by_role("button", name=f"Actions for {title}").press("Enter")
    chat.page.get_by_role("menuitem", name=action).click()


def check_accessible(chat: ChatPage) -> None:
    chat.page.evaluate(AXE.read_text())
    found = chat.page.evaluate(
        "async () => (await axe.run('dialog')).violations.map((v) => [v.id, v.nodes.map((n) => n.html)])"
    )
    assert found == []


def test_a_summary_leads_to_the_messages_that_it_rests_on(new_tab: NewTab, server: Server) -> None:
    id = seed_conversation(server.data_dir, "A cold kettle", TEXTS)
    chat = new_tab()
    choose(chat, "A cold kettle", "Summarise")
    dialog = chat.page.get_by_role("dialog", name="Summary")
    expect(dialog).to_contain_text("This model is too small to summarise a case.")
    expect(dialog.get_by_role("listitem")).to_have_count(6)
    check_accessible(chat)
    dialog.get_by_role("button", name=re.compile("^Reply 12: Reply 11 about")).press("Enter")
    expect(dialog).to_have_count(0)
    expect(chat.page.locator(".dm-message.dm-found")).to_contain_text("Reply 11 about the kettle.")
    first = chat.page.request.get(f"{server.url}/api/conversations/{id}").json()["messages"][0]["id"]
    told = {
        "text": "**Problem:** it is <img src=x onerror=alert(1)> cold [1]. See `code [1]` and [9].",
        "messages": [{"number": 1, "message_id": first, "role": "user", "excerpt": "<b>Message 0</b>"}],
        "total": 12,
        "left_out": 3,
        "has_earlier": False,
        "notice": None,
    }
    chat.page.route("**/summary", lambda route: route.fulfill(json=told))
    choose(chat, "A cold kettle", "Summarise")
    expect(dialog).to_contain_text("3 older messages of 12 were left out")
    expect(dialog.locator("strong")).to_have_text("Problem:")
    expect(dialog.locator("img")).to_have_count(0)
    expect(dialog.locator(".dm-case-text .dm-case-link")).to_have_count(1)
    expect(dialog.locator("code")).to_have_text("code [1]")
    dialog.locator(".dm-case-text .dm-case-link").click()
    expect(chat.page.locator(".dm-message.dm-found")).to_contain_text("Message 0 about the kettle.")
    chat.page.unroute("**/summary")
    chat.page.route("**/summary", lambda route: route.abort())
    choose(chat, "A cold kettle", "Summarise")
    expect(dialog.get_by_role("alert")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


@pytest.mark.full
def test_a_resolved_case_becomes_an_article(new_tab: NewTab, server: Server) -> None:
    seed_conversation(server.data_dir, "A <i>loud</i> kettle", ["Why is it loud?", "Limescale: descale it."])
    chat = new_tab()
    choose(chat, "A <i>loud</i> kettle", "Propose an article")
    dialog = chat.page.get_by_role("dialog", name="Propose an article")
    expect(dialog.get_by_label("Collection")).to_be_focused()
    check_accessible(chat)
    dialog.get_by_role("button", name="Propose", exact=True).dblclick()
    expect(dialog).to_contain_text("Proposed: A <i>loud</i> kettle.")
    expect(dialog).to_contain_text("this is a template with the first question and the last reply")
    dialog.get_by_role("button", name="Close").dispatch_event("click", {"detail": 2})  # now stands where "Propose" was
    dialog.get_by_role("link", name="Check, edit and publish it").click()
    page = chat.page
    article = page.get_by_role("article", name="A <i>loud</i> kettle")
    expect(article).to_have_count(1)
    expect(page.get_by_text("Check for names before publishing.")).to_be_visible()
    expect(article.get_by_label("Text (Markdown)")).to_have_value(re.compile("## Solution\n\nLimescale: descale it."))
    article.get_by_label("Title").fill(" ")
    article.get_by_role("button", name="Publish").click()
    expect(article.get_by_role("alert")).to_contain_text("An article's title has 1 to 200 characters.")
    article.get_by_label("Title").fill("A loud kettle")
    article.get_by_label("Text (Markdown)").fill("Descale it with vinegar.")
    article.get_by_role("button", name="Publish").click()
    expect(article).to_have_count(0)
    row = page.locator("tbody tr").filter(has_text="A loud kettle")
    expect(row).to_contain_text("Ready")
    page.get_by_label("Try a search").fill("vinegar")
    page.get_by_label("Try a search").press("Enter")
    expect(page.locator(".dk-found blockquote")).to_contain_text("Descale it with vinegar.")
    page.get_by_role("button", name="Answers this question").press("Enter")
    expect(page.locator(".dk-found")).to_contain_text("Marked: “Descale it with vinegar.”")
    page.get_by_text("1 marked question").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download for deskmate kb eval").click()
    assert json.loads(downloading.value.path().read_text())["answers"] == ["Descale it with vinegar."]
    page.get_by_role("button", name="Remove the question vinegar").click()
    expect(page.get_by_text("1 marked question")).to_have_count(0)
    page.on("dialog", lambda asked: asked.accept())
    row.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
