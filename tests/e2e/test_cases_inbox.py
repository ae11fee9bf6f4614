"""The inbox of cases in browsers: an admin sets it up, two agents work on one case, and a viewer reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.seed import seed_case
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import AXE
from tests.e2e.test_users import PASSWORD, SECRET, setup_link

pytestmark = pytest.mark.full

HOSTILE = "<img src=x onerror=alert(1)> My parcel"


@dataclass
class Desk:
    """A server with accounts, and a browser of each user."""

    server: Server
    browser: Browser
    contexts: dict[str, BrowserContext] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    inbox_id: str = ""
    errors: list[str] = field(default_factory=list)

    def add(self, name: str, link: str) -> None:
        """A user, signed in in a browser of their own, by a link."""
        viewport = {"width": 1440, "height": 900}
        context = self.browser.new_context(viewport=viewport, reduced_motion="reduce")  # type: ignore[arg-type]
        context.set_default_timeout(TIMEOUT_MS)
        context.on("weberror", lambda error: self.errors.append(f"{name}: {error.error}"))
        self.contexts[name] = context
        token = re.split("[/#]", link)[-1]
        self.post(name, "/api/links/use", token=token, password=PASSWORD, name=name, display_name=name.title())
        self.ids[name] = context.request.get(f"{self.server.url}/api/desk").json()["user_id"]

    def post(self, user: str, path: str, *, method: str = "POST", **body: object) -> dict[str, object]:
        """What a program of the user's asks for."""
        answer = self.contexts[user].request.fetch(
            f"{self.server.url}{path}", method=method, data=body, headers={"Origin": self.server.url}
        )
        assert answer.ok, answer.text()
        return answer.json() if answer.text() else {}

    def visitor(self, name: str, *texts: str) -> str:
        return seed_case(self.server.data_dir, self.inbox_id, name, *texts)

    def page(self, user: str, address: str = "/desk/cases#unassigned") -> Page:
        page = self.contexts[user].new_page()
        page.goto(f"{self.server.url}{address}")
        return page


@pytest.fixture(scope="module")
def desk(browser: Browser, endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Ada is the admin, Ben and Cleo are agents, of whom Ben is a member of the inbox, and Val is a viewer of it."""
    options = ("--dtype", "float32", "--accounts", "--secret-key", SECRET)
    with Server(endless_model, tmp_path_factory.mktemp("cases") / "data", *options) as server:
        desk = Desk(server, browser)
        desk.add("ada", setup_link(server))
        for name, role in (("ben", "agent"), ("cleo", "agent"), ("val", "viewer")):
            desk.add(name, str(desk.post("ada", "/api/people/invitations", role=role, note=None)["link"]))
        desk.inbox_id = str(desk.post("ada", "/api/inboxes", name="Website", bot=False)["id"])
        for name in ("ben", "val"):
            desk.post("ada", f"/api/inboxes/{desk.inbox_id}/members/{desk.ids[name]}", method="PUT")
        yield desk
        for context in desk.contexts.values():
            context.close()
        assert desk.errors == []


@pytest.fixture(autouse=True)
def _close_pages(desk: Desk) -> Iterator[None]:
    yield
    for context in desk.contexts.values():
        for page in context.pages:
            page.close()


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("list", name="List of cases").get_by_role("listitem").filter(has_text=text)


def said(page: Page, text: str) -> Locator:
    return page.locator(".cs-said").filter(has_text=text)


def open_case(page: Page, case_id: str, view: str = "all") -> None:
    page.evaluate("hash => { location.hash = hash }", f"#{view}/{case_id}")
    expect(page.locator(".cs-head h2")).to_be_visible()


def check_accessible(page: Page) -> None:
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations.map((v) => [v.id, v.nodes.map((n) => n.html)])")
    assert not found, found
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_agent_works_through_a_case_with_the_keyboard_alone(desk: Desk) -> None:
    desk.visitor("Mia", HOSTILE, "It has not come.")
    desk.visitor("Tom", "Where is my refund?")
    page = desk.page("ben")
    expect(row(page, "Mia")).to_contain_text("It has not come.")
    expect(page).to_have_title(re.compile(r"^\([1-9]\d*\) Cases"))
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".cs-head h2")).to_have_text(HOSTILE)
    expect(said(page, "onerror")).to_have_text(re.compile(re.escape(HOSTILE)))
    assert page.locator("#cs-main img").count() == 0

    page.keyboard.press("n")
    box = page.get_by_label("Internal note, for colleagues only")
    expect(box).to_be_focused()
    expect(page.get_by_role("button", name="Add note")).to_be_disabled()
    page.keyboard.type("She is a regular.")
    check_accessible(page)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".cs-note")).to_contain_text("She is a regular.")
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    expect(page.get_by_label("Reply to the customer")).to_be_focused()
    page.keyboard.type("It comes <b>tomorrow</b>.")
    page.reload()
    expect(page.get_by_label("Reply to the customer")).to_have_value("It comes <b>tomorrow</b>.")
    page.keyboard.press("r")
    page.keyboard.press("Control+Enter")
    expect(said(page, "It comes <b>tomorrow</b>.")).to_be_visible()
    expect(page.get_by_label("Reply to the customer")).to_have_value("")
    expect(page.locator(".cs-subtitle")).to_contain_text("Assigned to you")
    expect(page.locator(".cs-event").filter(has_text="Ben took it")).to_be_visible()

    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.get_by_role("dialog", name="Snooze the case")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".cs-subtitle")).to_contain_text("Snoozed until")
    page.keyboard.press("e")
    expect(page.locator(".cs-subtitle")).to_contain_text("Resolved")
    expect(page.get_by_role("link", name=re.compile("^Resolved"))).to_contain_text("1")
    page.keyboard.press("e")
    expect(page.locator(".cs-subtitle")).to_contain_text("Open")
    page.keyboard.press("/")
    page.keyboard.type("refund")
    expect(page.get_by_role("list", name="List of cases").get_by_role("listitem")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Next case")


def test_two_agents_see_each_other_and_no_reply_crosses_another_unseen(desk: Desk) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold.")
    ben, ada = desk.page("ben"), desk.page("ada")
    open_case(ben, case_id)
    open_case(ada, case_id)
    expect(ben.locator(".cs-present")).to_contain_text("Ada is looking at this case")
    ada.get_by_label("Reply to the customer").press_sequentially("Ada here.")
    expect(ben.locator(".cs-present.cs-collision")).to_contain_text("Ada is writing")

    ben.get_by_label("Reply to the customer").fill("Ben here.")
    ada.keyboard.press("Control+Enter")
    expect(said(ben, "Ada here.")).to_be_visible()
    expect(ben.locator(".cs-warning")).to_contain_text("Ada has replied, while you were writing.")
    ben.keyboard.press("Control+Enter")
    expect(ben.locator(".cs-warning")).to_contain_text("Send again to send it all the same.")
    expect(said(ada, "Ben here.")).to_have_count(0)
    ben.keyboard.press("Control+Enter")
    expect(said(ada, "Ben here.")).to_have_count(1)
    expect(row(ada, "Eve")).to_have_count(1)

    # His tab has not heard yet of what Ada does.
    ben.route("**/api/cases/*/events", lambda route: route.abort())
    ben.route("**/api/cases/events", lambda route: route.abort())
    ben.reload()
    expect(said(ben, "Ben here.")).to_be_visible()
    desk.post("ada", f"/api/cases/{case_id}/resolve")
    ben.get_by_role("button", name="Assign").click()
    ben.get_by_role("button", name="Me", exact=True).click()
    expect(ben.get_by_role("dialog").get_by_role("alert")).to_contain_text("Meanwhile: Ada resolved it.")
    expect(ben.locator(".cs-subtitle")).to_contain_text("Resolved")
    ben.keyboard.press("Escape")
    desk.post("ada", f"/api/cases/{case_id}/reopen")
    ben.get_by_label("Reply to the customer").fill("Is it warm now?")
    ben.keyboard.press("Control+Enter")
    expect(ben.locator(".cs-box").get_by_role("alert")).to_contain_text("Meanwhile: Ada reopened it.")
    expect(ben.get_by_label("Reply to the customer")).to_have_value("Is it warm now?")
    ben.keyboard.press("Control+Enter")
    expect(said(ada, "Is it warm now?")).to_have_count(1)


def test_a_reply_whose_answer_is_lost_is_kept_and_stored_once(desk: Desk) -> None:
    case_id = desk.visitor("Ian", "The lid is broken.")
    page, ada = desk.page("ben"), desk.page("ada")
    open_case(page, case_id)
    open_case(ada, case_id)
    box = page.get_by_label("Reply to the customer")
    sent: list[str] = []

    def lose_answer(route: Route) -> None:
        body = route.request.post_data_json
        assert body is not None
        sent.append(body["client_id"])
        if len(sent) == 1:
            route.abort()
        else:
            route.fetch()
            route.abort()

    page.route("**/events", lambda route: route.abort())
    page.reload()
    page.route("**/messages", lose_answer)
    box.fill("A new lid is on its way.")
    box.press("Control+Enter")
    alert = page.locator(".cs-box").get_by_role("alert")
    expect(alert).to_contain_text("Your text is kept.")
    page.reload()
    expect(box).to_have_value("A new lid is on its way.")
    box.press("Control+Enter")
    expect(said(ada, "A new lid is on its way.")).to_have_count(1)
    expect(alert).to_contain_text("Your text is kept.")
    assert len(set(sent)) == 1
    page.unroute("**/messages")
    page.reload()
    expect(said(page, "A new lid is on its way.")).to_have_count(1)
    expect(box).to_have_value("")


def test_a_viewer_reads_and_an_agent_of_no_inbox_sees_nothing(desk: Desk) -> None:
    case_id = desk.visitor("Zoe", "My secret order")
    val = desk.page("val", f"/desk/cases#all/{case_id}")
    expect(said(val, "My secret order")).to_be_visible()
    expect(val.get_by_text("You can read cases.")).to_be_visible()
    for control in ("Assign", "Snooze", "Resolve", "More", "Add note", "Send to customer"):
        expect(val.get_by_role("button", name=control)).to_have_count(0)
    expect(val.get_by_label("Priority")).to_have_count(0)
    cleo = desk.page("cleo", f"/desk/cases#all/{case_id}")
    expect(cleo.get_by_role("alert")).to_contain_text("There is no such case.")
    expect(cleo.get_by_text("You are no member of an inbox yet")).to_be_visible()
    cleo.goto(f"{desk.server.url}/desk")
    expect(cleo.get_by_role("link", name="Cases", exact=True)).to_have_attribute("href", "/desk/cases")
    expect(cleo.get_by_role("link", name="Inboxes")).to_have_count(0)


def test_on_a_phone_the_list_and_the_case_take_turns(desk: Desk) -> None:
    desk.visitor("Uma", "x" * 300)
    page = desk.page("ben", "/desk/cases#all")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(row(page, "Uma")).to_be_visible()
    page.locator(".cs-rows").evaluate("(list) => list.setAttribute('aria-busy', 'true')")  # a list that comes slowly
    check_accessible(page)
    row(page, "Uma").get_by_role("link").click()
    expect(said(page, "xxx")).to_be_visible()
    expect(page.locator("#cs-list")).to_be_hidden()
    check_accessible(page)
    page.get_by_role("button", name="Back to the list").click()
    expect(row(page, "Uma")).to_be_visible()
    expect(page).to_have_url(re.compile("#all$"))


def test_a_link_keeps_the_tag_that_narrows_the_list_down(desk: Desk) -> None:
    case_id = desk.visitor("Gil", "My scarf is torn.")
    page = desk.page("ben")
    open_case(page, case_id)
    tag = page.get_by_label("New tag")
    tag.fill("Rückgabe & Umtausch")
    tag.press("Enter")
    page.get_by_role("link", name="Rückgabe & Umtausch", exact=True).click()
    expect(page.get_by_role("list", name="List of cases").get_by_role("listitem")).to_have_count(1)
    expect(page.get_by_role("link", name=re.compile("^All"))).to_contain_text("1")
    page.reload()
    expect(page.get_by_label("Tag", exact=True)).to_have_value("Rückgabe & Umtausch")
    row(page, "Gil").get_by_role("link").click()
    page.get_by_role("button", name="Edit the subject").click()
    page.get_by_role("textbox", name="Subject").fill("A torn <i>scarf</i>")
    check_accessible(page)
    page.get_by_role("textbox", name="Subject").press("Enter")
    expect(page.locator(".cs-head h2")).to_have_text("A torn <i>scarf</i>")
    expect(row(page, "Gil")).to_contain_text("A torn <i>scarf</i>")
    page.get_by_label("Tag", exact=True).select_option("")
    expect(row(page, "Gil")).to_be_visible()
    expect(page).not_to_have_url(re.compile("tag="))


def test_an_admin_sets_up_and_tests_a_webhook(desk: Desk) -> None:
    page = desk.page("ada", "/desk#webhooks")
    page.get_by_role("button", name="New webhook").click()
    page.get_by_label("Name").fill("CRM <i>")
    page.get_by_label("Address").fill("http://127.0.0.1:9/hook")
    page.get_by_label("Only this:").check()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("Choose at least one event, or “Everything”.")
    page.get_by_label("A case is resolved").check()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Secret", exact=True)).to_have_value(re.compile(r"^whsec_\S{40,}$"))
    page.get_by_role("button", name="Send a test").click()
    delivery = page.get_by_role("list", name="Deliveries").get_by_role("listitem")
    expect(delivery).to_contain_text("A test is tried once.")
    expect(page.locator(".dk-webhook-state")).to_contain_text("Failing since")
    check_accessible(page)
    page.get_by_role("button", name="Switch off").click()
    expect(page.locator(".dk-webhook-state")).to_contain_text("an admin switched it off")
    page.get_by_role("button", name="Delete webhook").click()
    page.get_by_role("button", name="Delete CRM <i> for good").click()
    expect(page.get_by_text("There are no webhooks yet.")).to_be_visible()


def test_an_admin_sets_up_an_inbox(desk: Desk) -> None:
    page = desk.page("ada", "/desk#inboxes")
    page.get_by_role("button", name="New inbox").click()
    page.get_by_label("Name").fill("Shop <i>")
    page.get_by_label("Websites that may show it").fill("shop.example")
    page.get_by_role("button", name="Monday to Friday, 9 to 17").click()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("“shop.example” is no website.")
    page.get_by_label("Websites that may show it").fill("https://shop.example/start")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Script tag")).to_have_value(
        re.compile(rf'^<script src="{desk.server.url}/widget/[\w-]+\.js" async></script>$')
    )
    expect(page.get_by_label("Websites that may show it")).to_have_value("https://shop.example")
    expect(page.get_by_role("list", name="Opening hours").get_by_role("listitem")).to_have_count(5)
    page.get_by_label("User").select_option(label="Cleo")
    page.get_by_role("button", name="Add member").click()
    expect(page.get_by_role("list", name="Members")).to_contain_text("Cleo")
    page.get_by_role("button", name="New identity key").click()
    expect(page.get_by_label("Identity key")).to_have_value(re.compile(r"\S{20,}"))
    check_accessible(page)
    page.reload()
    expect(page.get_by_role("list", name="Inboxes").get_by_role("listitem")).to_have_count(2)
    expect(page.get_by_label("Identity key")).to_have_count(0)
    page.get_by_role("button", name="Shop <i>").click()
    page.get_by_role("button", name="Delete inbox").click()
    page.get_by_role("button", name="Delete Shop <i> for good").click()
    expect(page.get_by_role("list", name="Inboxes").get_by_role("listitem")).to_have_count(1)

    page.goto(f"{desk.server.url}/desk#case-figures")
    expect(page.get_by_role("heading", name="By inbox")).to_be_visible()
    expect(page.get_by_role("region", name="By inbox")).to_contain_text("Website")
    expect(page.get_by_role("link", name="Download as CSV")).to_have_attribute(
        "href", re.compile("/api/cases/figures/csv")
    )
    check_accessible(page)
