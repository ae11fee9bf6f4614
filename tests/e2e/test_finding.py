"""The palette, the keys, and the theme and text size."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser, NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.e2e.test_page_at_rest import ARE_PATCHES_ON


@pytest.fixture
def seeded(server: Server, new_tab: NewTab) -> ChatPage:
    seed_conversation(server.data_dir, "Gneiss", ["a rock", "It is banded."])
    return new_tab(seed_conversation(server.data_dir, "Marble", ["on stones", "Veins of calcite run through it."]))


def palette(chat: ChatPage) -> Locator:
    return chat.page.get_by_role("dialog", name="Find anything")


def find(chat: ChatPage, query: str) -> Locator:
    """Opens the palette by its key and types."""
    chat.page.keyboard.press("Control+k")
    field = palette(chat).get_by_role("combobox")
    expect(field).to_be_focused()
    field.fill(query)
    return palette(chat)


def test_the_palette_opens_what_it_finds_by_keyboard(seeded: ChatPage) -> None:
    seeded.box.focus()
    found = find(seeded, "calcite")
    messages = found.get_by_role("group", name="Messages")
    expect(messages.get_by_role("option")).to_contain_text(["calcite"])
    field = found.get_by_role("combobox")
    option = messages.get_by_role("option").first
    expect(option).to_have_attribute("aria-selected", "true")
    expect(field).to_have_attribute("aria-activedescendant", option.get_attribute("id") or "")
    found = palette(seeded)
    field.fill("gneiss")
    expect(found.get_by_role("group", name="Chats").get_by_role("option").first).to_contain_text("Gneiss")
    seeded.page.keyboard.press("Enter")
    expect(seeded.users).to_have_text(["a rock"])
    find(seeded, "xyzzy qqq")
    expect(palette(seeded)).to_contain_text("Nothing found.")
    seeded.page.keyboard.press("Escape")
    expect(palette(seeded)).to_have_count(0)


def test_the_palette_jumps_to_settings_and_runs_commands(seeded: ChatPage) -> None:
    find(seeded, "top-p")
    palette(seeded).get_by_role("group", name="Settings").get_by_role("option").first.click()
    expect(seeded.page.locator("#dm-settings.dm-open")).to_be_visible()
    expect(seeded.page.locator(".dm-control-top_p input").first).to_be_focused()
    seeded.page.get_by_role("button", name="Find anything").click()
    palette(seeded).get_by_role("combobox").fill("new chat")
    seeded.page.keyboard.press("Enter")
    expect(seeded.page.locator(".dm-welcome")).to_be_visible()


def test_a_search_that_fails_says_so_and_what_the_page_knows_is_still_found(seeded: ChatPage) -> None:
    def fail(route: Route) -> None:
        if "query=" in route.request.url:
            route.abort()
        else:
            route.continue_()

    seeded.page.route("**/api/conversations?*", fail)
    found = find(seeded, "models")
    expect(found).to_contain_text("could not be searched")
    expect(found.get_by_role("group", name="Commands").get_by_role("option")).to_have_text([re.compile("Models")])
    seeded.page.unroute("**/api/conversations?*")


def test_keys_work_outside_of_fields_only_and_can_be_turned_off(seeded: ChatPage) -> None:
    page = seeded.page
    seeded.box.fill("")
    seeded.box.press_sequentially("n?jk")
    expect(seeded.box).to_have_value("n?jk")
    expect(seeded.users).to_have_text(["on stones"])
    seeded.box.fill("")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    expect(seeded.users).to_have_text(["a rock"])
    page.keyboard.press("k")  # the box has not taken the focus
    expect(seeded.users).to_have_text(["on stones"])
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("New chat")
    expect(listed).to_contain_text("Ctrl+K")
    listed.get_by_label("Shortcuts of a single key").uncheck()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    page.keyboard.press("?")
    expect(listed).to_have_count(0)
    expect(seeded.users).to_have_text(["on stones"])
    find(seeded, "shortcuts")
    page.keyboard.press("Enter")
    listed.get_by_label("Shortcuts of a single key").check()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    expect(page.locator(".dm-welcome")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("w")
    expect(seeded.box).to_be_focused()


@pytest.mark.full
def test_the_theme_and_the_text_size_hold_on_every_page_from_the_first_frame(
    server: Server, new_browser: NewBrowser
) -> None:
    page = new_browser(server, color_scheme="light").new_page()
    chat = ChatPage(page, server.url).open()
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("menuitem", name="Appearance").click()
    dialog = page.get_by_role("dialog", name="Appearance")
    dialog.get_by_label("Dark").check()
    dialog.get_by_label("Larger").check()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("body")).to_have_class(re.compile("dark"))
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert dark != light
    # At the first frame, before any module has run.
    page.add_init_script(
        "requestAnimationFrame(() => { const { colorScheme, fontSize } = getComputedStyle(document.documentElement);"
        " window.first = [colorScheme, fontSize]; })"
    )
    for path in ("/", "/desk", "/account", "/sign-in") if ARE_PATCHES_ON else ("/desk", "/account", "/sign-in"):
        page.goto(server.url + path)
        page.wait_for_function("window.first !== undefined")
        assert page.evaluate("window.first") == ["dark", "20px"], path
    chat.open()
    expect(page.locator("body")).to_have_class(re.compile("dark"))
    for width in (390, 720, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("menuitem", name="Appearance").click()
    dialog.get_by_label("System").check()
    expect(page.locator("body")).to_have_class(re.compile("dark"))
    page.emulate_media(color_scheme="light")
    expect(page.locator("body")).not_to_have_class(re.compile("dark"))
    dialog.get_by_label("Normal").check()
    assert page.evaluate("document.documentElement.style.fontSize") == ""
