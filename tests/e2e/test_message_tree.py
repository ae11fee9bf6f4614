"""Editing a message, asking for another reply, moving between versions, branching: in the browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.chat_page import ChatPage, letters
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server


def edit(chat: ChatPage, index: int, text: str) -> None:
    message = chat.page.locator(".dm-user").nth(index)
    message.hover()
    message.get_by_role("button", name="Edit message").click()
    box = message.get_by_label("Edited message")
    expect(box).to_be_focused()
    box.fill(text)


def version(message: Locator) -> Locator:
    return message.locator(".dm-versions")


def short_replies(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "12")
    chat.set_number("Temperature", "1")


def test_an_edited_message_gets_its_own_reply_and_the_first_is_a_click_away(chat: ChatPage) -> None:
    short_replies(chat)
    first = chat.ask("the first question")
    second = chat.ask("the second question")
    edit(chat, 0, "another question")
    chat.page.keyboard.press("Enter")
    expect(chat.users).to_have_text(["another question"])
    expect(chat.box).to_be_focused()
    other = chat.wait_for_end()
    expect(chat.replies).to_have_count(1)
    asked = chat.page.locator(".dm-user").first
    expect(version(asked)).to_have_text("2 / 2")
    expect(asked.get_by_role("button", name="Next version")).to_be_disabled()

    asked.get_by_role("button", name="Previous version").click()
    expect(chat.users).to_have_text(["the first question", "the second question"])
    assert [chat.text(0), chat.text(1)] == [first, second]
    expect(asked.get_by_role("button", name="Next version")).to_be_focused()
    chat.reload()  # it is the server that knows which branch is shown
    expect(chat.users).to_have_text(["the first question", "the second question"])
    asked.get_by_role("button", name="Next version").click()
    expect(chat.users).to_have_text(["another question"])
    assert chat.text() == other


def test_another_reply_stands_beside_the_first_with_the_settings_of_now(chat: ChatPage) -> None:
    short_replies(chat)
    first = chat.ask("tell me something")
    chat.set_number("Maximum length", "5")
    chat.replies.last.get_by_role("button", name="Try again").click()
    expect(chat.replies.last.locator(".dm-stats")).to_have_text(re.compile(r"^5 tokens "))
    second = chat.wait_for_end()
    reply = chat.replies.last
    expect(version(reply)).to_have_text("2 / 2")
    expect(chat.users).to_have_count(1)
    reply.get_by_role("button", name="Previous version").click()
    expect(version(reply)).to_have_text("1 / 2")
    assert chat.text() == first != second
    chat.ask("and then?")  # what follows belongs to the version that is shown
    reply = chat.replies.first
    reply.get_by_role("button", name="Next version").click()
    expect(chat.replies).to_have_count(1)
    assert chat.text() == second


def test_a_reply_that_reached_its_length_goes_on(chat: ChatPage) -> None:
    short_replies(chat)
    chat.set_number("Temperature", "0")
    first = chat.ask("begin")
    reply = chat.replies.last
    expect(reply.locator(".dm-stats")).to_have_text(re.compile(r"^12 tokens "))
    reply.get_by_role("button", name="Continue").click()
    expect(reply.locator(".dm-stats")).to_have_text(re.compile(r"^24 tokens "))
    longer = chat.wait_for_end()
    assert letters(longer).startswith(letters(first))
    expect(chat.replies).to_have_count(1)
    expect(version(reply)).to_have_count(0)
    chat.reload()
    assert letters(chat.text()) == letters(longer)
    chat.ask("and more")
    expect(chat.replies.last.get_by_role("button", name="Continue")).to_be_visible()
    reply = chat.replies.first  # what has a message behind it goes on as a version
    reply.hover()
    reply.get_by_role("button", name="Continue").click()
    expect(version(chat.replies.first)).to_have_text("2 / 2")
    chat.wait_for_end()
    assert letters(chat.text()).startswith(letters(longer))


def test_a_branch_is_a_conversation_of_its_own(chat: ChatPage) -> None:
    short_replies(chat)
    chat.ask("a forking path")
    chat.ask("one way")
    origin = chat.conversation_id
    chat.replies.first.get_by_role("button", name="Branch").click()
    chat.page.wait_for_url(lambda url: origin not in url)
    expect(chat.users).to_have_text(["a forking path"])
    expect(chat.page.locator(".dm-title")).to_have_text("a forking path (branch)")
    expect(chat.row("a forking path (branch)")).to_have_count(1)
    chat.ask("another way")
    chat.go(origin)
    expect(chat.users).to_have_text(["a forking path", "one way"])


def test_while_a_reply_is_written_nothing_else_begins(chat: ChatPage) -> None:
    short_replies(chat)
    chat.ask("first")
    chat.replies.first.get_by_role("button", name="Try again").click()
    expect(version(chat.replies.last)).to_have_text("2 / 2")
    chat.wait_for_end()
    chat.set_number("Maximum length", "")
    chat.send("a long story")
    chat.wait_for_text(5)
    chat.replies.first.get_by_role("button", name="Try again").click()
    expect(chat.alert).to_contain_text("still being written")
    chat.page.locator(".dm-user").first.hover()
    version(chat.replies.first).get_by_role("button", name="Previous version").click()
    expect(chat.alert).to_contain_text("still being written")
    edit(chat, 0, "changed")
    chat.page.keyboard.press("Enter")
    expect(chat.alert).to_contain_text("still being written")
    expect(chat.page.get_by_label("Edited message")).to_have_value("changed")  # nothing is lost
    chat.page.get_by_label("Edited message").press("Escape")  # closes the editing, not the reply
    expect(chat.replies.last).to_have_attribute("data-status", "streaming")
    chat.stop()


@pytest.mark.full
def test_what_is_being_edited_survives_a_reload_and_news_from_another_tab(new_tab: NewTab, server: Server) -> None:
    here, there = new_tab().open(), new_tab().open()
    short_replies(here)
    here.ask("a question of two tabs")
    there.open(here.conversation_id)
    edit(here, 0, "half a thou")
    there.ask("something else")
    here.page.bring_to_front()
    expect(here.users).to_have_count(1)  # the other is being edited
    expect(here.page.get_by_label("Edited message")).to_have_value("half a thou")
    here.page.keyboard.type("ght")
    expect(here.page.get_by_label("Edited message")).to_have_value("half a thought")
    here.reload()
    expect(here.page.get_by_label("Edited message")).to_have_value("half a thought")
    here.page.get_by_role("button", name="Cancel").click()
    expect(here.users).to_have_text(["a question of two tabs", "something else"])
    here.reload()
    expect(here.page.get_by_label("Edited message")).to_have_count(0)


def test_an_empty_edit_is_refused_and_nothing_is_lost(chat: ChatPage) -> None:
    short_replies(chat)
    chat.ask("a full question")
    edit(chat, 0, "   ")
    chat.page.get_by_role("button", name="Send", exact=True).first.click()
    expect(chat.alert).to_contain_text("empty")
    chat.page.get_by_label("Edited message").press("Escape")
    expect(chat.users).to_have_text(["a full question"])


def test_switching_far_up_leaves_the_reader_there(new_tab: NewTab, server: Server) -> None:
    conversation_id = seed_conversation(server.data_dir, "A long one", [f"line {number}" for number in range(40)])
    chat = new_tab().open(conversation_id)
    expect(chat.replies).to_have_count(20)
    first = chat.page.locator(".dm-user").first
    first.scroll_into_view_if_needed()
    short_replies(chat)
    edit(chat, 0, "line 0 again")
    chat.page.keyboard.press("Enter")
    expect(chat.users).to_have_text(["line 0 again"])
    chat.wait_for_end()
    first.get_by_role("button", name="Previous version").click()
    expect(chat.users).to_have_count(20)
    expect(first).to_be_in_viewport()
    expect(version(first)).to_have_text(re.compile("1 / 2"))


def test_a_message_is_deleted_with_what_follows_and_comes_back(server: Server, new_tab: NewTab) -> None:
    conversation_id = seed_conversation(server.data_dir, "Deleted", ["one", "first", "two", "second"])
    chat, other = new_tab(conversation_id), new_tab(conversation_id)
    chat.page.bring_to_front()
    message = chat.page.locator(".dm-user").nth(1)
    message.hover()
    message.get_by_role("button", name="Delete this message").click()
    expect(chat.users).to_have_text(["one"])
    expect(other.users).to_have_text(["one"])
    expect(chat.page.locator("#dm-toast")).to_contain_text("2 messages were deleted.")
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.users).to_have_text(["one", "two"])
    expect(other.users).to_have_text(["one", "two"])
    expect(chat.page.locator("#dm-toast")).to_be_empty()


def test_a_question_left_without_its_reply_gets_another(server: Server, new_tab: NewTab) -> None:
    chat = new_tab(seed_conversation(server.data_dir, "Unanswered", ["say something", "no"]))
    short_replies(chat)
    chat.page.get_by_role("button", name="Delete this reply").click()
    expect(chat.replies).to_have_count(0)
    chat.page.get_by_role("button", name="Get a reply").click()
    expect(chat.replies).to_have_count(1)
    chat.wait_for_end()
    expect(chat.page.get_by_role("button", name="Get a reply")).to_have_count(0)
