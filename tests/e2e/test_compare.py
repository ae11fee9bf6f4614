"""Replies side by side, versions with their settings, edited replies and the formats of copying, in the browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.chat_page import REPLY_MS, ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.test_for_everyone import AXE


def violations(page: Page, part: str) -> list[str]:
    page.add_script_tag(content=AXE.read_text())
    found = page.evaluate("part => axe.run(part).then(({violations}) => violations.map(({id}) => id))", part)
    return [str(each) for each in found]


def columns(page: Page) -> Locator:
    return page.locator(".dm-column")


def compare(chat: ChatPage, message: str, length: str = "12") -> None:
    """Asks for two replies: as in the chat, and with a temperature of 1.2."""
    chat.open_settings()
    chat.set_number("Maximum length", length)
    chat.set_number("Temperature", "0")
    chat.box.fill(message)
    chat.page.get_by_role("button", name="Compare replies", exact=True).click()
    dialog = chat.page.get_by_role("dialog", name="Compare replies")
    assert violations(chat.page, ".dm-compare") == []
    dialog.get_by_role("button", name="Compare", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(columns(chat.page)).to_have_count(2)


def all_ended(page: Page) -> None:
    expect(page.locator(".dm-column .dm-reply[data-status=streaming]")).to_have_count(0, timeout=REPLY_MS)


def test_replies_are_compared_and_one_is_kept(chat: ChatPage, new_tab: NewTab) -> None:
    page = chat.page
    compare(chat, "Which is better?")
    expect(chat.users).to_have_text(["Which is better?"])
    expect(chat.box).to_have_value("")
    all_ended(page)
    expect(page.locator(".dm-column-heading")).to_have_text(["ATemperature 0", "BTemperature 1.2"])
    expect(page.locator(".dm-column-facts").last).to_contain_text("Seed ")
    expect(page.locator(".dm-differs").first).to_be_visible()
    expect(page.locator(".dm-column-differs").last).to_contain_text("not in A")
    assert "[differs:" in columns(page).last.aria_snapshot(), "screen readers say no colours"
    page.get_by_role("button", name="Mark differences").click()
    expect(page.locator(".dm-differs")).to_have_count(0)
    assert violations(page, ".dm-comparison") == []

    second = page.locator(".dm-column .dm-text").last.inner_text()
    other = new_tab(chat.conversation_id)
    expect(columns(other.page)).to_have_count(2)
    columns(page).last.get_by_role("button", name="Keep this one").click()
    for tab in (chat, other):
        expect(columns(tab.page)).to_have_count(0)
        expect(tab.page.locator(".dm-reply .dm-versions")).to_have_text("2 / 2")
        assert tab.text() == second
    note = page.locator(".dm-version-note")
    expect(note).to_have_text("Temperature 1.2, not 0 as in version 1")
    page.get_by_role("button", name="Use these settings").click()
    expect(chat.setting("Temperature")).to_have_value("1.2")
    page.get_by_role("button", name="Previous version").click()
    expect(note).to_have_text("Temperature 0, not 1.2 as in version 2")
    chat.ask("And then?")  # the conversation goes on from what is shown
    expect(chat.users).to_have_count(2)


@pytest.mark.full
def test_a_comparison_outlives_its_tab_and_is_stopped_as_a_whole(chat: ChatPage) -> None:
    page = chat.page
    compare(chat, "Tell me a long story", length="15000")
    expect(page.locator(".dm-column .dm-text").last).not_to_be_empty(timeout=REPLY_MS)
    chat.reload()
    expect(columns(page)).to_have_count(2)
    expect(page.get_by_role("button", name="Keep this one").first).to_be_disabled()
    chat.stop_button.click()
    all_ended(page)
    expect(page.locator(".dm-column .dm-note").filter(has_text="Stopped")).to_have_count(2)
    expect(page.get_by_role("button", name="Keep this one").first).to_be_enabled()
    texts = page.locator(".dm-column .dm-text").all_inner_texts()
    chat.reload()
    expect(page.locator(".dm-column .dm-text")).to_have_text(texts, use_inner_text=True)


def test_a_reply_is_compared_with_others_in_its_place(chat: ChatPage) -> None:
    page = chat.page
    chat.open_settings()
    chat.set_number("Maximum length", "8")
    chat.ask("Once more")
    chat.replies.last.get_by_role("button", name="Compare replies with other settings").click()
    dialog = page.get_by_role("dialog", name="Compare replies")
    dialog.get_by_role("button", name="Add a column").click()
    third = dialog.get_by_role("group", name="C", exact=True)
    expect(third.get_by_label("Preset")).to_be_focused()
    third.get_by_label("System prompt", exact=True).select_option(label="Own text")
    third.get_by_label("System prompt text of C").fill("Answer in one word.")
    dialog.get_by_role("group", name="A", exact=True).get_by_label("Temperature").fill("99")
    dialog.get_by_role("button", name="Compare", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("Temperature must be ")  # and nothing typed is lost
    dialog.get_by_role("group", name="A", exact=True).get_by_label("Temperature").fill("0.3")
    dialog.get_by_role("button", name="Compare", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("System role not supported")  # by this model
    expect(third.get_by_label("System prompt text of C")).to_have_value("Answer in one word.")
    third.get_by_label("System prompt", exact=True).select_option(label="As in this chat")
    third.get_by_label("Top-p").fill("0.5")
    dialog.get_by_role("button", name="Compare", exact=True).click()
    expect(columns(page)).to_have_count(3)
    all_ended(page)
    expect(page.locator(".dm-column-heading").last).to_contain_text("Top-p 0.5")
    columns(page).last.get_by_role("button", name="Keep this one").click()
    expect(page.locator(".dm-reply .dm-versions")).to_have_text("4 / 4")


def test_an_edited_reply_goes_on_as_a_version_of_its_own(chat: ChatPage) -> None:
    page = chat.page
    chat.open_settings()
    chat.set_number("Maximum length", "8")
    first = chat.ask("Begin")
    chat.replies.last.get_by_role("button", name="Edit this reply").click()
    box = page.get_by_label("Edited reply")
    expect(box).to_be_focused()
    box.press("Escape")
    expect(page.get_by_role("button", name="Edit this reply")).to_be_focused()
    page.keyboard.press("Enter")
    box.fill("Sunflowers are")
    chat.reload()
    expect(box).to_have_value("Sunflowers are")  # nothing typed is lost
    page.get_by_role("button", name="Go on from here").click()
    versions = page.locator(".dm-reply .dm-versions")
    expect(versions).to_have_text("2 / 2")
    longer = chat.wait_for_end()
    assert longer.startswith("Sunflowers are")
    assert len(longer) > len("Sunflowers are")
    expect(page.locator(".dm-version-note")).to_contain_text("Edited by you")
    page.get_by_role("button", name="Previous version").click()
    expect(versions).to_have_text("1 / 2")
    assert chat.text() == first


def test_a_reply_in_the_middle_goes_on_and_what_follows_stays(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "6")
    chat.set_number("Temperature", "0")
    chat.ask("Begin")
    chat.ask("Thanks")
    reply = chat.replies.first
    reply.hover()
    reply.get_by_role("button", name="Continue this reply").click()
    expect(chat.users).to_have_count(1)
    expect(reply.locator(".dm-stats")).to_have_text(re.compile(r"^12 tokens "))
    reply.get_by_role("button", name="Previous version").click()
    expect(chat.users).to_have_count(2)


def test_a_reply_is_copied_as_markdown_plain_or_rich_text(chat: ChatPage) -> None:
    page = chat.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.open_settings()
    chat.set_number("Maximum length", "4")
    chat.ask("Copy me")
    page.evaluate(
        """async () => {
          const { CopyChoice } = await import("/ui/static/components/chat/copy_choice.js");
          const words = "Some **bold** <img src=x onerror=alert(1)> text[^1] and `code`.";
          const text = `# Title\\n\\n${words}\\n\\n1. one\\n2. two`;
          const choice = new CopyChoice(() => `${text}\\n\\n[^1]: The source\\n`);
          document.querySelector(".dm-reply").append(choice.element);
        }"""
    )
    reply = chat.replies.last

    def copied(name: str) -> dict[str, str]:
        reply.get_by_role("button", name="Copying formats").last.click()
        page.get_by_role("menuitem", name=name).click()
        expect(reply.get_by_role("button", name="Copy reply").last).to_have_text("Copied")
        found = page.evaluate(
            """async () => {
              const [item] = await navigator.clipboard.read();
              const read = async (type) => [type, await (await item.getType(type)).text()];
              return Object.fromEntries(await Promise.all(item.types.map(read)));
            }"""
        )
        return dict(found)

    assert "**bold**" in copied("Markdown")["text/plain"]
    plain = copied("Plain text")["text/plain"]
    assert "Some bold <img src=x onerror=alert(1)> text" in plain
    assert "1. one\n2. two" in plain, repr(plain)
    assert plain.endswith("[1] The source")
    assert "text[1] and" in plain
    rich = copied("Rich text")
    assert "<strong>bold</strong>" in rich["text/html"]
    assert "<code>code</code>" in rich["text/html"]
    assert "<img" not in rich["text/html"]
    assert "The source" in rich["text/html"]
    assert rich["text/plain"] == plain
