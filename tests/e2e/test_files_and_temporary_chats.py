"""Conversations saved as files and brought in again; and those that are kept nowhere."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server


def save(page: Page, entry: str) -> tuple[str, str]:
    """Choose an entry of the menu that is open; the file's name and text."""
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=entry).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text(encoding="utf-8")


def test_a_conversation_goes_out_and_comes_in_again(server: Server, new_tab: NewTab, tmp_path: Path) -> None:
    chat = new_tab(seed_conversation(server.data_dir, "Käse / Brot", ["which cheese", "Emmental"]))
    page = chat.page
    row = chat.row("Käse").first
    row.hover()
    row.get_by_title("More").click()
    name, text = save(page, "Save as Markdown")
    assert name.endswith(".md")
    assert "which cheese" in text

    page.get_by_role("button", name="Export all").click()
    name, text = save(page, "JSON, with all versions")
    assert any(one["title"] == "Käse / Brot" for one in json.loads(text)["conversations"])
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    page.set_input_files(".dm-import-file", file)
    expect(page.locator("#dm-toast")).to_contain_text("Nothing new")

    chat.press_in_row("Käse", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.row("Käse")).to_have_count(0)
    page.set_input_files(".dm-import-file", file)
    expect(page.locator("#dm-toast")).to_contain_text("1 conversation imported")
    chat.row("Käse").first.locator("a").click()
    expect(chat.users).to_have_text(["which cheese"])
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)


def test_a_broken_file_says_where_and_brings_nothing(chat: ChatPage, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text('[{"mapping":\n {', encoding="utf-8")
    chat.page.set_input_files(".dm-import-file", file)
    expect(chat.alert).to_contain_text("line 2")
    expect(chat.page.locator("#dm-toast")).to_be_empty()


def test_a_temporary_chat_is_not_in_the_list_and_says_what_it_is(chat: ChatPage, new_tab: NewTab) -> None:
    choice = chat.page.get_by_role("button", name="Temporary chat")
    choice.click()
    expect(choice).to_have_attribute("aria-pressed", "true")
    chat.send("between you and me")
    chat.wait_for_text(10)
    chat.stop()
    mark = chat.page.locator(".dm-temporary-mark")
    expect(mark).to_be_visible()
    expect(chat.row("between you and me")).to_have_count(0)
    chat.reload()  # as long as the server runs, it is there
    expect(chat.users).to_have_text(["between you and me"])
    expect(mark).to_be_visible()
    other = new_tab()
    other.page.get_by_label("Search conversations").fill("between you")
    expect(other.page.locator(".dm-list-note")).to_have_text("Nothing found.")
    chat.go(None)
    expect(mark).to_be_hidden()
    expect(choice).to_have_attribute("aria-pressed", "false")  # the next one is kept again
