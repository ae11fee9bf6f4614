"""Files in the chat: attached, counted, removed, sent, shown as a card, and refused without losing what was typed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import FilePayload, Locator, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.test_for_everyone import AXE

#: Drops a file on the message box, and pastes another.
BRING = """() => {
  const holding = (name) => {
    const data = new DataTransfer();
    data.items.add(new File(["some words"], name));
    return data;
  };
  const box = document.querySelector(".dm-box");
  const event = { bubbles: true, cancelable: true };
  box.dispatchEvent(new DragEvent("drop", { ...event, dataTransfer: holding("dropped.txt") }));
  box.dispatchEvent(new ClipboardEvent("paste", { ...event, clipboardData: holding("pasted.py") }));
}"""

NOTES: FilePayload = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"Parcels arrive on Tuesday."}


def attach(chat: ChatPage, file: FilePayload = NOTES) -> Locator:
    """Attaches a file. Returns its chip."""
    chat.page.locator(".dm-composer-row input[type=file]").set_input_files([file])
    return chat.page.locator(".dm-file-chip", has_text=str(file["name"]))


def test_a_file_is_attached_counted_sent_and_shown_as_a_card(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    bar = page.locator(".dm-context-bar")
    expect(bar).to_have_text(re.compile("^Context: "))
    before = bar.inner_text()
    chat.box.fill("What is in it?")
    both: list[FilePayload] = [
        {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Parcels\n\nThey arrive on Tuesday."},
        {"name": "gone.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n"},
    ]
    page.locator(".dm-composer-row input[type=file]").set_input_files(both)
    chips = page.locator(".dm-file-chip")
    expect(chips).to_have_text([re.compile(r"notes\.md.*bytes · \d+ tokens"), re.compile(r"gone\.csv")])
    expect(bar).not_to_have_text(before)
    page.get_by_role("button", name="Remove gone.csv").click()
    expect(chips).to_have_count(1)
    page.add_script_tag(content=AXE.read_text())
    assert page.evaluate("axe.run('#dm-composer').then(({violations}) => violations.map(({id}) => id))") == []
    chat.send("What is in it?")
    expect(chips).to_have_count(0)
    chat.wait_for_end()
    for _ in range(2):
        sent = chat.page.locator(".dm-user").last
        expect(sent.locator(".dm-text")).to_have_text("What is in it?")
        card = sent.locator(".dm-file-card")
        expect(card.locator(".dm-file-text")).to_have_count(0)
        card.locator("summary").click()
        expect(card.locator(".dm-file-text")).to_have_text("# Parcels\n\nThey arrive on Tuesday.")
        chat.reload()
    chat.box.press("ArrowUp")
    expect(chat.box).to_have_value("What is in it?")


def test_a_picture_is_refused_and_what_was_typed_stays(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    chat.box.fill("Look at this")
    picture: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n" + bytes(64)}
    page.locator(".dm-composer-row input[type=file]").set_input_files([picture])
    expect(chat.alert).to_contain_text("a.png is a picture, and the model reads text only.")
    expect(chat.box).to_have_value("Look at this")
    expect(page.locator(".dm-file-chip")).to_have_count(0)
    page.evaluate(BRING)
    expect(page.locator(".dm-file-chip .dm-file-name")).to_have_text(["dropped.txt", "pasted.py"])
    expect(chat.box).to_have_value("Look at this")


def test_a_comparison_takes_the_files_with_it(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    chip = attach(chat)
    expect(chip).to_be_visible()
    chat.box.fill("When do they arrive?")
    page.get_by_role("button", name="Compare replies", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".dm-column")).to_have_count(2)
    expect(chip).to_have_count(0)
    expect(chat.box).to_have_value("")
    expect(chat.users).to_have_text(["When do they arrive?"])
    card = page.locator(".dm-user .dm-file-card")
    card.locator("summary").click()
    expect(card.locator(".dm-file-text")).to_have_text("Parcels arrive on Tuesday.")


@pytest.mark.parametrize("button", ["Send", "Compare replies"])
def test_nothing_is_sent_while_a_file_is_still_being_read(guide_chat: ChatPage, button: str) -> None:
    chat, page = guide_chat, guide_chat.page
    held: list[Route] = []
    page.route("**/api/files", lambda route: held.append(route))
    attach(chat)
    expect(page.locator(".dm-file-chip")).to_have_text("Reading the file …")
    chat.box.fill("When do they arrive?")
    page.get_by_role("button", name=button, exact=True).click()
    expect(chat.alert).to_contain_text("A file is still being read.")
    expect(page.get_by_role("dialog")).to_have_count(0)
    held[0].continue_()
    expect(page.locator(".dm-file-chip .dm-file-name")).to_have_text("notes.md")
    expect(chat.users).to_have_count(0)


def test_files_that_were_not_sent_stay_with_their_chat_over_a_reload(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    chip = attach(chat)
    expect(chip).to_be_visible()
    chat.reload()
    expect(chip).to_be_visible()
    page.locator(".dm-examples button").first.click()  # sends its own text, and no file
    expect(chat.users).to_have_count(1)
    expect(page.locator(".dm-user .dm-file-card")).to_have_count(0)
    chat.wait_for_end()
    expect(chip).to_be_visible()
    page.get_by_role("button", name="New chat").first.click()
    expect(page.locator(".dm-welcome")).to_be_visible()
    expect(chip).to_have_count(0)
    page.go_back()
    expect(chip).to_be_visible()
    chip.get_by_role("button", name="Remove notes.md").press("Enter")
    expect(chip).to_have_count(0)
    expect(page.get_by_role("button", name="Attach files")).to_be_focused()
    chat.reload()
    expect(chat.users).to_have_count(1)
    expect(chip).to_have_count(0)


def test_a_file_that_is_being_read_holds_up_no_other_chat(guide_chat: ChatPage) -> None:
    chat, page = guide_chat, guide_chat.page
    held: list[Route] = []
    page.route("**/api/files", lambda route: held.append(route))
    chat.ask("hi")
    first = chat.conversation_id
    attach(chat)
    chips = page.locator(".dm-file-chip")
    expect(chips).to_have_text("Reading the file …")
    page.get_by_role("button", name="New chat").first.click()
    expect(page.locator(".dm-welcome")).to_be_visible()
    expect(chips).to_have_count(0)
    chat.ask("hello")
    expect(chat.users).to_have_text(["hello"])
    page.locator(f'#dm-conversations a[href*="{first}"]').click()
    expect(chat.users).to_have_text(["hi"])
    expect(chips).to_have_text("Reading the file …")
    held[0].continue_()
    expect(chips.locator(".dm-file-name")).to_have_text("notes.md")
