"""Answers from documents in the page: sources chosen in a chat's settings, cited below its replies."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import FilePayload, Page, expect

from testing.scripted_server import words
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server

MANUAL = """# Warranty of the Kestrel kettle

## How long it lasts

The warranty of the Kestrel kettle lasts 31 months from the day of purchase. Limescale is not covered.
"""


def add_document(page: Page, url: str, text: str = MANUAL) -> str:
    """Uploads a manual and waits until it has been read; returns its id."""
    file: FilePayload = {"name": "kestrel.md", "mimeType": "text/markdown", "buffer": text.encode()}
    added = page.request.post(f"{url}/api/kb/documents", multipart={"file": file}, headers={"Origin": url})
    assert added.status == 202, added.text()
    document = added.json()["id"]
    while (state := page.request.get(f"{url}/api/kb/documents/{document}").json())["state"] != "ready":
        assert state["state"] in ("waiting", "reading"), state
        page.wait_for_timeout(200)
    return str(document)


def test_a_small_model_lists_what_was_found(chat: ChatPage) -> None:
    chat.open_settings()
    expect(chat.page.locator(".dm-control-collections")).to_be_hidden()  # there are no documents
    document = add_document(chat.page, chat.url)
    try:
        chat.reload().open_settings()
        chat.page.get_by_role("checkbox", name="Knowledge").check()
        chat.ask("How long is the warranty of the kettle?")
        check_listing(chat)
        chat.reload()
        check_listing(chat)
        source = chat.replies.last.locator(".dm-citation")
        source.get_by_role("button", name="Answers this question").press("Enter")
        answer = "The warranty of the Kestrel kettle lasts 31 months from the day of purchase."
        expect(chat.page.get_by_text(f"Marked for evaluation: “{answer}”")).to_be_visible()
        (marked,) = chat.page.request.get(f"{chat.url}/api/kb/questions").json()["questions"]
        assert (marked["question"], marked["answer"]) == ("How long is the warranty of the kettle?", answer)
        source.get_by_role("button", name="Open document").press("Enter")
        viewer = chat.page.get_by_role("dialog", name="Warranty of the Kestrel kettle")
        expect(viewer.locator("mark")).to_contain_text("31 months")
        chat.page.keyboard.press("Escape")
        source.locator("summary").press("Enter")
        expect(source.locator("blockquote")).to_be_hidden()
    finally:
        assert chat.page.request.delete(f"{chat.url}/api/kb/documents/{document}", headers={"Origin": chat.url}).ok
    chat.reload()
    check_listing(chat)  # it keeps its words


def check_listing(chat: ChatPage) -> None:
    """The last reply shows the passage once, open, and its document's title once."""
    reply = chat.replies.last
    expect(reply.locator(".dm-citation summary")).to_have_text(re.compile(r"^\[1\]\s*Warranty of the Kestrel kettle"))
    expect(reply.locator(".dm-citation blockquote")).to_be_visible()
    shown = reply.inner_text()
    assert (shown.count("31 months"), shown.count("Warranty of the Kestrel kettle")) == (1, 1)


def test_a_reply_cites_the_chosen_sources(elsewhere: Elsewhere, new_browser: NewBrowser, tmp_path: Path) -> None:
    with front_server(elsewhere, tmp_path) as server:
        chat = ChatPage(new_browser(server).new_page(), server.url).open()
        document = add_document(chat.page, chat.url)
        chat.reload().open_settings()
        chat.page.get_by_role("checkbox", name="Knowledge").check()
        elsewhere.server.say(words("It lasts 31 ", "months [1]."), words("A title"))
        chat.ask("How long is the warranty of the kettle?")
        source = chat.replies.last.locator(".dm-citation")
        expect(source).to_have_count(1)
        expect(source.locator("blockquote")).to_be_hidden()
        source.locator("summary").press("Enter")
        expect(source.locator("blockquote")).to_contain_text("31 months")
        expect(chat.page.get_by_role("button", name="Sources: Knowledge")).to_be_visible()
        mark = chat.replies.last.get_by_role("button", name="Source 1: Warranty of the Kestrel kettle")
        expect(mark).to_have_text("[1]")
        mark.hover()
        preview = chat.page.locator(".dm-source-preview")
        expect(preview).to_contain_text("31 months")
        mark.press("Escape")
        expect(preview).to_have_count(0)
        mark.click()
        viewer = chat.page.get_by_role("dialog", name="Warranty of the Kestrel kettle")
        expect(viewer.locator("mark")).to_contain_text("31 months")
        expect(viewer.get_by_text("Version 1")).to_be_visible()
        expect(viewer.get_by_role("button", name="Earlier text")).to_be_hidden()
        chat.page.keyboard.press("Escape")
        expect(viewer).to_have_count(0)
        chat.set_number("Maximum length", "50")  # saving another setting keeps the sources
        expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
        assert chat.page.request.delete(f"{chat.url}/api/kb/documents/{document}", headers={"Origin": chat.url}).ok
        chat.reload().open_settings()
        expect(source.locator("blockquote")).to_contain_text("31 months")  # it keeps its words
        expect(chat.page.get_by_role("checkbox", name="Knowledge")).to_be_checked()  # empty, and not gone
        mark.click()
        viewer = chat.page.get_by_role("dialog")
        expect(viewer.get_by_role("status")).to_contain_text("This is the passage as the reply keeps it.")
        expect(viewer.locator("mark")).to_contain_text("31 months")


def test_documents_are_added_and_removed_at_the_desk(chat: ChatPage) -> None:
    page = chat.page
    page.goto(f"{chat.url}/desk#knowledge")
    expect(page.get_by_text("There are no documents yet.")).to_be_visible()
    broken: FilePayload = {"name": "scan.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 nothing"}
    manual: FilePayload = {"name": "kestrel.md", "mimeType": "text/markdown", "buffer": MANUAL.encode()}
    unknown: FilePayload = {"name": "a.exe", "mimeType": "application/x-dosexec", "buffer": b"MZ\0\1"}
    page.route("**/api/kb/documents?*", lambda route: route.fulfill(status=503, json={}), times=1)  # a lost poll
    page.get_by_label("Add documents").set_input_files([broken, manual, unknown])
    expect(page.locator(".dk-uploads li").nth(1)).to_have_text("kestrel.md: added")
    row = page.locator("tbody tr").filter(has_text="kestrel.md")
    expect(row).to_contain_text("Ready")
    expect(page.locator("tbody tr").filter(has_text="scan.pdf")).to_contain_text("Export it again.")
    expect(page.get_by_role("alert")).to_have_count(0)
    remove = row.get_by_role("button", name="Remove kestrel.md")
    remove.focus()
    other: FilePayload = {"name": "other.txt", "mimeType": "text/plain", "buffer": b"Something else."}
    page.get_by_label("Add documents").set_input_files(other)
    expect(page.locator("tbody tr").filter(has_text="other.txt")).to_contain_text("Ready")
    expect(remove).to_be_focused()  # its row was not drawn again
    page.get_by_label("Try a search").fill("kettle warranty")
    page.get_by_label("Try a search").press("Enter")
    expect(page.locator(".dk-found blockquote")).to_contain_text("31 months")
    row.get_by_role("button", name="Passages of kestrel.md").click()
    expect(page.get_by_role("heading", name="Passages of kestrel.md")).to_be_focused()
    page.on("dialog", lambda dialog: dialog.accept())
    rows = page.locator("tbody tr")
    while (count := rows.count()) > 0:
        rows.first.get_by_role("button", name="Remove").click()
        expect(rows).to_have_count(count - 1)
    expect(page.get_by_text("There are no documents yet.")).to_be_visible()
