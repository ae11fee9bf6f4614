"""A reply belongs to the server: reloading, closing, other tabs and a restart change nothing about it."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing

import pytest
from playwright.sync_api import BrowserContext, Page, Request, Route, expect

from app.ui.html_head import PAGE_SCRIPT
from tests.e2e.chat_page import ChatPage, letters
from tests.e2e.conftest import NewBrowser, NewTab
from tests.e2e.server import Server


def test_reload_in_the_middle_loses_nothing(chat: ChatPage) -> None:
    chat.send("a long reply")
    shown = chat.wait_for_text(60)
    chat.reload()
    again = chat.wait_for_text(len(shown) + 40)
    assert letters(again).startswith(letters(shown))
    expect(chat.replies.last).to_have_attribute("data-status", "streaming")
    whole = chat.stop()
    assert letters(whole).startswith(letters(shown))
    assert chat.reload().wait_for_end() == whole


def test_close_the_tab_and_come_back(chat: ChatPage, new_tab: NewTab) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "300")
    chat.send("to be read later")
    conversation = chat.conversation_id
    shown = chat.wait_for_text(20)
    chat.page.close()

    later = new_tab(conversation)
    whole = later.wait_for_end()
    assert letters(whole).startswith(letters(shown))
    expect(later.replies.last.locator(".dm-stats")).to_have_text(re.compile(r"^300 tokens "))


@pytest.mark.full
def test_two_browsers_stream_together(new_browser: NewBrowser, server: Server) -> None:
    chats = [ChatPage(new_browser(server).new_page(), server.url).open() for _ in range(2)]
    for chat in chats:
        chat.send("both at once")
    lengths = [len(chat.wait_for_text(10)) for chat in chats]
    for _ in range(2):  # each grows while the other one does
        lengths = [len(chat.wait_for_text(length + 10)) for chat, length in zip(chats, lengths, strict=True)]
    for chat in chats:
        expect(chat.replies.last).to_have_attribute("data-status", "streaming")
        chat.stop()


@pytest.mark.full
def test_eight_tabs_while_one_streams(context: BrowserContext, new_tab: NewTab) -> None:
    streaming = new_tab()
    streaming.send("the long one of eight tabs")
    streaming.wait_for_text(20)
    # A browser opens six connections to a host: tabs that held one each would leave none for the eighth.
    others = [new_tab() for _ in range(6)]
    watcher = new_tab(streaming.conversation_id)
    for number, tab in enumerate(others):
        expect(tab.row("the long one of eight tabs").first).to_be_visible()
        tab.send(f"from tab {number}")
        tab.wait_for_text(5)
        if number < len(others) - 1:
            tab.stop()
    ahead, behind = letters(watcher.wait_for_text(40)), letters(streaming.wait_for_text(20))
    assert ahead.startswith(behind) or behind.startswith(ahead)

    # The tab that reads for all of them closes; the others go on.
    streaming.page.close()
    for tab in (others[-1], watcher):
        tab.wait_for_text(len(tab.text()) + 20)
    for tab in (others[-1], watcher):
        if tab.stop_button.is_visible():  # on a busy machine a reply may have reached its end meanwhile
            tab.stop()


class Streams:
    """The event streams of a browser's tabs."""

    def __init__(self, context: BrowserContext) -> None:
        self.opened = 0
        self.now: list[str] = []
        context.on("request", self._begun)
        context.on("requestfinished", self._over)
        context.on("requestfailed", self._over)

    def wait_for(self, count: int, page: Page) -> None:
        patience = 200
        while len(self.now) != count and patience:
            patience -= 1
            page.wait_for_timeout(100)
        assert len(self.now) == count

    def _begun(self, request: Request) -> None:
        if "/api/events" in request.url:
            self.opened += 1
            self.now.append(request.url)

    def _over(self, request: Request) -> None:
        if request.url in self.now:
            self.now.remove(request.url)


def be_patient(context: BrowserContext) -> None:
    """A machine that is busy enough is silent for longer than a page waits before it asks anew."""

    def patient(route: Route) -> None:
        response = route.fetch()
        script = response.text()
        assert "SILENT_MS = 3000" in script
        route.fulfill(response=response, body=script.replace("SILENT_MS = 3000", "SILENT_MS = 300_000"))

    context.route(f"**/{PAGE_SCRIPT}", patient)


@pytest.mark.full
def test_one_event_stream_serves_all_tabs(new_browser: NewBrowser, server: Server) -> None:
    context = new_browser(server)
    be_patient(context)
    streams = Streams(context)
    tabs = [ChatPage(context.new_page(), server.url).open() for _ in range(3)]
    tabs[0].page.wait_for_timeout(300)
    assert streams.opened == 0, "no stream before anything is written"
    for tab in tabs:
        tab.send("one stream for us all")
    for tab in tabs:
        tab.wait_for_text(len(tab.text()) + 30)
    # For a moment there are two where the reader asks for another tab's reply too.
    streams.wait_for(1, tabs[0].page)
    for tab in tabs:
        tab.stop()

    # It stays open for a while, and the next replies come in it.
    opened = streams.opened
    for number, tab in enumerate(tabs):
        tab.send(f"the next of tab {number}")
    texts = [letters(tab.wait_for_text(30)) for tab in tabs]
    wholes = [tab.stop() for tab in tabs]
    assert streams.opened == opened
    for whole, text in zip(wholes, texts, strict=True):
        assert letters(whole).startswith(text)

    # The tab that reads goes away, and what the others know of its stream is of no use.
    tabs[0].page.close()
    tabs[1].send("and one more")
    tabs[1].wait_for_text(30)
    tabs[1].stop()
    for tab, whole in zip(tabs[1:], wholes[1:], strict=True):
        tab.reload()
        kept = tab.replies.nth(1).locator(".dm-text")
        expect(kept).to_have_text(whole, use_inner_text=True)  # nothing was lost, or told twice


def test_a_message_in_one_tab_shows_in_the_other(new_tab: NewTab) -> None:
    first = new_tab()
    first.send("seen in both tabs")
    first.wait_for_text(5)
    second = new_tab(first.conversation_id)
    second.stop_button.click()
    assert first.wait_for_end() == second.wait_for_end()
    second.send("and this one too")
    expect(first.users.last).to_have_text("and this one too")
    first.wait_for_text(10)
    first.stop_button.click()
    assert first.wait_for_end() == second.wait_for_end()


def _wait_for_checkpoint(server: Server, characters: int) -> None:
    """Until a reply is in the database as far as that. It is written there on a clock."""
    deadline = time.monotonic() + 60
    saved = 0
    while saved < characters:
        assert time.monotonic() < deadline, f"{saved} characters were saved"
        time.sleep(0.1)
        with closing(sqlite3.connect(server.data_dir / "deskmate.db", timeout=10)) as database:
            (saved,) = database.execute("SELECT max(length(content)) FROM message WHERE role = 'assistant'").fetchone()


@pytest.mark.full
def test_server_killed_and_started_again_under_an_open_tab(new_browser: NewBrowser, own_server: Server) -> None:
    chat = ChatPage(new_browser(own_server).new_page(), own_server.url).open()
    chat.send("before the crash")
    chat.wait_for_text(60)
    _wait_for_checkpoint(own_server, 40)
    own_server.kill()
    expect(chat.page.locator(".dm-status")).to_contain_text("not reachable")

    chat.box.fill("written while it was down")
    own_server.start()
    expect(chat.replies.last).to_have_attribute("data-status", "interrupted")
    expect(chat.replies.last).to_contain_text("Interrupted")
    expect(chat.box).to_have_value("written while it was down")
    fresh = ChatPage(chat.page.context.new_page(), own_server.url).open(chat.conversation_id)
    kept = fresh.text()  # what the server has; the open tab had more, and gives it up
    assert len(kept) > 10
    fresh.page.close()
    expect(chat.replies.last.locator(".dm-text")).to_have_text(kept, use_inner_text=True)
    chat.replies.last.get_by_role("button", name="Continue").click()  # what is being written stays
    expect(chat.replies.last).to_have_attribute("data-status", "streaming")
    assert letters(chat.wait_for_text(len(kept) + 20)).startswith(letters(kept))
    assert letters(chat.stop()).startswith(letters(kept))
    expect(chat.box).to_have_value("written while it was down")
    chat.box.press("Enter")
    expect(chat.users.last).to_have_text("written while it was down")
    chat.wait_for_text(10)
    chat.stop()


def test_lost_connection_is_said_and_made_good(chat: ChatPage) -> None:
    chat.page.route("**/api/events*", lambda route: route.abort())
    chat.send("over a bad line")
    expect(chat.replies.last).to_contain_text("The connection was lost.")
    expect(chat.page.locator(".dm-status")).to_contain_text("not reachable")
    chat.page.unroute("**/api/events*")
    chat.wait_for_text(40)
    expect(chat.replies.last).not_to_contain_text("The connection was lost.")
    expect(chat.page.locator(".dm-status")).to_contain_text("replying")
    chat.stop_button.click()
    assert chat.wait_for_end() == chat.reload().wait_for_end()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("delete Navigator.prototype.locks", id="locks"),
        pytest.param("delete window.BroadcastChannel", id="channel", marks=pytest.mark.full),
    ],
)
def test_browser_without_shared_streams(new_browser: NewBrowser, server: Server, script: str) -> None:
    context = new_browser(server)
    context.add_init_script(script)
    chats = [ChatPage(context.new_page(), server.url).open() for _ in range(2)]
    for chat in chats:
        chat.send("each for itself")
    for chat in chats:
        chat.wait_for_text(30)
        chat.stop()
