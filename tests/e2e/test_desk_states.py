"""The desk in states that a busy one does not show: nothing yet, an identity at a provider, mail in trouble."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.server import Server
from tests.e2e.test_cases_inbox import Desk, check_accessible
from tests.e2e.test_for_everyone import SCREENSHOTS
from tests.e2e.test_users import SECRET, setup_link

pytestmark = pytest.mark.full

Scheme = Literal["light", "dark"]
SIZES: tuple[tuple[int, int], ...] = ((1440, 900), (390, 844))
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SUBJECT = "248289761001-of-a-provider-with-long-ids-5c6f3a2e-9d1b-4f57-8a43-0e6b1f7d2c90"
ACCOUNTS = ("--dtype", "float32", "--accounts", "--secret-key", SECRET)
PROVIDER = (
    *("--oidc-issuer", "https://login.example.com/realms/company", "--oidc-client-id", "deskmate"),
    *("--oidc-client-secret", "a secret of the provider", "--oidc-roles", "*=agent", "--oidc-name", "Company login"),
)


def opened_desk(server: Server, browser: Browser) -> Iterator[Desk]:
    """Ada is the admin, Ben an agent."""
    desk = Desk(server, browser)
    desk.add("ada", setup_link(server))
    desk.add("ben", str(desk.post("ada", "/api/people/invitations", role="agent", note=None)["link"]))
    yield desk
    for context in desk.contexts.values():
        context.close()
    assert desk.errors == []


@pytest.fixture(scope="module")
def desk(browser: Browser, endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with a sign-in provider, and a server of mail that cannot be reached."""
    mail = ("--mail-host", "127.0.0.1", "--mail-port", "9", "--mail-tls", "none", "--mail-from", "desk@shop.example")
    with Server(endless_model, tmp_path_factory.mktemp("states") / "data", *ACCOUNTS, *PROVIDER, *mail) as server:
        yield from opened_desk(server, browser)


def look(page: Page, view: str) -> None:
    """Looks at the page on a screen and on a phone, in the light and in the dark."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SCREENSHOTS / f"{view}-{width}-{scheme}.png", full_page=True)
            check_accessible(page)
    page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
    page.emulate_media(color_scheme="light")


@pytest.fixture
def new_desk(browser: Browser, endless_model: Path, tmp_path: Path) -> Iterator[Desk]:
    """A desk as it is after the first start: with an admin, and an agent who was invited."""
    with Server(endless_model, tmp_path / "data", *ACCOUNTS) as server:
        yield from opened_desk(server, browser)


def test_a_desk_of_nothing_says_what_to_do_next(new_desk: Desk) -> None:
    desk = new_desk
    page = desk.page("ada", "/desk/cases")
    expect(page.get_by_text("There is no inbox yet.")).to_be_visible()
    look(page, "cases-nothing")
    page.get_by_role("link", name="Create an inbox").click()
    expect(page.get_by_role("heading", name="There are no inboxes yet")).to_be_visible()
    expect(page.locator(".dk-inboxes > .dm-hint").first).to_contain_text("set APP_MAIL_HOST and APP_MAIL_FROM")
    look(page, "inboxes-nothing")
    page.get_by_role("link", name="Case figures").click()
    expect(page.get_by_text("There is no inbox yet, so there are no cases to count.")).to_be_visible()
    look(page, "case-figures-nothing")

    ben = desk.page("ben", "/desk/cases")
    expect(ben.get_by_text("Ask an admin to make you one.")).to_be_visible()
    expect(ben.get_by_role("link", name="Create an inbox")).to_have_count(0)

    page.locator("#dk-main").get_by_role("link", name="Inboxes").click()
    page.get_by_role("button", name="New inbox").click()
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("Shop")
    page.get_by_label("The assistant answers first").uncheck()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("There are no members yet: only admins see what comes in.")).to_be_visible()
    look(page, "inboxes-first")
    page.get_by_label("User").select_option(label="Ben")
    page.get_by_role("button", name="Add member").click()
    expect(page.get_by_role("list", name="Members")).to_contain_text("Ben")
    desk.inbox_id = str(desk.contexts["ada"].request.get(f"{desk.server.url}/api/inboxes").json()["inboxes"][0]["id"])
    page.get_by_role("link", name="Case figures").click()
    expect(page.get_by_text("Nothing happened in these days")).to_be_visible()
    look(page, "case-figures-quiet")

    page.locator("#dk-nav").get_by_role("link", name="Users").click()
    expect(page.get_by_role("button", name="Sessions of ben")).to_be_visible()
    expect(page.get_by_role("button", name="Identity of ben")).to_have_count(0)  # there is no provider

    page.goto(f"{desk.server.url}/desk/cases#unassigned")
    expect(page.get_by_text("There are no cases yet.")).to_be_visible()
    expect(page.get_by_role("link", name="Script tags and members")).to_have_attribute("href", "/desk#inboxes")
    look(page, "cases-none")
    ben.reload()
    expect(ben.get_by_text("One appears here as soon as a customer writes.")).to_be_visible()
    desk.visitor("Mia", "Where is my parcel?")
    expect(page.get_by_role("list", name="List of cases")).to_contain_text("Where is my parcel?", timeout=TIMEOUT_MS)
    expect(page.get_by_text("There are no cases yet.")).to_have_count(0)
    expect(ben.get_by_text("You have no open case. Take one from Unassigned.")).to_be_visible()


def test_an_admin_links_and_unlinks_an_identity_at_the_provider(desk: Desk) -> None:
    page = desk.page("ada", "/desk#people")
    opener = page.get_by_role("button", name="Identity of ben at Company login")
    opener.click()
    panel = page.get_by_role("region", name="ben at Company login")
    expect(panel).to_contain_text("ben can’t sign in with Company login yet.")
    expect(panel.get_by_label("Id at Company login")).to_be_focused()
    expect(panel).to_be_in_viewport()
    look(page, "identity-none")
    panel.get_by_label("Id at Company login").fill("   ")
    panel.get_by_role("button", name="Link Company login").click()
    panel.get_by_label("Id at Company login").fill(SUBJECT)
    page.keyboard.press("Enter")
    expect(panel).to_contain_text(f"The id there is {SUBJECT}.")
    expect(panel).to_be_focused()  # not its button: another Enter would unlink it
    look(page, "identity-linked")

    # Another account can't have it: what was typed stays, and the page says why.
    page.get_by_role("button", name="Identity of ada at Company login").click()
    hers = page.get_by_role("region", name="ada at Company login")
    hers.get_by_label("Id at Company login").fill(SUBJECT)
    hers.get_by_role("button", name="Link Company login").click()
    expect(hers.get_by_role("alert")).to_be_in_viewport()
    expect(hers.get_by_label("Id at Company login")).to_have_value(SUBJECT)
    expect(hers.get_by_role("button", name="Link Company login")).to_be_enabled()
    look(page, "identity-refused")

    opener.click()
    panel.get_by_role("button", name="Unlink Company login").click()
    expect(panel.get_by_label("Id at Company login")).to_be_focused()


def test_the_line_about_mails_says_whether_they_are_sent_and_what_is_wrong(desk: Desk) -> None:
    page = desk.page("ada", "/desk#inboxes")
    line = page.locator(".dk-inboxes > .dm-hint").first
    expect(line).to_contain_text("don’t read a reply within 10 minutes get it by e-mail from desk@shop.example.")
    expect(line).to_contain_text("None was sent yet.")
    look(page, "mail-on")

    desk.inbox_id = str(desk.post("ada", "/api/inboxes", name="Website", bot=False)["id"])
    case_id = desk.visitor("Tom", "Where is my refund?")
    desk.post("ada", f"/api/cases/{case_id}/messages", text="It is on its way.")
    with sqlite3.connect(desk.server.data_dir / "deskmate.db", timeout=10) as database:  # the ten minutes pass
        database.execute("UPDATE reply_mail SET next_attempt_at = created_at")

    def has_trouble() -> bool:
        return desk.contexts["ada"].request.get(f"{desk.server.url}/api/desk/mail").json()["error"] is not None

    while not has_trouble():
        page.wait_for_timeout(200)
    page.reload()
    line = page.locator(".dk-inboxes > .dm-alert")
    expect(line).to_contain_text("1 reply may still be sent.")
    expect(line).to_contain_text("127.0.0.1:9 has trouble: The server of mail cannot be reached: Connection refused.")
    look(page, "mail-trouble")
