"""Keyboard alone, screen readers, small screens, dark rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser, NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.fork_server import ROOT

pytestmark = pytest.mark.full

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"

_REPLY = """A **context window** is how much text a model reads at once, counted in *tokens*.

### When it is full

1. Shorten the message.
2. Start a new chat.

```python
print("a line of code that is long enough to scroll on a phone, and then a little longer still")
```

| Setting | Effect |
| --- | --- |
| `temperature` | Lower is more predictable |

- [ ] read [the documentation](https://example.com/)
"""

Scheme = Literal["light", "dark"]


def _violations(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    page.add_script_tag(content=AXE.read_text())
    result: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(1440, "light", marks=pytest.mark.full),
        pytest.param(1440, "dark", marks=pytest.mark.full),
        pytest.param(390, "light", marks=pytest.mark.full),
    ],
)
def test_axe_finds_nothing_serious_and_nothing_overflows(
    new_browser: NewBrowser, server: Server, scheme: Scheme, width: int
) -> None:
    conversation = seed_conversation(server.data_dir, "What is a context window?", ["What is it?", _REPLY])
    context = new_browser(server, color_scheme=scheme, viewport={"width": width, "height": 844})
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def check(view: str) -> None:
        chat.page.screenshot(path=SCREENSHOTS / f"{view}-{width}-{scheme}.png")
        assert _violations(chat.page) == [], view
        assert chat.page.evaluate("document.documentElement.scrollWidth") <= width, view
        box = chat.box.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 844, f"the box to write in lies below the {view} page"

    chat = ChatPage(context.new_page(), server.url).open()
    check("welcome")
    chat.open(conversation)
    check("chat")
    chat.open_settings()
    check("settings")
    if width == 390:
        chat.page.get_by_role("button", name="Close settings").click()
        chat.page.locator(".dm-toggle-conversations").click()
        expect(chat.titles.first).to_be_visible()
        check("conversations")


def test_with_the_keyboard_alone(chat: ChatPage) -> None:
    page = chat.page
    expect(chat.box).to_be_focused()
    page.keyboard.type("typed without a mouse")
    page.keyboard.press("Enter")
    expect(chat.users).to_have_text(["typed without a mouse"])
    chat.wait_for_text(10)
    page.keyboard.press("Escape")
    chat.wait_for_end()
    expect(chat.box).to_be_focused()

    def tab_to(name: str) -> None:
        passed = []
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
            )
            if focused and focused.startswith(name):
                return
            passed.append(focused)
        raise AssertionError(f"Tab never reached {name!r}, but {passed}")

    expect(chat.row("typed without a mouse").first).to_be_visible()
    tab_to("typed without a mouse")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    tab_to("Actions for typed without a mouse")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")  # from Pin to Rename
    page.keyboard.press("Enter")
    page.keyboard.type("renamed by keys")
    page.keyboard.press("Enter")
    expect(page.locator(".dm-title")).to_have_text("renamed by keys")

    tab_to("Settings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Settings", exact=True)).to_be_visible()
    tab_to("Close settings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Settings", exact=True)).to_be_hidden()
    assert page.evaluate("document.activeElement.classList.contains('dm-toggle-settings')")

    expect(chat.row("renamed by keys").first).to_be_visible()
    tab_to("Actions for renamed by keys")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Actions for renamed by keys"
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowUp")  # from Pin, round to Delete
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(chat.row("renamed by keys")).to_have_count(0)


def test_focus_is_visible_wherever_it_goes(server: Server, new_tab: NewTab) -> None:
    chat = new_tab(seed_conversation(server.data_dir, "focus", ["q", _REPLY]))
    chat.open_settings()
    unseen: set[str] = set()
    for _ in range(45):
        chat.page.keyboard.press("Tab")
        problem = chat.page.evaluate(
            """() => {
              const element = document.activeElement;
              if (element === document.body) return "";
              const box = element.getBoundingClientRect();
              if (box.width === 0 || box.height === 0 || getComputedStyle(element).visibility === "hidden")
                return "invisible: " + element.outerHTML.slice(0, 150);
              let ring = element;
              for (let up = 0; up < 6 && ring; up++, ring = ring.parentElement) {
                const style = getComputedStyle(ring);
                if (style.outlineStyle !== "none" && style.outlineWidth !== "0px") return "";
                if (ring.matches(":focus-within") && style.boxShadow !== "none") return "";
              }
              return "no ring: " + element.outerHTML.slice(0, 150);
            }"""
        )
        if problem:
            unseen.add(problem)
    assert not unseen, "\n".join(sorted(unseen))


def test_a_reply_is_announced_once_it_is_whole(chat: ChatPage) -> None:
    chat.page.evaluate(
        """() => {
          window.announced = [];
          new MutationObserver(() => window.announced.push(document.getElementById("dm-announcer").textContent))
            .observe(document.getElementById("dm-announcer"), {childList: true, characterData: true, subtree: true});
        }"""
    )
    chat.open_settings()
    chat.set_number("Maximum length", "30")
    chat.ask("announce this")
    chat.page.wait_for_function("window.announced.some((text) => text.startsWith('Reply: '))")
    announced = chat.page.evaluate("window.announced")
    assert announced[0] == "Message sent."
    assert len([text for text in announced if text.startswith("Reply: ")]) == 1, "not for each token"
    assert len(announced) == 2


def test_no_motion_for_those_who_asked_for_none(new_browser: NewBrowser, server: Server) -> None:
    context = new_browser(server, reduced_motion="reduce")
    chat = ChatPage(context.new_page(), server.url).open()
    chat.send("calmly")
    chat.wait_for_text(5)
    moving = chat.page.evaluate("document.getAnimations().filter(a => a.effect.getTiming().iterations > 1).length")
    assert moving == 0
    chat.stop()


@pytest.mark.parametrize(("width", "is_mobile"), [(390, True), (390, False), (320, True)])
def test_on_a_phone_the_actions_of_a_reply_stand_in_one_line(
    new_browser: NewBrowser, server: Server, width: int, is_mobile: bool
) -> None:
    conversation = seed_conversation(server.data_dir, "a phone", ["q", _REPLY])
    viewport = {"width": width, "height": 844}
    context = new_browser(server, viewport=viewport, is_mobile=is_mobile, has_touch=is_mobile)
    chat = ChatPage(context.new_page(), server.url).open(conversation)
    page, reply = chat.page, chat.replies.last
    reply.hover()
    reply.get_by_role("button", name="Bad reply").click()
    reply.get_by_role("button", name="Missed the question").click()
    reply.get_by_role("button", name="Close").click()
    expect(reply.get_by_role("button", name="Missed the question")).to_be_visible()
    reply.locator(".dm-resume").evaluate("(button) => { button.hidden = false }")  # as if it had been stopped
    boxes = reply.locator(".dm-foot .dm-action:visible:not(.dm-why)").evaluate_all(
        "(buttons) => buttons.map((button) => button.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 7  # go on, copy and its formats, the thumbs, another try, more
    middles = [box["y"] + box["height"] / 2 for box in boxes]
    assert max(middles) - min(middles) < 2, "they stand in more than one line"
    assert min(min(box["width"], box["height"]) for box in boxes) >= 24
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    more = reply.get_by_role("button", name="More actions")
    menu = page.get_by_role("menu", name="More actions")

    def choose(name: str) -> None:
        more.press("Enter")
        expect(menu.get_by_role("menuitem").first).to_be_focused()
        menu.get_by_role("menuitem").filter(has_text=name).press("Enter")

    more.press("Enter")
    expect(menu.get_by_role("menuitem")).to_have_text(["Compare", "Edit", "Lens", "Branch", "Delete"])
    expect(menu.get_by_role("menuitem", name="Delete this reply and everything after it")).to_be_visible()
    assert _violations(page) == []
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    choose("Edit")
    expect(page.get_by_label("Edited reply")).to_be_focused()
    more.press("Enter")
    expect(menu.get_by_role("menuitem")).to_have_text(["Compare", "Lens", "Branch", "Delete"])
    page.keyboard.press("Escape")
    page.get_by_label("Edited reply").press("Escape")
    expect(more).to_be_focused()
    choose("Lens")
    expect(reply.locator(".dm-lens-text")).to_be_visible()
    choose("Close lens")
    expect(reply.locator(".dm-lens-text")).to_have_count(0)
    choose("Branch")
    page.wait_for_url(lambda url: conversation not in url)
    expect(page.locator(".dm-title")).to_have_text("a phone (branch)")


def test_the_actions_of_an_earlier_reply_stay_in_view_while_their_menu_is_open(
    new_browser: NewBrowser, server: Server
) -> None:
    conversation = seed_conversation(server.data_dir, "earlier", ["q", "An earlier reply.", "q", "The last one."])
    context = new_browser(server, viewport={"width": 390, "height": 844})
    chat = ChatPage(context.new_page(), server.url).open(conversation)
    page, reply = chat.page, chat.replies.first
    again = reply.get_by_role("button", name="Try again")
    expect(again).to_have_attribute("title", "Try again: write another reply")
    reply.hover()
    reply.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem").filter(has_text="Delete").hover()
    expect(again).to_have_css("opacity", "1")
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Message").click()
    expect(again).to_have_css("opacity", "0")


def test_there_is_no_menu_of_actions_where_none_can_be_chosen(new_browser: NewBrowser, server: Server) -> None:
    conversation = seed_conversation(server.data_dir, "no action", ["q", _REPLY])
    context = new_browser(server, viewport={"width": 390, "height": 844})
    reply = ChatPage(context.new_page(), server.url).open(conversation).replies.last
    more = reply.get_by_role("button", name="More actions")
    expect(more).to_be_visible()
    actions = reply.locator(".dm-other-actions > button")
    actions.evaluate_all(
        "(buttons) => buttons.forEach((button, index) => { button[['hidden', 'disabled'][index % 2]] = true })"
    )
    expect(more).to_be_hidden()
    actions.last.evaluate("(button) => { button.hidden = button.disabled = false }")
    expect(more).to_be_visible()
