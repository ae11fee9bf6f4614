"""The list at the left: new, open, rename, delete with a question first, search."""

from __future__ import annotations

import pytest
from playwright.sync_api import APIResponse, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.e2e.test_slow_answers import Held


@pytest.fixture
def seeded(server: Server, new_tab: NewTab) -> ChatPage:
    """A tab at a conversation named Alpha that speaks of quartz; there is a Beta too, and the list is there."""
    seed_conversation(server.data_dir, "Beta", ["nothing of interest", "indeed"])
    chat = new_tab(seed_conversation(server.data_dir, "Alpha", ["what is quartz", "A mineral named quartz."]))
    # The page is ready before its list, whose rows tests count; they come with its tags.
    expect(chat.row("Alpha").first).to_be_visible()
    return chat


def test_open_goes_into_the_address_and_back_returns(seeded: ChatPage) -> None:
    alpha = seeded.page.url
    seeded.row("Beta").first.locator("a").click()
    expect(seeded.users).to_have_text(["nothing of interest"])
    assert seeded.page.url != alpha
    seeded.page.go_back()
    expect(seeded.users).to_have_text(["what is quartz"])
    expect(seeded.row("Alpha").first.locator("a")).to_have_attribute("aria-current", "page")


def test_rename(seeded: ChatPage, new_tab: NewTab) -> None:
    other = new_tab()
    seeded.press_in_row("Alpha", "Rename")
    field = seeded.page.get_by_label("New title")
    field.fill("Rose <b>quartz</b>")
    field.press("Enter")
    expect(seeded.page.locator(".dm-title")).to_have_text("Rose <b>quartz</b>")
    expect(seeded.titles.filter(has_text="Rose")).to_have_text(["Rose <b>quartz</b>"])
    expect(other.titles.filter(has_text="Rose")).to_have_count(1)
    seeded.reload()
    expect(seeded.page.locator(".dm-title")).to_have_text("Rose <b>quartz</b>")


def test_a_menu_outlasts_news_of_its_conversation(seeded: ChatPage) -> None:
    page = seeded.page
    seeded.row("Alpha").first.hover()
    seeded.row("Alpha").first.get_by_title("More", exact=True).click()
    rename = page.get_by_role("menuitem", name="Rename", exact=True)
    expect(rename).to_be_visible()
    _pin(seeded)
    rename.click()
    field = page.get_by_label("New title")
    expect(field).to_be_focused()
    field.fill("Alpha was pinned")
    field.press("Enter")
    expect(page.locator(".dm-title")).to_have_text("Alpha was pinned")
    seeded.press_in_row("Alpha was pinned", "Unpin")  # what it missed meanwhile has been drawn
    expect(page.get_by_role("heading", name="Pinned", exact=True)).to_have_count(0)


def test_a_row_that_is_pressed_is_not_drawn_anew_under_the_pointer(seeded: ChatPage) -> None:
    link = seeded.row("Beta").first.locator("a")
    link.hover()
    seeded.page.mouse.down()
    _pin(seeded, seeded.row("Beta").first.get_attribute("data-id"))
    seeded.page.mouse.up()
    expect(seeded.users).to_have_text(["nothing of interest"])
    expect(seeded.box).to_be_focused()
    expect(seeded.page.get_by_role("heading", name="Pinned", exact=True)).to_be_visible()
    seeded.press_in_row("Beta", "Unpin")


def test_who_opened_a_conversation_writes_next_though_its_row_was_drawn_anew(seeded: ChatPage) -> None:
    link = seeded.row("Beta").first.locator("a")
    beta = seeded.row("Beta").first.get_attribute("data-id")
    opening = Held(seeded, f"**/api/conversations/{beta}?*")
    link.click()
    opening.wait()
    _pin(seeded, beta)
    expect(seeded.row("Beta").first.locator("a")).to_be_focused()
    opening.let_go()
    expect(seeded.users).to_have_text(["nothing of interest"])
    expect(seeded.box).to_be_focused()
    seeded.press_in_row("Beta", "Unpin")


def test_escape_leaves_the_title(seeded: ChatPage) -> None:
    seeded.press_in_row("Alpha", "Rename")
    field = seeded.page.get_by_label("New title")
    field.fill("something else")
    field.press("Escape")
    expect(seeded.page.locator(".dm-title")).to_have_text("Alpha")
    expect(seeded.titles.first).to_have_text("Alpha")


def test_what_a_list_missed_while_a_title_was_edited_is_drawn_after(seeded: ChatPage) -> None:
    seeded.press_in_row("Alpha", "Rename")
    field = seeded.page.get_by_label("New title")
    expect(field).to_be_focused()
    _pin(seeded)
    expect(field).to_be_focused()
    field.press("Escape")
    expect(seeded.page.get_by_role("heading", name="Pinned", exact=True)).to_be_visible()
    seeded.press_in_row("Alpha", "Unpin")
    expect(seeded.page.get_by_role("heading", name="Pinned", exact=True)).to_have_count(0)


def _pin(chat: ChatPage, conversation_id: str | None = None) -> None:
    """Pin the open conversation, or another, behind the page's back, and let it read its list again."""
    chat.page.evaluate(
        """async (id) => {
          const headers = { "Content-Type": "application/json" };
          await fetch(`/api/conversations/${id}`, { method: "PATCH", headers, body: JSON.stringify({ pinned: true }) });
          await window.deskmate.conversations.refresh();
        }""",
        conversation_id or chat.conversation_id,
    )


def test_delete_asks_first(seeded: ChatPage, new_tab: NewTab) -> None:
    address = seeded.page.url
    other = new_tab(seeded.conversation_id)
    count = seeded.row("Alpha").count()
    for answer, left in (("Cancel", count), ("Delete", count - 1)):
        seeded.press_in_row("Alpha", "Delete")
        dialog = seeded.page.get_by_role("dialog")
        expect(dialog).to_contain_text("Alpha")
        dialog.get_by_role("button", name=answer).click()
        expect(seeded.row("Alpha")).to_have_count(left)
    expect(seeded.page.locator(".dm-welcome")).to_be_visible()
    expect(other.alert).to_contain_text("does not exist")
    seeded.page.goto(address)
    expect(seeded.ready().alert).to_contain_text("does not exist")


def test_a_deleted_chat_comes_back_also_after_a_reload(seeded: ChatPage) -> None:
    count = seeded.row("Alpha").count()
    for reload in (False, True):
        seeded.press_in_row("Alpha", "Delete")
        seeded.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(seeded.row("Alpha")).to_have_count(count - 1)
        expect(seeded.page.locator(".dm-welcome")).to_be_visible()
        if reload:
            seeded.reload()
        toast = seeded.page.locator("#dm-toast")
        expect(toast).to_contain_text("“Alpha” was deleted.")
        toast.get_by_role("button", name="Undo").click()
        expect(seeded.users).to_have_text(["what is quartz"])
        expect(seeded.row("Alpha")).to_have_count(count)
    seeded.reload()
    expect(seeded.page.locator("#dm-toast")).to_be_empty()


def test_deleting_a_chat_that_replies_ends_the_reply(chat: ChatPage) -> None:
    chat.send("deleted while it replies")
    chat.wait_for_text(20)
    chat.press_in_row("deleted while it replies", "Delete")
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.row("deleted while it replies")).to_have_count(0)
    expect(chat.page.locator(".dm-welcome")).to_be_visible()
    expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_search_in_titles_and_texts(seeded: ChatPage) -> None:
    search = seeded.page.get_by_label("Search conversations")
    search.fill("QUARTZ")
    expect(seeded.row("Beta")).to_have_count(0)
    expect(seeded.row("Alpha").first.locator(".dm-row-snippet")).to_contain_text("quartz")
    search.fill("no such words anywhere")
    expect(seeded.page.locator(".dm-list-note")).to_have_text("Nothing found.")
    search.fill("")
    expect(seeded.row("Beta").first).to_be_visible()


@pytest.mark.full
def test_a_search_opens_at_the_message_on_whatever_branch(server: Server, new_tab: NewTab) -> None:
    texts = [f"filler {number}" for number in range(160)]
    texts[20] = "the zirconium is here"
    conversation_id = seed_conversation(server.data_dir, "Minerals", texts)
    chat = new_tab()
    chat.page.get_by_label("Search conversations").fill("zircon")
    row = chat.row("Minerals")
    expect(row.locator("mark")).to_have_text("zirconium")
    row.locator("a").click()
    found = chat.page.locator(".dm-user", has_text="the zirconium is here")
    expect(found).to_be_in_viewport()
    expect(found).to_be_focused()
    assert chat.page.url.partition("?c=")[2].startswith(f"{conversation_id}&m=")
    expect(chat.users.last).to_have_text("filler 158")
    chat.reload()
    expect(found).to_be_in_viewport()
    found_at = chat.page.url
    found.hover()
    found.get_by_role("button", name="Edit message").click()
    chat.page.get_by_label("Edited message").fill("another branch")
    chat.page.keyboard.press("Enter")
    expect(chat.users.last).to_have_text("another branch")
    chat.wait_for_text(10)
    chat.stop()
    chat.page.goto(found_at)
    chat.ready()
    expect(found).to_be_in_viewport()
    expect(chat.users.last).to_have_text("filler 158")


def test_pins_and_days_order_the_list(seeded: ChatPage) -> None:
    groups = seeded.page.locator(".dm-list .dm-group")
    expect(groups).to_contain_text(["Today"])
    seeded.press_in_row("Beta", "Pin")
    expect(groups).to_contain_text(["Pinned", "Today"])
    expect(seeded.titles.first).to_have_text("Beta")
    seeded.press_in_row("Beta", "Unpin")
    expect(groups).to_contain_text(["Today"])
    expect(seeded.page.locator(".dm-list .dm-group", has_text="Pinned")).to_have_count(0)


def test_the_archive_is_out_of_the_way_and_found(seeded: ChatPage) -> None:
    count = seeded.row("Beta").count()
    seeded.press_in_row("Beta", "Archive")
    expect(seeded.row("Beta")).to_have_count(count - 1)
    archive = seeded.page.get_by_role("button", name="Archived")
    archive.click()
    expect(seeded.row("Beta")).to_have_count(1)
    expect(seeded.row("Alpha")).to_have_count(0)
    seeded.press_in_row("Beta", "Take out of the archive")
    expect(seeded.page.locator(".dm-list-note")).to_have_text("No archived conversations.")
    archive.click()
    expect(seeded.row("Beta")).to_have_count(count)


def test_tags_are_chips_to_filter_by(seeded: ChatPage) -> None:
    seeded.press_in_row("Beta", "Tags")
    field = seeded.page.get_by_role("dialog").get_by_label("Tags")
    expect(field).to_be_focused()
    field.fill("urgent, <i>odd</i>")
    field.press("Enter")
    chip = seeded.page.locator(".dm-tags").get_by_text("#urgent", exact=True)
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(seeded.titles).to_have_text(["Beta"])
    expect(seeded.row("Beta").locator(".dm-row-tags")).to_have_text("#<i>odd</i> #urgent")
    seeded.press_in_row("Beta", "Tags")
    seeded.page.get_by_role("dialog").get_by_label("Tags").fill("")
    seeded.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(seeded.page.locator(".dm-tags")).to_be_hidden()  # and with the last tag goes the filter
    expect(seeded.row("Alpha").first).to_be_visible()


def test_tags_that_are_read_again_stay_under_the_pointer(seeded: ChatPage) -> None:
    page = seeded.page
    late: list[tuple[Route, APIResponse]] = []
    page.route("**/api/tags", lambda route: late.append((route, route.fetch())), times=1)
    page.evaluate("void window.deskmate.conversations.refresh()")
    seeded.press_in_row("Beta", "Tags")
    page.get_by_role("dialog").get_by_label("Tags").fill("lasting")
    page.keyboard.press("Enter")
    chip = page.locator(".dm-tags").get_by_text("#lasting", exact=True)
    expect(chip).to_be_visible()
    chip.evaluate("chip => { window.chip = chip; }")
    [(route, answer)] = late
    route.fulfill(response=answer)  # it is from before the tag
    page.evaluate("window.deskmate.conversations.refresh()")
    expect(chip).to_be_visible()
    assert chip.evaluate("chip => chip === window.chip")
    seeded.press_in_row("Beta", "Tags")
    page.get_by_role("dialog").get_by_label("Tags").fill("")
    page.keyboard.press("Enter")
    expect(page.locator(".dm-tags")).to_be_hidden()


@pytest.mark.full
def test_a_reply_that_ends_elsewhere_is_marked_until_it_is_opened(chat: ChatPage, new_tab: NewTab) -> None:
    chat.send("this one ends elsewhere")
    conversation = chat.conversation_id
    chat.go(None)
    row = chat.row("this one ends elsewhere")
    expect(row.get_by_label("Replying")).to_be_visible()
    request = chat.page.request
    turn = request.get(f"{chat.url}/api/conversations/{conversation}").json()["active_turn_id"]
    request.post(f"{chat.url}/api/turns/{turn}/stop", data={})
    expect(row.get_by_label("Unread")).to_be_visible(timeout=60_000)
    row.locator("a").click()
    expect(row.get_by_label("Unread")).to_have_count(0)
    later = new_tab().row("this one ends elsewhere")
    expect(later).to_be_visible()
    expect(later.get_by_label("Unread")).to_have_count(0)


def test_more_than_a_page_of_conversations_come_as_one_scrolls(server: Server, new_tab: NewTab) -> None:
    for number in range(60):
        seed_conversation(server.data_dir, f"One of many {number}", ["q", "a"])
    chat = new_tab()
    expect(chat.titles).to_have_count(50)
    chat.page.locator(".dm-list-frame").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    expect(chat.row("One of many 0")).to_have_count(1)
    shown = chat.titles.count()
    chat.page.evaluate("window.deskmate.conversations.refresh()")
    expect(chat.row("One of many 0")).to_have_count(1)
    expect(chat.titles).to_have_count(shown)
