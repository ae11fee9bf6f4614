"""Sending, watching the text grow, stopping, copying, and the keys people are used to."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.chat_page import ChatPage, letters
from tests.e2e.conftest import NewBrowser
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import AXE


def test_guide_answers_and_stops_by_itself(guide_chat: ChatPage) -> None:
    chat = guide_chat
    expect(chat.page.locator(".dm-status")).to_have_text("guide · ready")
    reply = chat.ask("hi")
    assert len(reply.strip()) > 3
    expect(chat.replies.last.locator(".dm-stats")).to_have_text(re.compile(r"^\d+ tokens?( · [\d.,]+/s)?$"))


def test_text_grows_while_it_is_written(chat: ChatPage) -> None:
    chat.send("tell me everything")
    lengths = {len(chat.wait_for_text(1))}
    for _ in range(3):
        lengths.add(len(chat.wait_for_text(max(lengths) + 1)))
    assert len(lengths) == 4
    expect(chat.replies.last).to_have_attribute("data-status", "streaming")
    chat.stop()


def test_a_line_under_the_reply_says_what_it_took(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "40")
    chat.ask("hello")
    chat.ask("and again, please")
    line = chat.replies.last.locator(".dm-stats")
    expect(line).to_have_text(re.compile(r"^40 tokens · [\d.,]+/s · reached its maximum length$"))
    line.press("Enter")
    popover = chat.page.get_by_role("dialog", name="Where the time went")
    expect(popover.locator("tbody tr")).to_have_count(6)
    for phase in ("Tokenize", "Queue", "Prefill", "First token", "Decode", "Delivery"):
        row = popover.get_by_role("row", name=re.compile(f"^{phase}"))
        expect(row.locator(".dm-timing-ms")).to_have_text(re.compile(r"^\d+(\.\d+)? m?s$"))
    shown, box = popover.bounding_box(), chat.page.locator(".dm-box").bounding_box()
    assert shown is not None
    assert box is not None
    assert shown["y"] + shown["height"] <= box["y"], "it covers the message box"
    cached = re.search(r"([\d,]+) of [\d,]+ tokens from the cache", popover.inner_text())
    assert cached is not None
    assert int(cached[1].replace(",", "")) > 0, "the second turn reads the first one from the cache"
    chat.page.add_script_tag(content=AXE.read_text())
    violations = "axe.run('.dm-timing:popover-open').then(({violations}) => violations.map(({id}) => id))"
    assert chat.page.evaluate(violations) == []
    chat.page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    expect(line).to_be_focused()
    chat.reload()
    line.click()  # of the stored reply
    expect(popover.get_by_role("row", name=re.compile("^Queue"))).not_to_contain_text("not known")


def test_temperature_zero_and_seeds_give_the_same_reply_again(chat: ChatPage) -> None:
    def reply(temperature: str, seed: str) -> str:
        chat.page.get_by_role("button", name="New chat").click()
        expect(chat.page.locator(".dm-welcome")).to_be_visible()
        chat.set_number("Temperature", temperature)
        chat.set_number("Maximum length", "60")
        chat.set_number("Seed", seed)
        return chat.ask("the same question")

    chat.open_settings()
    assert reply("0", "") == reply("0", "")
    assert reply("1", "7") == reply("1", "7")
    assert reply("1", "7") != reply("1", "8")


def test_a_long_prompt_shows_how_far_it_is_read(chat: ChatPage) -> None:
    """The server that says so is played here: a real one may have read it all before the page can listen."""

    def half_read(route: Route) -> None:
        turn_id = parse_qs(urlsplit(route.request.url).query)["turn"][0].rpartition(":")[0]
        progress = {"turn_id": turn_id, "processed": 4095, "total": 8190}
        route.fulfill(content_type="text/event-stream", body=f"event: progress\ndata: {json.dumps(progress)}\n\n")

    chat.page.route("**/api/events*", half_read)
    chat.send("many words to be read before the first one is said " * 160)
    waiting = chat.replies.last.locator(".dm-waiting")
    expect(waiting).to_have_text("Reading 50 %")
    chat.page.unroute("**/api/events*")
    chat.wait_for_text(1)
    expect(waiting).to_be_hidden()
    chat.stop()


def test_stop_keeps_what_was_shown(chat: ChatPage) -> None:
    chat.send("go on for ever")
    shown = chat.wait_for_text(80)
    kept = chat.stop()
    assert letters(kept).startswith(letters(shown))
    expect(chat.replies.last).to_contain_text("Stopped.")
    expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert chat.reload().wait_for_end() == kept


def test_escape_stops(chat: ChatPage) -> None:
    chat.send("go on for ever")
    chat.wait_for_text(20)
    chat.page.keyboard.press("Escape")
    chat.wait_for_end()
    expect(chat.replies.last).to_have_attribute("data-status", "stopped")


def test_escape_in_a_dialog_closes_it_and_stops_nothing(chat: ChatPage) -> None:
    chat.send("a title for the dialog")
    chat.wait_for_text(10)
    chat.press_in_row("a title for the dialog", "Delete")
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    chat.wait_for_text(len(chat.text()) + 20)
    expect(chat.replies.last).to_have_attribute("data-status", "streaming")
    chat.stop()


def test_shift_enter_breaks_the_line(chat: ChatPage) -> None:
    chat.box.fill("one")
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("two")
    expect(chat.box).to_have_value("one\ntwo")
    expect(chat.users).to_have_count(0)


def test_enter_that_ends_a_composition_does_not_send(chat: ChatPage) -> None:
    chat.box.fill("かな")
    chat.box.dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True})
    chat.box.press_sequentially("!")
    expect(chat.box).to_have_value("かな!")
    expect(chat.users).to_have_count(0)


def test_arrow_up_brings_the_last_message_back(chat: ChatPage) -> None:
    chat.send("first\nsecond line")
    chat.wait_for_text(5)
    chat.stop()
    expect(chat.box).to_be_focused()
    chat.page.keyboard.press("ArrowUp")
    expect(chat.box).to_have_value("first\nsecond line")


def test_a_caret_stands_at_the_end_of_the_text_while_it_streams(chat: ChatPage) -> None:
    caret = """() => {
      const ends = [...document.querySelectorAll(".dm-reply:last-child .dm-tail > :last-child")];
      return ends.some((end) => [end, ...end.querySelectorAll("*")].some(
        (each) => getComputedStyle(each, "::after").animationName === "dm-blink"));
    }"""
    chat.send("a caret, please")
    chat.wait_for_text(5)
    chat.page.wait_for_function(caret)
    chat.stop()
    assert not chat.page.evaluate(caret)


def test_an_example_is_sent_when_it_is_clicked_and_a_draft_stays(chat: ChatPage) -> None:
    chat.box.fill("half a thought")
    example = chat.page.locator(".dm-examples button").first
    text = example.inner_text()
    example.dblclick()
    expect(chat.users).to_have_text([text])
    expect(chat.box).to_have_value("half a thought")
    expect(chat.page.locator(".dm-welcome")).to_be_hidden()
    chat.stop()


def test_an_empty_chat_says_in_three_lines_what_it_is(chat: ChatPage) -> None:
    what, model, use = chat.page.locator(".dm-welcome-model").inner_text().splitlines()
    assert what == "Deskmate is a chat whose model runs on this machine. Nothing you write leaves it."
    assert re.fullmatch(
        r"You are talking to endless, with [\d,.]+( million)? parameters and a context of 16,384 tokens\.", model
    ), model
    assert use.startswith("It is good for ")


def test_copy_gives_the_source(new_browser: NewBrowser, server: Server) -> None:
    source = "A **bold** word.\n\n```python\nprint(1)\n```"
    conversation = seed_conversation(server.data_dir, "copying", ["copy me", source])
    context = new_browser(server, permissions=["clipboard-read", "clipboard-write"])
    chat = ChatPage(context.new_page(), server.url).open(conversation)
    chat.page.get_by_role("button", name="Copy reply").click()
    _expect_copied(chat.page, source)
    chat.page.get_by_role("button", name="Copy code").click()
    _expect_copied(chat.page, "print(1)")


def _expect_copied(page: Page, text: str) -> None:
    page.wait_for_function("async text => (await navigator.clipboard.readText()).trim() === text", arg=text)


@pytest.mark.full
@pytest.mark.parametrize("by", ["wheel", "key"])
def test_however_little_one_scrolls_up_the_text_stays_there(chat: ChatPage, by: str) -> None:
    chat.page.set_viewport_size({"width": 700, "height": 420})
    chat.send("another long one")
    chat.page.wait_for_function("document.querySelector('.dm-scroll').scrollTop > 200")
    chat.page.locator(".dm-scroll").hover()
    if by == "wheel":
        chat.page.mouse.wheel(0, -10)
    else:
        chat.page.locator(".dm-scroll").press("ArrowUp")
    before = _at_rest(chat.page)
    expect(chat.page.get_by_role("button", name="Jump to latest")).to_be_visible()
    assert chat.page.evaluate("document.querySelector('.dm-scroll').scrollTop") == before
    chat.page.keyboard.press("Escape")
    chat.wait_for_end()


def _at_rest(page: Page) -> float:
    """Where the messages stand once the wheel's scrolling, which takes some frames, has come to its end."""
    script = """() => new Promise(resolve => {
      const scroller = document.querySelector(".dm-scroll");
      let last = scroller.scrollTop, since = 0;
      const look = () => {
        since = scroller.scrollTop === last ? since + 1 : 0;
        last = scroller.scrollTop;
        if (since >= 15) resolve(last);
        else requestAnimationFrame(look);
      };
      look();
    })"""
    return float(page.evaluate(script))


def test_page_follows_the_text_unless_scrolled_up(chat: ChatPage) -> None:
    chat.page.set_viewport_size({"width": 700, "height": 420})
    chat.send("a long one")
    at_end = "() => { const s = document.querySelector('.dm-scroll'); return s.scrollTop > 200 && "
    at_end += "s.scrollHeight - s.scrollTop - s.clientHeight < 24; }"
    chat.page.wait_for_function(at_end)

    chat.page.locator(".dm-scroll").hover()
    chat.page.mouse.wheel(0, -160)
    latest = chat.page.get_by_role("button", name="Jump to latest")
    expect(latest).to_be_visible()
    before = _at_rest(chat.page)
    chat.wait_for_text(len(chat.text()) + 300)
    assert chat.page.evaluate("document.querySelector('.dm-scroll').scrollTop") == before

    latest.click()
    chat.page.wait_for_function(at_end)
    expect(latest).to_be_hidden()
    chat.page.keyboard.press("Escape")
    chat.wait_for_end()
