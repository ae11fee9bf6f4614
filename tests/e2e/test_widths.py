"""Every page fits phones, tablets and desktops: nothing is wider than its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server
from tests.e2e.test_cases_inbox import Desk, check_accessible
from tests.e2e.test_desk_states import ACCOUNTS, PROVIDER, opened_desk

pytestmark = pytest.mark.full

WIDTHS = (320, 390, 720, 1440)
#: A screen of 1440 x 900 px at 200 %, in CSS pixels.
ZOOMED = {"width": 720, "height": 450}
SECTIONS = ("Usage", "Review", "Prompts", "Canned replies", "Users", "Audit")
_LONG = "a" * 200
_TEXTS = [
    f"https://example.com/{_LONG}",
    f"`{_LONG}`\n\n```\n{_LONG}\n```\n\n| {'| '.join(['wide column'] * 12)} |\n|{'---|' * 12}\n| {_LONG} |\n\n{_LONG}",
]

#: What sticks out of the window, what is wider than the element around it, and boxes whose padding adds to their width.
#: Areas that scroll may hold wide things, and what ends in an ellipsis is cut off on purpose.
MISFITS = """() => {
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
    return list(page.evaluate(MISFITS))


def test_in_a_low_window_the_welcome_begins_at_its_heading_and_the_list_has_room(
    new_browser: NewBrowser, guide_server: Server
) -> None:
    page = new_browser(guide_server, viewport=ZOOMED).new_page()
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


#: Areas that scroll sideways. Figures may, which have many columns, and the tabs of the desk on a phone.
_SCROLLS_SIDEWAYS = """() => [...document.body.querySelectorAll("*")]
  .filter((element) => !element.matches(".dk-figures, input")
    && (innerWidth >= 640 || element.id !== "dk-nav")
    && /auto|scroll/.test(getComputedStyle(element).overflowX)
    && element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1)
  .map((element) => `${element.scrollWidth} in ${element.clientWidth} px: ${element.outerHTML.slice(0, 120)}`)"""

LONG_NAME = "maximiliane.von-und-zu-hohenstein@company.example"


@pytest.fixture(scope="module")
def busy_desk(browser: Browser, endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with something in every section. Ada is its admin."""
    data_dir = tmp_path_factory.mktemp("busy") / "data"
    with Server(endless_model, data_dir, *ACCOUNTS, *PROVIDER, "--backup-at", "02:30") as server:
        for desk in opened_desk(server, browser):
            desk.add(LONG_NAME, _invite(desk))
            _invite(desk, note="For Kim, who starts in the returns team on Monday")
            desk.inbox_id = str(desk.post("ada", "/api/inboxes", name="Customers of the northern countries")["id"])
            desk.visitor("Mia", "Where is my parcel?")
            address = f"http://127.0.0.1:9/{_LONG}"
            created = desk.post("ada", "/api/webhooks", name=f"CRM {_LONG[:60]}", url=address, events=[])["webhook"]
            assert isinstance(created, dict)
            desk.post("ada", f"/api/webhooks/{created['id']}/test")
            added = desk.contexts["ada"].request.post(
                f"{server.url}/api/kb/documents",
                multipart={"file": {"name": f"{_LONG[:90]}.md", "mimeType": "text/markdown", "buffer": b"Red lamp."}},
                headers={"Origin": server.url},
            )
            assert added.ok, added.text()
            yield desk


def _invite(desk: Desk, note: str | None = None) -> str:
    return str(desk.post("ada", "/api/people/invitations", role="agent", note=note)["link"])


@pytest.mark.parametrize(
    ("viewport", "scale"),
    [
        ({"width": 320, "height": 640}, 2),
        ({"width": 390, "height": 844}, 2),
        (ZOOMED, 2),
        ({"width": 1440, "height": 900}, 1),
    ],
)
def test_a_busy_desk_fits_and_only_figures_scroll_sideways(
    busy_desk: Desk, new_browser: NewBrowser, viewport: dict[str, int], scale: int
) -> None:
    url = busy_desk.server.url
    signed_in = busy_desk.contexts["ada"].storage_state()
    options = {"viewport": viewport, "device_scale_factor": scale}
    page = new_browser(busy_desk.server, storage_state=signed_in, **options).new_page()
    wrong: list[str] = []

    def look(view: str) -> None:
        wrong.extend(f"{view}: {misfit}" for misfit in page.evaluate(MISFITS))
        wrong.extend(f"{view} scrolls: {area}" for area in page.evaluate(_SCROLLS_SIDEWAYS))

    page.goto(f"{url}/desk")
    page.locator("#dk-nav a").first.wait_for()
    sections = page.locator("#dk-nav a").all_text_contents()
    assert set(SECTIONS) < set(sections)
    for section in sections:
        page.get_by_role("navigation").get_by_role("link", name=section, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=section)).to_be_visible()
        page.locator(".dk-section[data-ready]:not([aria-busy])").wait_for()
        look(section)
    page.goto(f"{url}/desk#people")
    page.get_by_role("button", name=f"Identity of {LONG_NAME}").click()
    expect(page.locator(".dk-identity")).to_be_visible()
    look("identity")
    page.goto(f"{url}/account")
    page.locator("main:not([aria-busy])").wait_for()
    page.get_by_label("Key name").fill(_LONG[:90])
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_text("Copy this key now.")).to_be_visible()
    look("account")
    stranger = new_browser(busy_desk.server, **options).new_page()
    for path in ("/sign-in", _invite(busy_desk).removeprefix(url)):
        stranger.goto(f"{url}{path}")
        stranger.locator("main:not([aria-busy])").wait_for()
        wrong.extend(f"{path}: {misfit}" for misfit in stranger.evaluate(MISFITS))
    assert not wrong, "\n".join(wrong)


TABLES = {
    "knowledge": ("Documents", ["Document", "State", "Passages", "Size", "Changed", "Actions"]),
    "people": ("Accounts", ["Name", "Role", "Last seen", "Actions"]),
    "audit": ("Audit entries", ["Time", "User", "Action", "Target", "Details"]),
}


@pytest.mark.parametrize("section", TABLES)
def test_a_table_whose_cells_stand_below_each_other_is_still_a_table(
    busy_desk: Desk, new_browser: NewBrowser, section: str
) -> None:
    signed_in = busy_desk.contexts["ada"].storage_state()
    viewport = {"width": 390, "height": 844}
    page = new_browser(busy_desk.server, storage_state=signed_in, viewport=viewport).new_page()
    page.goto(f"{busy_desk.server.url}/desk#{section}")
    page.locator(".dk-section[data-ready]:not([aria-busy])").wait_for()
    name, columns = TABLES[section]
    area = page.get_by_role("region", name=name, exact=True)
    expect(area.get_by_role("columnheader")).to_have_text(columns)
    row = area.locator("tbody [role=row]").first  # the roles are in the page: what is laid out as blocks loses its own
    expect(row.locator("[role=cell], [role=rowheader]")).to_have_count(len(columns))
    tops = row.locator("[role]:not(:empty)").evaluate_all(
        "(cells) => cells.map((cell) => cell.getBoundingClientRect().top)"
    )
    assert tops == sorted(set(tops)), "each stands below the one before"
    named = row.locator("[data-column]")
    assert named.evaluate_all("(cells) => cells.map((cell) => cell.dataset.column)") == [
        column for column in columns if column not in ("Document", "Name", "Actions")
    ]
    check_accessible(page)
