"""A desk with accounts, in browsers: from the link that the server prints to two people who each see their own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Response, Route, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

pytestmark = pytest.mark.full

SECRET = "x7Kq2mVbT9rLw4ZpYs8NdGhJ3fCeA6uQ1oRi5"
PASSWORD = "four words make one"
#: Just when the page goes away because the person has signed out, it hears that the list is refused.
ASK_ONCE_SIGNED_OUT = """async () => {
  const { fetch } = window;
  window.fetch = async (path, options) => {
    const response = await fetch(path, options);
    if (path !== "/api/account/sign-out") return response;
    const refusal = await fetch("/api/conversations");
    const said = await refusal.text();
    window.fetch = async () => new Response(said, refusal);
    setTimeout(() => document.dispatchEvent(new Event("visibilitychange")), 0); // the page looks for news
    return response;
  };
}"""


@pytest.fixture
def people_server(endless_model: Path, tmp_path: Path) -> Iterator[Server]:
    options = ("--dtype", "float32", "--accounts", "--secret-key", SECRET)
    with Server(endless_model, tmp_path / "data", *options) as server:
        yield server


def setup_link(server: Server) -> str:
    """As it stands in the log, which the terminal shows a person."""
    deadline = time.monotonic() + 20
    while not (found := re.search(r"http://\S+/setup#\S+", server.log_tail())):
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.1)
    return found.group()


def fill_account(page: Page, name: str, shown: str) -> None:
    page.get_by_label("Username").fill(name)
    page.get_by_label("Display name (optional)").fill(shown)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Confirm password").fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()


def at_the_chat(context: BrowserContext, server: Server, page: Page) -> ChatPage:
    page.wait_for_url(f"{server.url}/")
    expect(page.locator("html.dm-ready")).to_be_attached()
    return ChatPage(page, server.url)


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".dm-messages").get_by_text(text, exact=True)).to_be_visible()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    stop.press("Enter")  # a click so soon would be the second of a double click on Send
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator(".dm-list").get_by_text(text)).to_be_visible()


def test_from_the_printed_link_to_two_people_who_see_their_own(people_server: Server, new_browser: NewBrowser) -> None:
    hers, his = new_browser(people_server), new_browser(people_server)
    ada, ben = hers.new_page(), his.new_page()

    # Nobody is let in yet, and told where to go.
    ben.goto(f"{people_server.url}/?c=somewhere")
    expect(ben.get_by_role("heading", name="Sign in")).to_be_visible()
    ben.get_by_label("Username or email address").fill("ben")
    ben.get_by_label("Password").fill("not a password yet")
    ben.get_by_role("button", name="Sign in").click()
    expect(ben.get_by_role("alert")).to_have_text("Incorrect username or password.")

    ada.goto(setup_link(people_server))
    expect(ada.get_by_role("heading", name="Create the first admin")).to_be_visible()
    fill_account(ada, "ada", "<b>Ada</b>")
    at_the_chat(hers, people_server, ada)
    ask(ada, "what Ada asked")

    # She invites him, from the page for those who run the desk.
    ada.get_by_role("button", name="Signed in as <b>Ada</b> (admin)").click()
    ada.get_by_role("menuitem", name="Desk").click()
    ada.get_by_role("link", name="Users").click()
    expect(ada.get_by_role("row", name="ada")).to_contain_text("<b>Ada</b>")
    ada.get_by_label("Note (who it's for)").fill("Ben")
    ada.get_by_role("button", name="Invite").click()
    link = ada.get_by_label("The link")
    expect(link).to_have_value(re.compile(r"/invitation/\S{40,}"))

    ben.goto(link.input_value())
    expect(ben.get_by_role("heading", name="Create your account")).to_be_visible()
    fill_account(ben, "ben@example.com", "Ben")
    at_the_chat(his, people_server, ben)
    expect(ben.locator(".dm-list-note")).to_have_text("No conversations yet.")
    ask(ben, "what Ben asked")

    # He leaves, while his page asks for more, and comes back by signing in; each sees their own.
    ben.evaluate(ASK_ONCE_SIGNED_OUT)
    ben.get_by_role("button", name="Signed in as Ben (agent)").click()
    ben.get_by_role("menuitem", name="Sign out").click()
    expect(ben.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(ben).to_have_url(f"{people_server.url}/sign-in")
    ben.get_by_label("Username or email address").fill("Ben@Example.com")
    ben.get_by_label("Password").fill(PASSWORD)
    ben.get_by_role("button", name="Sign in").click()
    at_the_chat(his, people_server, ben)
    expect(ben.locator(".dm-list").get_by_text("what Ben asked")).to_be_visible()
    expect(ben.locator(".dm-list").get_by_text("what Ada asked")).to_have_count(0)
    ada.goto(people_server.url)
    expect(ada.locator(".dm-list").get_by_text("what Ada asked")).to_be_visible()
    expect(ada.locator(".dm-list").get_by_text("what Ben asked")).to_have_count(0)

    # As a viewer he reads; disabled, he is shown the door, and what he was writing is not lost to him.
    ada.goto(f"{people_server.url}/desk#people")
    role = ada.get_by_label("Role of ben@example.com")
    expect(role).to_have_value("agent")
    looks: list[Route] = []
    ada.route("**/api/people", lambda route: looks.append(route), times=1)  # how it is then, she is told last
    with ada.expect_request("**/api/people"):
        role.select_option("viewer")
    expect(ada.locator("#dm-announcer")).to_have_text("ben@example.com is Viewer now.")
    ben.reload()
    expect(ben.locator("html.dm-ready")).to_be_attached()
    expect(ben.locator(".dm-list").get_by_text("what Ben asked")).to_be_visible()
    expect(ben.get_by_text("You have read-only access as a viewer.")).to_be_visible()
    expect(ben.get_by_role("textbox", name="Message")).to_be_hidden()
    ben.get_by_role("button", name="Signed in as Ben (viewer)").click()
    ben.get_by_role("menuitem", name="Account").click()
    save = ben.get_by_role("button", name="Save")  # it is there once the page has all it asks for by itself
    expect(save).to_be_visible()
    before = ada.request.get(f"{people_server.url}/api/people")
    ada.get_by_role("button", name="Disable ben@example.com").click()
    expect(ada.get_by_role("button", name="Enable ben@example.com")).to_be_visible()
    looks[0].fulfill(response=before)
    ada.evaluate("fetch('/ready').then((answer) => answer.text())")
    expect(ada.get_by_role("button", name="Enable ben@example.com")).to_be_visible()
    save.click()
    expect(ben.get_by_role("heading", name="Sign in")).to_be_visible()


SECTIONS = {
    "admin": [
        *("Usage", "Case figures", "Review", "Prompts", "Canned replies", "Knowledge", "Gaps"),
        *("Inboxes", "Webhooks", "Users", "Audit", "Backups"),
    ],
    "agent": ["Prompts", "Canned replies", "Knowledge"],
    "viewer": ["Usage", "Case figures", "Review", "Prompts", "Canned replies", "Knowledge", "Gaps"],
}


def test_nobody_is_offered_what_their_role_may_not_do(people_server: Server, new_browser: NewBrowser) -> None:
    """Each role opens each section of the desk, and the settings: nothing is refused."""
    hers = new_browser(people_server)
    ada = hers.new_page()
    ada.goto(setup_link(people_server))
    fill_account(ada, "ada", "Ada")
    at_the_chat(hers, people_server, ada)
    headers = {"Origin": people_server.url}
    pages = {"admin": ada}
    for role in ("agent", "viewer"):
        invitations = f"{people_server.url}/api/people/invitations"
        invited = hers.request.post(invitations, data={"role": role, "note": None}, headers=headers)
        browser = new_browser(people_server)
        pages[role] = browser.new_page()
        pages[role].goto(invited.json()["link"])
        fill_account(pages[role], role, role.title())
        at_the_chat(browser, people_server, pages[role])

    for role, page in pages.items():
        refused: list[str] = []

        def note(answer: Response, refused: list[str] = refused) -> None:
            if answer.status == 403:
                refused.append(answer.url)

        page.on("response", note)
        page.locator(".dm-toggle-settings").click()
        expect(page.locator("#dm-model-about")).to_contain_text("parameters")
        may_change = role == "admin"
        expect(page.get_by_role("button", name="Load", exact=True)).to_be_visible(visible=may_change)
        expect(page.get_by_role("button", name="Sleep")).to_be_visible(visible=may_change)
        expect(page.get_by_label("Another model")).to_be_visible(visible=may_change)
        expect(page.get_by_role("button", name="Reset")).to_be_visible(visible=role != "viewer")
        page.goto(f"{people_server.url}/desk#people")  # which is not for all of them
        expect(page.locator(".dk-section[data-ready]:not([aria-busy])")).to_be_visible()
        page.goto(f"{people_server.url}/desk")
        for section in SECTIONS[role]:
            page.get_by_role("link", name=section, exact=True).click()
            expect(page.get_by_role("heading", level=1, name=section)).to_be_visible()
            expect(page.locator(".dk-section[data-ready]:not([aria-busy])")).to_be_visible()
            expect(page.get_by_role("alert")).to_have_count(0)
        assert page.locator("#dk-nav a").all_inner_texts() == SECTIONS[role]
        assert refused == []


@pytest.mark.full
def test_ones_own_account(people_server: Server, new_browser: NewBrowser) -> None:
    browser = new_browser(people_server)
    page = browser.new_page()
    page.goto(setup_link(people_server))
    fill_account(page, "ada", "Ada")
    at_the_chat(browser, people_server, page)
    page.goto(f"{people_server.url}/account")
    expect(page.get_by_text("Signed in as ada, admin.")).to_be_visible()
    expect(page.locator("#dp-sessions")).to_contain_text("Chrome on")
    storage = page.get_by_role("region", name="Storage")
    expect(storage).to_contain_text(
        re.compile(r"You use (0|less than 0\.1) MiB of 1 GiB, in \d of 20,000 conversations\.")
    )
    expect(storage.get_by_role("meter", name="Storage")).to_have_attribute("max", str(2**30))
    page.get_by_label("Key name").fill("a <i>tool</i>")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#dp-key")).to_have_text(re.compile(r"^dmk_\S{40,}$"))
    key = page.locator("#dp-key").text_content()
    models = f"{people_server.url}/v1/models"
    program = new_browser(people_server).request
    assert program.get(models, headers={"Authorization": f"Bearer {key}"}).status == 200
    page.get_by_role("button", name="Revoke a <i>tool</i>").click()
    expect(page.get_by_role("status").filter(has_text="was revoked")).to_be_visible()
    assert program.get(models, headers={"Authorization": f"Bearer {key}"}).status == 401
    page.get_by_role("textbox", name="Current password").fill(PASSWORD)
    page.get_by_label("New password").fill("short")
    page.get_by_label("New password").fill("another four words here")
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_text("Your password was changed.")).to_be_visible()
    page.get_by_role("button", name="Sign out everywhere").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
