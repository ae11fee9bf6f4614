"""A draft of a reply in the chat while things go wrong: two tabs, a stop, a server that dies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from testing.scripted_server import DONE, ScriptedResponse, chunk, reply, usage, words
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.server import Server
from tests.e2e.test_cases_inbox import check_accessible
from tests.e2e.test_drafts import MESSAGE, panel, text
from tests.e2e.test_slow_answers import until
from tests.e2e.test_sources import add_document
from tests.e2e.test_widths import MISFITS

pytestmark = pytest.mark.full

PHONE = {"width": 390, "height": 844}
#: Each with the height that a phone's keyboard leaves of it.
PHONES = [(390, 844, 480), (320, 640, 400)]
SENTENCE = "It lasts 31 months from the day of purchase, and limescale is not covered [1]. "
WITH_CANNED_REPLY = re.compile("^It lasts 31 months.\nHello Eve,.*PS: Thanks.$", re.DOTALL)


@pytest.fixture
def front(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Server]:
    with front_server(elsewhere, tmp_path) as server:
        yield server


def in_two_parts(first: str, gate: asyncio.Event, rest: str) -> ScriptedResponse:
    """A reply that stands still after its first part until the gate is opened."""
    return reply(chunk(), chunk(first), gate, chunk(rest), chunk(None, "stop"), usage(7, 2), DONE)


def write(page: Page, name: str = "Draft a reply") -> None:
    page.bring_to_front()
    page.get_by_role("button", name=name, exact=True).click()


def check_usable(page: Page) -> None:
    """Nothing sticks out, and each control of the panel can be scrolled to and clicked: nothing lies over it."""
    check_accessible(page)
    assert page.evaluate(MISFITS) == []
    controls = panel(page).locator("button:visible, textarea:visible, summary:visible")
    assert controls.count() >= 8
    for control in controls.all():
        if control.is_enabled():
            control.click(trial=True)


#: Controls of the panel that cannot be brought wholly into it by scrolling, or are too small for a finger.
OUT_OF_REACH = """(panel) => [...panel.querySelectorAll("button, textarea, summary")]
  .filter((control) => control.checkVisibility())
  .flatMap((control) => {
    control.scrollIntoView({ block: "nearest" });
    const box = control.getBoundingClientRect();
    const place = panel.getBoundingClientRect();
    const isInside = box.left >= place.left && box.right <= place.right
      && (control.matches("textarea") || (box.top >= place.top && box.bottom <= place.bottom));
    const isLarge = Math.min(box.width, box.height) >= 24;
    return isInside && isLarge ? [] : [[control.textContent || control.ariaLabel || control.id, box.toJSON()]];
  })"""


def check_by_touch(chat: ChatPage) -> None:
    """Draft and message box are in the window together, and a finger reaches each control of the draft."""
    page = chat.page
    send = page.get_by_role("button", name="Send", exact=True)
    for place in (panel(page), chat.box, send):
        expect(place).to_be_in_viewport(ratio=1)
    assert panel(page).evaluate(OUT_OF_REACH) == []
    expect(page.locator(".dm-header")).to_be_in_viewport(ratio=1)  # nothing has moved the whole page
    check_usable(page)


def check_at_rest(page: Page) -> None:
    """Nothing says that a draft is being written, and the text can be edited."""
    expect(panel(page).get_by_role("button", name="Stop writing")).to_be_hidden()
    expect(panel(page).get_by_text("Writing the draft")).to_have_count(0)
    expect(panel(page).get_by_text("Reading the message")).to_have_count(0)
    expect(text(page)).to_be_editable()


def test_two_tabs_write_drafts_in_one_chat_and_neither_loses_its_own(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    context = new_browser(front)
    first = ChatPage(context.new_page(), front.url).open()
    elsewhere.server.say(words("From the first tab."))
    first.box.fill(MESSAGE)
    write(first.page)
    expect(text(first.page)).to_have_value("From the first tab.")
    second = ChatPage(context.new_page(), front.url).open(first.conversation_id)
    expect(panel(second.page)).to_be_hidden()

    gates = [asyncio.Event(), asyncio.Event()]
    second.box.fill("And the toaster?")
    elsewhere.server.say(in_two_parts("The second ", gates[0], "tab writes."))
    write(second.page)
    expect(text(second.page)).to_have_value("The second ")
    elsewhere.server.say(in_two_parts("Shorter, ", gates[1], "from the first."))
    write(first.page, "Shorter")
    expect(text(first.page)).to_have_value("Shorter, ")
    expect(panel(first.page).locator(".dm-draft-origin")).to_contain_text(MESSAGE)
    expect(panel(second.page).locator(".dm-draft-origin")).to_contain_text("And the toaster?")
    elsewhere.open_gate(gates[1])
    expect(text(first.page)).to_have_value("Shorter, from the first.")
    text(first.page).fill("Dear Eve, it is the first tab’s.")
    check_at_rest(first.page)
    expect(panel(second.page).get_by_text("Writing the draft")).to_be_visible()
    elsewhere.open_gate(gates[0])
    expect(text(second.page)).to_have_value("The second tab writes.")
    text(second.page).fill("Dear Tom, it is the second tab’s.")
    for chat, kept in ((first, "Dear Eve, it is the first tab’s."), (second, "Dear Tom, it is the second tab’s.")):
        chat.page.bring_to_front()
        chat.reload()
        expect(text(chat.page)).to_have_value(kept)
        check_at_rest(chat.page)
        panel(chat.page).get_by_role("button", name="Insert", exact=True).click()
        expect(chat.box).to_have_value(kept)

    page = first.page
    page.goto(f"{front.url}/desk#review")
    for name in ("Eve", "Tom"):
        card = page.get_by_role("article", name="Draft in").filter(has_text=f"Dear {name}")
        expect(card).to_have_count(1)
        expect(card).to_contain_text("Changed before it was used")


def test_a_tab_that_is_duplicated_while_a_draft_is_written_says_that_its_copy_is_not_whole(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    gate = asyncio.Event()
    elsewhere.server.say(in_two_parts("It lasts ", gate, "31 months."))
    chat.box.fill(MESSAGE)
    write(chat.page)
    expect(text(chat.page)).to_have_value("It lasts ")
    assert chat.conversation_id
    saved = f"(sessionStorage['deskmate.reply-draft.{chat.conversation_id}'] ?? '').includes('It lasts')"
    until(chat.page, lambda: bool(chat.page.evaluate(saved)))
    with chat.page.context.expect_page() as opening:
        chat.page.evaluate("window.open(location.href)")  # with this tab's storage, as a duplicate has it
    copy = ChatPage(opening.value, front.url).ready()
    expect(text(copy.page)).to_have_value("It lasts ")
    expect(panel(copy.page)).to_contain_text("closed, reloaded or duplicated")
    check_at_rest(copy.page)
    elsewhere.open_gate(gate)
    expect(text(chat.page)).to_have_value("It lasts 31 months.")
    expect(text(copy.page)).to_have_value("It lasts ")
    elsewhere.server.say(words("It lasts 31 months in the copy."))
    write(copy.page, "Try again")
    expect(text(copy.page)).to_have_value("It lasts 31 months in the copy.")
    expect(text(chat.page)).to_have_value("It lasts 31 months.")


def test_a_draft_that_is_stopped_leaves_a_usable_box(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page, server = chat.page, elsewhere.server
    stop = panel(page).get_by_role("button", name="Stop writing")
    server.say(reply(asyncio.Event()))  # not a word comes
    chat.box.fill(MESSAGE)
    write(page)
    until(page, lambda: server.running == 1)
    expect(text(page)).to_have_js_property("readOnly", True)
    stop.press("Enter")
    expect(panel(page).get_by_text("Stopped.", exact=True)).to_be_visible()
    again = panel(page).get_by_role("button", name="Write the draft")
    expect(again).to_be_focused()
    expect(text(page)).to_be_hidden()
    until(page, lambda: server.running == 0)

    server.say(reply(chunk(), chunk("It lasts "), asyncio.Event()))
    again.press("Enter")
    expect(stop).to_be_focused()
    expect(text(page)).to_have_value("It lasts ")
    stop.press("Enter")
    expect(panel(page).get_by_text("You stopped this draft.")).to_be_visible()
    check_at_rest(page)
    expect(text(page)).to_be_focused()
    until(page, lambda: server.running == 0)
    page.keyboard.press("End")
    page.keyboard.type("31 months.")
    chat.reload()
    expect(text(page)).to_have_value("It lasts 31 months.")
    check_at_rest(page)

    server.say(reply(chunk(), chunk("31 "), asyncio.Event()))
    panel(page).get_by_role("button", name="Shorter").press("Enter")
    expect(text(page)).to_have_value("31 ")
    page.keyboard.press("Escape")  # the focus is in the panel still
    check_at_rest(page)
    assert server.generation_requests[-1].body["messages"][-2]["content"] == "It lasts 31 months."
    previous = panel(page).get_by_role("button", name="Previous draft")
    previous.press("Enter")
    expect(text(page)).to_have_value("It lasts 31 months.")
    expect(panel(page).get_by_role("button", name="Next draft")).to_be_focused()  # there is none before
    server.say(words("It lasts 31 months. Ask me anything."))
    panel(page).get_by_role("button", name="Friendlier").click()
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(panel(page).get_by_role("group", name="Draft 3 of 3")).to_be_visible()
    check_at_rest(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height", "with_keyboard"), PHONES)
def test_a_draft_is_wholly_usable_by_touch_on_a_phone(
    elsewhere: Elsewhere,
    front: Server,
    new_browser: NewBrowser,
    width: int,
    height: int,
    with_keyboard: int,
    scheme: str,
) -> None:
    size = {"width": width, "height": height}
    context = new_browser(front, viewport=size, is_mobile=True, has_touch=True, color_scheme=scheme)
    chat = ChatPage(context.new_page(), front.url).open()
    page = chat.page
    add_document(page, front.url)
    chat.reload().open_settings()
    page.get_by_role("checkbox", name="Knowledge").check()
    page.locator(".dm-toggle-settings").tap()

    def resize(to_height: int) -> None:
        page.set_viewport_size({"width": width, "height": to_height})

    def tap(name: str) -> None:
        panel(page).get_by_role("button", name=name, exact=True).tap()

    opener = page.get_by_role("button", name="Draft a reply")
    opener.tap()
    expect(panel(page).get_by_label("Customer’s message")).to_be_focused()
    check_by_touch(chat)
    tap("Close the draft")
    expect(opener).to_be_focused()  # not the box: its keyboard would cover the page
    chat.box.fill(MESSAGE + "\nHow long is it?" * 14)  # more than the box shows at once
    elsewhere.server.say(words("31 months [1]."), words(SENTENCE * 12))
    opener.tap()
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    tap("Friendlier")
    expect(panel(page).get_by_role("group", name="Draft 2 of 2")).to_be_visible()
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(text(page)).to_be_focused()
    check_by_touch(chat)
    panel(page).locator(".dm-citation summary").tap()
    expect(panel(page).locator("blockquote")).to_be_visible()
    check_by_touch(chat)
    resize(with_keyboard)
    check_by_touch(chat)

    page.route("**/draft", lambda route: route.abort())
    tap("Try again")
    expect(panel(page).get_by_role("alert")).to_contain_text("Check that it is running")
    expect(panel(page).get_by_role("alert")).to_be_in_viewport(ratio=0.5)
    expect(text(page)).to_be_focused()
    check_by_touch(chat)
    resize(height)
    check_by_touch(chat)
    chat.box.tap()
    expect(chat.box).to_be_focused()
    tap("Previous draft")
    expect(text(page)).to_have_value("31 months [1].")
    tap("Insert")
    expect(panel(page)).to_be_hidden()
    expect(chat.box).to_have_value("31 months.")
    expect(opener).to_be_focused()
    expect(chat.box).to_be_in_viewport(ratio=1)


def test_the_message_of_a_draft_is_an_earlier_one_once_another_is_sent(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    elsewhere.server.say(words("31 months."), words("Kestrel kettles."), words("It lasts 31 months."))
    chat.send(MESSAGE)
    chat.wait_for_end()
    until(chat.page, lambda: len(elsewhere.server.generation_requests) == 2)  # the second is for the chat's title
    write(chat.page)
    expect(text(chat.page)).to_have_value("It lasts 31 months.")
    origin = panel(chat.page).locator(".dm-draft-origin")
    expect(origin).to_have_text(f"Customer’s message, your last one in this chat: “{MESSAGE}”")
    elsewhere.server.say(words("No."))
    chat.send("And the toaster?")
    expect(origin).to_have_text(f"Customer’s message, an earlier one in this chat: “{MESSAGE}”")


def test_a_server_that_is_killed_while_it_writes_a_draft_loses_nothing_that_was_there(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page
    chat.box.fill(MESSAGE)
    elsewhere.server.say(words("The first one."))
    write(page)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    panel(page).locator("summary").first.click()
    panel(page).get_by_label("Notes on the case").fill("She is a regular.")
    text(page).fill("The first one, edited.")
    elsewhere.server.say(reply(chunk(), chunk("It lasts "), asyncio.Event()))
    write(page, "Try again")
    expect(text(page)).to_have_value("It lasts ")
    front.kill()
    alert = panel(page).get_by_role("alert")
    expect(alert).to_have_text("The connection to Deskmate was lost. Check that it is running, then try again.")
    expect(panel(page).get_by_text("This draft is not complete.")).to_be_visible()
    expect(text(page)).to_have_value("It lasts ")
    check_at_rest(page)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/draft")):  # while it is down
        write(page, "Try again")
    expect(alert).to_contain_text("Check that it is running")
    expect(panel(page).get_by_role("group", name="Draft 2 of 2")).to_be_visible()  # the attempt left no version
    expect(text(page)).to_have_value("It lasts ")
    expect(chat.box).to_have_value(MESSAGE)
    check_at_rest(page)

    front.start()
    elsewhere.server.say(words("It lasts 31 months."))
    write(page, "Try again")
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(alert).to_be_hidden()
    expect(text(page)).to_have_value("It lasts 31 months.")
    assert "She is a regular." in elsewhere.server.generation_requests[-1].body["messages"][-1]["content"]
    for earlier in ("It lasts ", "The first one, edited."):
        panel(page).get_by_role("button", name="Previous draft").click()
        expect(text(page)).to_have_value(earlier)


def test_a_canned_reply_goes_into_an_open_draft_and_beside_one_that_is_being_written_into_the_box(
    elsewhere: Elsewhere, front: Server, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(front).new_page(), front.url).open()
    page = chat.page

    def put_canned_reply() -> None:
        page.locator(".dm-canned-open").click()
        page.get_by_role("combobox", name="Search canned replies").fill("looking into it")
        page.get_by_role("option").click()
        for value in ("Eve", "your kettle"):
            page.keyboard.type(value)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".dm-fill")).to_have_count(0)

    chat.box.fill(MESSAGE)
    elsewhere.server.say(words("It lasts 31 months."))
    write(page)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    text(page).press("ControlOrMeta+End")
    page.keyboard.press("Enter")
    put_canned_reply()
    expect(text(page)).to_have_value(re.compile("^It lasts 31 months.\nHello Eve,\n"))
    expect(text(page)).to_be_focused()
    expect(chat.box).to_have_value(MESSAGE)
    page.keyboard.type("PS: Thanks.")
    chat.reload()
    expect(text(page)).to_have_value(WITH_CANNED_REPLY)
    panel(page).get_by_role("button", name="Insert", exact=True).click()
    expect(chat.box).to_have_value(WITH_CANNED_REPLY)
    assert chat.users.count() == 0  # nothing was sent

    chat.box.fill("And the toaster?")
    gate = asyncio.Event()
    elsewhere.server.say(in_two_parts("It ", gate, "toasts."))
    write(page)
    expect(text(page)).to_have_value("It ")
    chat.box.fill("")
    put_canned_reply()  # the draft's own text is not in its way
    expect(chat.box).to_have_value(re.compile("^Hello Eve,"))
    expect(text(page)).to_have_value("It ")
    elsewhere.open_gate(gate)
    expect(text(page)).to_have_value("It toasts.")
