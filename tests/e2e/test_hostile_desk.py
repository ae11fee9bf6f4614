"""Text from an import, a comment, a prompt, a canned reply: shown and never run, in the chat and on the desk's page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from testing.import_files import TURN, document, message, talk, uuid
from tests.e2e.chat_page import ChatPage
from tests.e2e.server import Server
from tests.e2e.test_desk import go
from tests.e2e.test_hostile_text import HOSTILE

pytestmark = pytest.mark.full

TITLE = "<img src=x onerror='window.hacked = 1'>"
ABOUT = "<svg onload='window.hacked = 1'></svg> ![x](https://evil.example/x.png)"


@pytest.fixture
def desk(context: BrowserContext, server: Server) -> Iterator[Page]:
    """A tab at the page for those who run the desk, after everything hostile has come in by its API."""
    request, now = context.request, datetime.now(UTC).isoformat()
    talks = [
        talk(
            f"9{number:03}",
            message(f"91{number:03}", content=hostile, created_at=now),
            message(
                f"92{number:03}",
                f"91{number:03}",
                "assistant",
                content=hostile,
                created_at=now,
                status="error",
                turn={**TURN, "created_at": now, "id": uuid(f"93{number:03}"), "status": "error", "error": hostile},
            ),
            title=f"{TITLE} {number}",
            created_at=now,
            updated_at=now,
            tip=uuid(f"92{number:03}"),
            tags=["<b>tag</b>"],
        )
        for number, hostile in enumerate(HOSTILE)
    ]
    headers = {"Content-Type": "application/json"}
    imported = request.post(f"{server.url}/api/import", data=document(*talks), headers=headers)
    assert imported.ok, imported.text()
    listed = request.get(f"{server.url}/api/conversations", params={"limit": 1}).json()["items"][0]
    reply = request.get(f"{server.url}/api/conversations/{listed['id']}").json()["messages"][-1]
    opinion = {"rating": "down", "reasons": [], "comment": "\n".join(HOSTILE)[:2000]}
    rated = request.put(f"{server.url}/api/messages/{reply['id']}/feedback", data=opinion)
    assert rated.ok, rated.text()
    template = {
        "title": TITLE,
        "description": ABOUT,
        "variables": [{"name": "who", "description": ABOUT, "default": TITLE}],
        "body": "{{ who }}\n" + "\n".join(HOSTILE),
    }
    for kind in ("prompt", "canned"):
        address = f"{server.url}/api/desk/templates/{kind}/hostile"
        written = request.put(address, data={"after": 0, "template": template})
        assert written.ok, written.text()
    page = context.new_page()
    page.goto(f"{server.url}/desk")
    yield page
    for kind in ("prompt", "canned"):
        removed = request.post(f"{server.url}/api/desk/templates/{kind}/hostile/remove", data={"after": 1})
        assert removed.ok, removed.text()
    page.close()


def assert_harmless(page: Page, where: str) -> None:
    """No code ran, and nothing could run, load or submit that is not the page's own."""
    assert page.evaluate("window.hacked") is None
    bad = page.evaluate(
        """(where) => [...document.querySelectorAll(`${where} *`)].filter((element) =>
             element.matches("script, iframe, link, base, meta, object, embed, img:not([src^='/'])") ||
             [...element.attributes].some(({ name, value }) =>
               name.startsWith("on") || (name === "href" && /^(javascript|data|vbscript):/i.test(value)))
           ).map((element) => element.outerHTML)""",
        where,
    )
    assert bad == []


def test_nothing_that_anybody_writes_runs(chat: ChatPage, desk: Page) -> None:
    for section in ("Review", "Prompts", "Canned replies", "Audit", "Usage"):
        go(desk, section)
        if section == "Review":
            card = desk.get_by_role("article").filter(has_text="window.hacked").first
            card.get_by_role("button", name="Show the conversation").click()
            expect(card.locator(".dk-exchange")).to_be_visible()
        if section in ("Prompts", "Canned replies"):
            desk.locator('[data-name="hostile"]').click()
            expect(desk.get_by_label("Title", exact=True)).to_have_value(TITLE)
            desk.get_by_role("button", name="Preview").click()
            expect(desk.locator(".dk-preview")).to_contain_text(TITLE)
        assert_harmless(desk, "#dk-main")

    page = chat.page
    page.bring_to_front()
    chat.reload()
    chat.box.press("/")
    page.get_by_role("combobox", name="Search canned replies").fill("onerror")
    expect(page.get_by_role("option").filter(has_text=TITLE)).to_be_visible()
    assert_harmless(page, "body > div:not(.gradio-container)")
    page.keyboard.press("Escape")
    chat.open_settings()
    page.locator(".dm-prompt input").click()
    page.get_by_role("option", name=TITLE).click()
    expect(page.locator(".dm-prompt-text textarea")).to_have_value(f"{TITLE}\n" + "\n".join(HOSTILE))
    assert_harmless(page, "#dm-settings")
    page.get_by_label("Search conversations").fill("onerror")
    expect(page.locator(".dm-list .dm-group")).to_have_count(0)  # what a search finds stands under no day
    expect(chat.titles.first).to_contain_text(TITLE)
    chat.row(TITLE).first.locator("a").click()
    expect(chat.replies.last).to_be_visible()
    assert_harmless(page, ".dm-messages")
    assert_harmless(page, ".dm-list")
