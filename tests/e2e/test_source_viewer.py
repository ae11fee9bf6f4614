"""The viewer of a document of 400 pages: it opens at the cited passage, and more of the text comes by scrolling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from testing.scripted_server import words
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.server import Server
from tests.e2e.test_cases_inbox import check_accessible
from tests.e2e.test_knowledge_desk import make_people
from tests.e2e.test_slow_answers import Held, until
from tests.e2e.test_sources import add_document
from tests.e2e.test_users import SECRET
from tests.e2e.test_widths import MISFITS

pytestmark = pytest.mark.full

PAGES = 400
MIDDLE = "The heliotrope gasket 👩‍🔧 is tightened to 7 Nm, e\u0301t voilà\u0300."
END = "The quetzal valve 🫖🫖 opens at 3 bar: n\u0303o, not before."
LAST_WORDS = "These are the last words of the manual."
TEXTS = "**/api/kb/documents/*/text?*"


def _manual() -> str:
    """Markdown of 400 pages with characters of two code units, joined emoji and combining marks on each."""
    filler = "Clean the boiler 🧽 with care; the cafe\u0301 next door 👩‍👩‍👧 has a spare one. "
    pages = []
    for number in range(PAGES):
        told = MIDDLE if number == PAGES // 2 else END if number == PAGES - 8 else f"Step {number} has nothing special."
        lines = [f"Page {number}, line {line}. {filler * 4}" for line in range(9)]
        lines.insert(5, told)
        pages.append("\n\n".join([f"## Page {number}", *lines]))
    return "\n\n".join(["# Manual of the great boiler", *pages, LAST_WORDS])


@dataclass
class Library:
    """A chat whose two replies cite the manual, in the middle and near the end."""

    server: Server
    conversation_id: str
    text: str  #: of the document, as it is stored


@pytest.fixture(scope="module")
def library(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    elsewhere = Elsewhere()
    try:
        with front_server(elsewhere, tmp_path_factory.mktemp("library")) as server:
            context = browser.new_context()
            chat = ChatPage(context.new_page(), server.url).open()
            document = add_document(chat.page, server.url, _manual())
            ask(chat, elsewhere, "How tight is the heliotrope gasket?", "When does the quetzal valve open?")
            text = chat.page.request.get(f"{server.url}/api/kb/documents/{document}/text").json()["text"]
            yield Library(server, chat.conversation_id, text)
            context.close()
    finally:
        elsewhere.close()


def ask(chat: ChatPage, elsewhere: Elsewhere, *questions: str) -> None:
    """Asks in a chat with the manual as its source. Each reply cites a passage."""
    chat.reload().open_settings()
    chat.page.get_by_role("checkbox", name="Knowledge").check()
    for question in questions:
        elsewhere.server.say(words("It is said ", "there [1]."), words("A title"))
        chat.ask(question)


@pytest.fixture
def chat(library: Library, new_browser: NewBrowser) -> ChatPage:
    page = new_browser(library.server).new_page()
    return ChatPage(page, library.server.url).open(library.conversation_id)


def source(chat: ChatPage, reply: int) -> Locator:
    return chat.replies.nth(reply).get_by_role("button", name="Source 1")


def area(page: Page) -> Locator:
    return page.get_by_role("region", name="Text of the document")


def shown(page: Page) -> tuple[str, str, str]:
    """The text before, in and after the mark."""
    parts = area(page).evaluate(
        """(area) => {
          const nodes = [...area.childNodes].filter((node) => node.nodeName !== "BUTTON");
          const at = nodes.findIndex((node) => node.nodeName === "MARK");
          const text = (some) => some.map((node) => node.textContent).join("");
          return [text(nodes.slice(0, at)), nodes[at].textContent, text(nodes.slice(at + 1))];
        }"""
    )
    return cast(tuple[str, str, str], tuple(parts))


def check_text(page: Page, library: Library, words: str) -> tuple[int, int]:
    """What is shown is one part of the document, and the mark is on the passage. Returns where it begins and ends."""
    before, passage, after = shown(page)
    assert words in passage
    start = library.text.index(passage) - len(before)
    end = start + len(before + passage + after)
    assert library.text[start:end] == before + passage + after
    return start, end


def scroll(page: Page, to: str) -> None:
    area(page).evaluate(f"(area) => {{ area.scrollTop = {to} }}")


@pytest.mark.parametrize(("reply", "words"), [(0, MIDDLE), (1, END)])
def test_a_citation_opens_a_long_document_at_its_passage(
    chat: ChatPage, library: Library, reply: int, words: str
) -> None:
    page = chat.page
    source(chat, reply).press("Enter")
    mark = area(page).locator("mark")
    expect(mark).to_contain_text(words)
    expect(mark).to_be_in_viewport()
    expect(area(page)).to_be_focused()  # the arrows scroll it
    start, end = check_text(page, library, words)
    assert start > 100_000
    assert end - start < 40_000, "a part of it is enough"

    for _ in range(3):
        start, _end = check_text(page, library, words)
        page.keyboard.press("Home")
        until(page, lambda start=start: check_text(page, library, words)[0] < start)  # type: ignore[misc]
    for _ in range(2):
        _start, end = check_text(page, library, words)
        page.keyboard.press("End")
        until(page, lambda end=end: check_text(page, library, words)[1] > end)  # type: ignore[misc]
    expect(mark).not_to_be_in_viewport()
    page.get_by_role("button", name="Back to the passage").press("Enter")
    expect(mark).to_be_in_viewport()
    expect(area(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(source(chat, reply)).to_be_focused()


def test_the_end_of_the_document_is_reached_by_the_button_and_by_scrolling(chat: ChatPage, library: Library) -> None:
    page = chat.page
    source(chat, 1).click()
    expect(area(page).locator("mark")).to_contain_text(END)
    later = area(page).get_by_role("button", name="Later text")
    _start, end = check_text(page, library, END)
    later.press("Enter")
    until(page, lambda: check_text(page, library, END)[1] > end)
    area(page).hover()

    def is_at_the_end() -> bool:
        page.mouse.wheel(0, 3000)
        return not later.is_visible()

    until(page, is_at_the_end)
    assert check_text(page, library, END)[1] == len(library.text)
    expect(area(page)).to_contain_text(LAST_WORDS)


def test_what_is_read_stays_in_place_while_earlier_text_arrives(chat: ChatPage, library: Library) -> None:
    page = chat.page
    source(chat, 0).click()
    mark = area(page).locator("mark")
    expect(mark).to_contain_text(MIDDLE)
    held = Held(chat, TEXTS)
    start, _ = check_text(page, library, MIDDLE)
    scroll(page, "0")
    held.wait()
    scroll(page, "700")  # the user goes on meanwhile
    place = mark.evaluate("(mark) => mark.getBoundingClientRect().top")
    held.let_go()
    until(page, lambda: check_text(page, library, MIDDLE)[0] < start)
    assert abs(mark.evaluate("(mark) => mark.getBoundingClientRect().top") - place) <= 1


def test_text_that_could_not_be_loaded_is_tried_again_with_its_button(chat: ChatPage, library: Library) -> None:
    page = chat.page
    source(chat, 0).click()
    note = page.get_by_role("dialog").get_by_role("status")
    expect(note).to_have_text("Version 1")
    start, end = check_text(page, library, MIDDLE)
    page.route(TEXTS, lambda route: route.abort())
    scroll(page, "0")
    expect(note).to_contain_text("“Earlier text” tries again.")
    scroll(page, "area.scrollHeight")
    expect(note).to_contain_text("“Later text” tries again.")
    assert check_text(page, library, MIDDLE) == (start, end)
    page.unroute(TEXTS)
    earlier = area(page).get_by_role("button", name="Earlier text")
    earlier.press("Enter")
    until(page, lambda: check_text(page, library, MIDDLE)[0] < start)
    expect(note).not_to_contain_text("“Earlier text”")
    expect(note).to_contain_text("“Later text” tries again.")  # it is still to be done
    expect(earlier).to_be_focused()
    area(page).get_by_role("button", name="Later text").press("Enter")
    expect(note).to_have_text("Version 1")


def test_the_note_is_announced_once_however_much_text_is_loaded(chat: ChatPage, library: Library) -> None:
    page = chat.page
    source(chat, 0).click()
    note = page.get_by_role("dialog").get_by_role("status")
    expect(note).to_have_text("Version 1")
    note.evaluate(
        """(note) => {
          window.said = 0;
          const observer = new MutationObserver(() => window.said++);
          observer.observe(note, {childList: true, characterData: true, subtree: true});
        }"""
    )
    for _ in range(2):
        start, _end = check_text(page, library, MIDDLE)
        scroll(page, "0")
        until(page, lambda start=start: check_text(page, library, MIDDLE)[0] < start)  # type: ignore[misc]
    assert page.evaluate("window.said") == 0


@pytest.mark.parametrize("stays", [True, False])
def test_the_focus_goes_to_the_text_with_its_last_part_unless_the_user_moved_it(chat: ChatPage, stays: bool) -> None:
    page = chat.page
    source(chat, 0).click()
    expect(area(page).locator("mark")).to_contain_text(MIDDLE)
    later = area(page).get_by_role("button", name="Later text")
    note = page.get_by_role("dialog").get_by_role("status")
    page.route(TEXTS, lambda route: route.abort())
    scroll(page, "area.scrollHeight")
    expect(note).to_contain_text("“Later text” tries again.")  # from now on only the button does
    page.unroute(TEXTS)
    held: list[Route] = []
    page.route(TEXTS, lambda route: held.append(route))
    later.press("Enter")
    until(page, lambda: len(held) > 0)
    close = page.get_by_role("button", name="Close", exact=True)
    if not stays:
        close.focus()
    answer = held[0].fetch()
    part = answer.json()
    held[0].fulfill(response=answer, json={**part, "length": part["end"]})  # as if the document ended here
    expect(later).to_be_hidden()
    expect(note).to_have_text("Version 1")
    expect(area(page) if stays else close).to_be_focused()


def test_a_viewer_reads_on_as_well(elsewhere: Elsewhere, new_browser: NewBrowser, tmp_path: Path) -> None:
    with front_server(elsewhere, tmp_path, "--accounts", "--secret-key", SECRET) as server:
        pages = make_people(server, new_browser, "agent")
        ada, page = pages["admin"], pages["agent"]
        add_document(ada, server.url, _manual())
        chat = ChatPage(page, server.url)
        ask(chat, elsewhere, "How tight is the heliotrope gasket?")
        accounts = ada.request.get(f"{server.url}/api/people").json()["people"]
        (agent,) = [account["id"] for account in accounts if account["role"] == "agent"]
        made = ada.request.patch(
            f"{server.url}/api/people/{agent}", data={"role": "viewer"}, headers={"Origin": server.url}
        )
        assert made.ok, made.text()
        chat.reload()
        expect(page.get_by_text("You have read-only access as a viewer.")).to_be_visible()
        source(chat, 0).click()
        expect(area(page).locator("mark")).to_contain_text(MIDDLE)
        before, _passage, after = (len(part) for part in shown(page))
        scroll(page, "0")
        until(page, lambda: len(shown(page)[0]) > before)
        scroll(page, "area.scrollHeight")
        until(page, lambda: len(shown(page)[2]) > after)
        expect(area(page).get_by_role("button", name="Later text")).to_be_visible()
        expect(chat.replies.first.get_by_role("button", name="Try again")).to_be_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")])
def test_the_viewer_fits_its_window(library: Library, new_browser: NewBrowser, width: int, scheme: str) -> None:
    context = new_browser(library.server, viewport={"width": width, "height": 844}, color_scheme=scheme)
    chat = ChatPage(context.new_page(), library.server.url).open(library.conversation_id)
    page = chat.page
    source(chat, 1).click()
    expect(area(page).locator("mark")).to_be_in_viewport()
    check_accessible(page)
    # The numbers of the sources in the page behind it can be hit in a wider area than is drawn.
    assert [misfit for misfit in page.evaluate(MISFITS) if "dm-cite" not in misfit] == []
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= width - box["width"]
    assert 0 <= box["y"] <= 844 - box["height"]
    for name in ("Back to the passage", "Close"):
        page.get_by_role("button", name=name).click(trial=True)
