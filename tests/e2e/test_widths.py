"""Every page fits phones, tablets and desktops: nothing is wider than its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

pytestmark = pytest.mark.full

WIDTHS = (320, 390, 720, 1440)
SECTIONS = ("Usage", "Review", "Prompts", "Canned replies", "Users", "Audit")
_LONG = "a" * 200
_TEXTS = [
    f"https://example.com/{_LONG}",
    f"`{_LONG}`\n\n```\n{_LONG}\n```\n\n| {'| '.join(['wide column'] * 12)} |\n|{'---|' * 12}\n| {_LONG} |\n\n{_LONG}",
]

#: What sticks out of the window, what is wider than the element around it, and boxes whose padding adds to their width.
#: Areas that scroll may hold wide things, and what ends in an ellipsis is cut off on purpose.
_MISFITS = """() => {
  const found = [];
  const name = (element) => element.outerHTML.slice(0, 120);
  const scrolls = (element) => element && (/auto|scroll/.test(getComputedStyle(element).overflowX)
    ? element : scrolls(element.parentElement));
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (!element.checkVisibility({ visibilityProperty: true }) || box.width <= 1 || box.height <= 1) continue;
    if (element.closest("svg") || element.closest(".dm-skip, .u-wrap")) continue;
    const place = scrolls(element.parentElement) ? null : innerWidth;
    if (place && (box.right > place + 1 || box.left < -1)) found.push(`outside the window: ${name(element)}`);
    if (style.display !== "inline" && !/auto|scroll/.test(style.overflowX) && style.textOverflow !== "ellipsis"
      && !element.matches("input") && element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1)
      found.push(`${element.scrollWidth} in ${element.clientWidth} px: ${name(element)}`);
    if (style.boxSizing !== "border-box" && parseFloat(style.paddingLeft) + parseFloat(style.borderLeftWidth) > 0
      && !["inline", "table-cell"].includes(style.display)) found.push(`content-box: ${name(element)}`);
  }
  return found;
}"""


def test_nothing_is_wider_than_its_place(new_browser: NewBrowser, server: Server) -> None:
    conversation = seed_conversation(server.data_dir, f"widths {_LONG}", _TEXTS)
    page = new_browser(server).new_page()
    chat = ChatPage(page, server.url)

    def static_page(path: str) -> Callable[[], None]:
        def open_page() -> None:
            page.goto(f"{server.url}{path}")
            page.locator("main:not([aria-busy])").wait_for()
            page.evaluate("for (const element of document.querySelectorAll('main [hidden]')) element.hidden = false")

        return open_page

    def settings() -> None:
        chat.open(None)
        chat.open_settings()
        page.locator(".dm-advanced-toggle").click()

    def conversations() -> None:
        chat.open(conversation)
        toggle = page.locator(".dm-toggle-conversations")
        if toggle.get_attribute("aria-expanded") == "false":
            toggle.click()
        expect(chat.row("widths").first).to_be_visible()

    def long_model_name() -> None:
        chat.open(conversation)
        page.evaluate(
            "name => window.deskmate.readiness.header.showStatus(`${name} · not reachable`, 'not reachable')", _LONG
        )
        state = page.locator(".dm-status").get_by_text("not reachable")
        assert state.evaluate("(element) => element.scrollWidth <= element.clientWidth"), "the state is cut"

    def section(name: str) -> Callable[[], None]:
        def open_section() -> None:
            page.goto(f"{server.url}/desk")
            page.get_by_role("link", name=name, exact=True).click()
            page.locator(".dk-section[data-ready]:not([aria-busy])").wait_for()

        return open_section

    views: dict[str, Callable[[], object]] = {
        "welcome": chat.open,
        "chat": lambda: chat.open(conversation),
        "conversations": conversations,
        "settings": settings,
        "long model name": long_model_name,
        **{f"desk: {name}": section(name) for name in SECTIONS},
        **{path: static_page(path) for path in ("/sign-in", "/setup", "/account")},
    }
    misfits = [
        f"{view} at {width} px: {misfit}"
        for width in WIDTHS
        for view, open_view in views.items()
        for misfit in _misfits(page, width, open_view)
    ]
    assert not misfits, "\n".join(misfits)


def _misfits(page: Page, width: int, open_view: Callable[[], object]) -> list[str]:
    page.set_viewport_size({"width": width, "height": 844})
    open_view()
    return list(page.evaluate(_MISFITS))


def test_in_a_low_window_the_welcome_begins_at_its_heading_and_the_list_has_room(
    new_browser: NewBrowser, guide_server: Server
) -> None:
    page = new_browser(guide_server, viewport={"width": 720, "height": 450}).new_page()  # 1440 at 200 %
    ChatPage(page, guide_server.url).open()
    heading = page.locator(".dm-welcome-heading").bounding_box()
    header = page.locator(".dm-header").bounding_box()
    assert heading is not None
    assert header is not None
    assert heading["y"] >= header["y"] + header["height"]
    page.locator(".dm-toggle-conversations").click()
    frame = page.locator(".dm-list-frame").bounding_box()
    assert frame is not None
    assert frame["height"] >= 150
