"""Folders of conversations, and changes of many at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

TITLES = ("Iron", "Tin", "Zinc", "Lead")


@pytest.fixture
def seeded(own_server: Server, new_browser: NewBrowser) -> ChatPage:
    for title in reversed(TITLES):
        seed_conversation(own_server.data_dir, title, [f"about {title}", "A metal."])
    chat = ChatPage(new_browser(own_server).new_page(), own_server.url).open()
    expect(chat.titles).to_have_text(list(TITLES))
    return chat


def folder(chat: ChatPage, name: str) -> Locator:
    return chat.page.get_by_role("group", name="Folders").locator(".dm-folder", has_text=name)


def make_folder(chat: ChatPage, name: str) -> None:
    chat.page.get_by_role("button", name="New folder").click()
    field = chat.page.get_by_role("dialog").get_by_label("Name")
    field.fill(name)
    field.press("Enter")
    expect(folder(chat, name)).to_contain_text("0")


def test_chats_move_by_menu_and_by_drag_and_stay_when_their_folder_goes(seeded: ChatPage) -> None:
    page = seeded.page
    make_folder(seeded, "Work <b>")
    seeded.press_in_row("Tin", "Move to a folder")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(seeded.titles).to_have_text(["Iron", "Zinc", "Lead"])
    expect(folder(seeded, "Work <b>")).to_contain_text("1")
    seeded.row("Zinc").drag_to(folder(seeded, "Work <b>"))
    expect(seeded.titles).to_have_text(["Iron", "Lead"])
    folder(seeded, "Work <b>").click()
    expect(seeded.titles).to_have_text(["Tin", "Zinc"])
    page.get_by_label("Search conversations").fill("metal")
    expect(seeded.titles).to_have_text(["Tin", "Zinc"])
    page.get_by_label("Search conversations").fill("")
    seeded.press_in_row("Zinc", "Move to a folder")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Folder", exact=True).select_option("No folder")
    dialog.get_by_role("button", name="Move").click()
    expect(seeded.titles).to_have_text(["Tin"])
    page.get_by_role("button", name="Actions for the folder Work <b>").click()
    page.get_by_role("menuitem", name="Rename").click()
    dialog.get_by_label("Name").fill("Play")
    dialog.get_by_role("button", name="Save").click()
    expect(folder(seeded, "Play")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Actions for the folder Play").click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(seeded.titles).to_have_text(list(TITLES))


@pytest.mark.full
def test_many_are_selected_by_range_and_changed_at_once(seeded: ChatPage, tmp_path: Path) -> None:
    page = seeded.page
    bar = page.get_by_role("group", name="Selected conversations")
    page.get_by_role("button", name="Select", exact=True).click()
    expect(bar).to_contain_text("0 selected")
    expect(bar.get_by_label("Delete the selected")).to_be_disabled()
    seeded.row("Iron").locator("a").click()
    page.get_by_label("Select Zinc").click(modifiers=["Shift"])
    expect(bar).to_contain_text("3 selected")
    expect(page.locator(".dm-row-check:checked")).to_have_count(3)
    expect(page.locator(".dm-welcome")).to_be_visible()
    bar.get_by_label("Tag the selected").click()
    page.get_by_role("dialog").get_by_label("Tags").fill("metal, old")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator(".dm-row-tags")).to_have_text(["#metal #old"] * 3)
    export = bar.get_by_label("Export the selected")
    export.press("Enter")
    expect(export).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(export).to_be_focused()
    with page.expect_download() as downloading:
        export.click()
        page.get_by_role("menuitem", name="JSON").click()
    file = tmp_path / "chosen.json"
    downloading.value.save_as(file)
    assert {each["title"] for each in json.loads(file.read_text())["conversations"]} == {"Iron", "Tin", "Zinc"}
    bar.get_by_label("Move the selected to a folder").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the new folder").fill("Metals")
    dialog.get_by_role("button", name="Move").click()
    expect(seeded.titles).to_have_text(["Lead"])
    expect(folder(seeded, "Metals")).to_contain_text("3")
    folder(seeded, "Metals").click()
    expect(seeded.titles).to_have_text(["Iron", "Tin", "Zinc"])
    bar.get_by_label("Select all that are loaded").click()
    seeded.row("Tin").locator("a").focus()
    page.keyboard.press("Enter")
    expect(bar).to_contain_text("2 selected")
    bar.get_by_label("Delete the selected").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(seeded.titles).to_have_text(["Tin"])
    expect(folder(seeded, "Metals")).to_contain_text("1")
    page.locator("#dm-toast").get_by_role("button", name="Undo").click()
    expect(seeded.titles).to_have_text(["Iron", "Tin", "Zinc"])
    bar.get_by_label("Select all that are loaded").click()
    bar.get_by_label("Archive the selected").click()
    expect(seeded.titles).to_have_count(0)
    expect(folder(seeded, "Metals")).to_contain_text("0")
    page.keyboard.press("Escape")
    bar.get_by_role("button", name="Done").click()
    expect(bar).to_be_hidden()
    expect(page.locator(".dm-row-check")).to_have_count(0)
