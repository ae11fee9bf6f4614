"""The desk's work on its documents in the browser: collections, their members, and what they lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import AXE
from tests.e2e.test_users import SECRET, at_the_chat, fill_account, setup_link

pytestmark = pytest.mark.full


@pytest.fixture
def people_server(endless_model: Path, tmp_path: Path) -> Iterator[Server]:
    options = ("--dtype", "float32", "--accounts", "--secret-key", SECRET)
    with Server(endless_model, tmp_path / "data", *options) as server:
        yield server


def make_people(server: Server, new_browser: NewBrowser, *roles: str) -> dict[str, Page]:
    """An admin, Ada, and a user of each role; each at the chat, in a browser of their own."""
    hers = new_browser(server)
    ada = hers.new_page()
    ada.goto(setup_link(server))
    fill_account(ada, "ada", "Ada")
    at_the_chat(hers, server, ada)
    pages = {"admin": ada}
    for role in roles:
        invited = hers.request.post(
            f"{server.url}/api/people/invitations", data={"role": role, "note": None}, headers={"Origin": server.url}
        )
        browser = new_browser(server)
        pages[role] = browser.new_page()
        pages[role].goto(invited.json()["link"])
        fill_account(pages[role], role, role.title())
        at_the_chat(browser, server, pages[role])
    return pages


def go(page: Page, server: Server, section: str) -> None:
    page.goto(f"{server.url}/desk#{section}")
    page.reload()
    expect(page.locator(".dk-section[data-ready]:not([aria-busy])")).to_be_visible()


def check_accessible(page: Page) -> None:
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations.map((v) => [v.id, v.nodes.map((n) => n.html)])")
    assert found == []
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


def member(page: Page, name: str) -> Locator:
    return page.get_by_role("list", name="Members").get_by_role("listitem").filter(has_text=name)


def test_an_admin_makes_a_collection_for_members_with_the_keyboard(
    people_server: Server, new_browser: NewBrowser
) -> None:
    pages = make_people(people_server, new_browser, "agent", "viewer")
    ada, agent, viewer = pages["admin"], pages["agent"], pages["viewer"]
    go(ada, people_server, "knowledge")
    ada.get_by_role("button", name="New collection").focus()
    ada.keyboard.press("Enter")
    expect(ada.get_by_label("Name")).to_be_focused()
    ada.keyboard.type("Knowledge")
    ada.keyboard.press("Enter")
    expect(ada.get_by_role("alert")).to_contain_text("There is a collection of this name already")
    expect(ada.get_by_label("Name")).to_have_value("Knowledge")
    ada.get_by_label("Name").fill("Order <b>desk</b>")
    ada.get_by_label("Name").press("Enter")
    choice = ada.get_by_label("Collection", exact=True)
    expect(choice.locator("option:checked")).to_have_text("Order <b>desk</b>")
    manage = ada.get_by_role("button", name="Manage collection")
    expect(manage).to_be_focused()
    for page in (agent, viewer):
        go(page, people_server, "knowledge")
        expect(page.get_by_label("Collection", exact=True).locator("option")).to_have_text(["Knowledge"])
        expect(page.get_by_role("button", name="New collection")).to_have_count(0)

    manage.press("Enter")
    expect(ada.get_by_text("There are no members yet.")).to_be_visible()
    ada.get_by_label("User", exact=True).select_option("Viewer (viewer), viewer")
    ada.get_by_label("May", exact=True).select_option("Search, read and edit")
    ada.get_by_role("button", name="Add member").click()
    expect(member(ada, "Viewers never edit.")).to_be_visible()
    ada.get_by_role("button", name="Add member").click()
    right = ada.get_by_label("Right of Agent")
    expect(right).to_have_value("false")
    check_accessible(ada)
    go(agent, people_server, "knowledge")
    agent.get_by_label("Collection", exact=True).select_option("Order <b>desk</b>")
    expect(agent.get_by_label("Add documents")).to_be_hidden()
    right.select_option("Search, read and edit")
    expect(right).to_be_focused()
    go(agent, people_server, "knowledge")
    agent.get_by_label("Collection", exact=True).select_option("Order <b>desk</b>")
    expect(agent.get_by_label("Add documents")).to_be_visible()

    ada.get_by_role("button", name="Remove Viewer from the members").click()
    expect(ada.get_by_label("Right of Viewer")).to_have_count(0)
    ada.get_by_label("Name").fill("Orders")
    ada.get_by_label("Who may search it").select_option("Every user")
    ada.get_by_role("button", name="Save").click()
    expect(choice.locator("option:checked")).to_have_text("Orders")
    expect(ada.locator(".dk-about")).to_have_text("Every user may search it.")
    go(viewer, people_server, "knowledge")
    expect(viewer.get_by_label("Collection", exact=True).locator("option")).to_have_text(["Knowledge", "Orders"])

    ada.get_by_role("button", name="Delete collection").click()
    expect(ada.get_by_text("This deletes the collection with 0 documents.")).to_contain_text("No chat uses it.")
    expect(ada.get_by_role("button", name="Cancel")).to_be_focused()
    check_accessible(ada)
    ada.get_by_role("button", name="Delete Orders for good").click()
    expect(choice.locator("option")).to_have_text(["Knowledge"])
    manage.click()
    ada.get_by_role("button", name="Delete collection").click()
    expect(ada.get_by_text("This collection always exists.")).to_be_visible()
    go(ada, people_server, "audit")
    for action in ("Collection created", "Collection member set", "Collection changed", "Collection deleted"):
        expect(ada.locator("tbody").get_by_text(action, exact=True).first).to_be_visible()


def test_names_of_one_long_word_fit_a_phone_and_the_inboxes_are_named(
    people_server: Server, new_browser: NewBrowser
) -> None:
    ada = make_people(people_server, new_browser)["admin"]
    word = "Rückgabebedingungen" * 10
    manual = f"# {word}\n\n## {word}\n\nThe deadline is thirty days. {word}\n".encode()

    def post(path: str, **body: object) -> str:
        sent = ada.request.post(f"{people_server.url}{path}", headers={"Origin": people_server.url}, **body)  # type: ignore[arg-type]
        assert sent.ok, sent.text()
        return str(sent.json()["id"])

    collection = post("/api/kb/collections", data={"name": word[:100], "description": word, "everyone": True})
    post("/api/inboxes", data={"name": word[:80], "collections": [collection]})
    file: FilePayload = {"name": f"{word}.md", "mimeType": "text/markdown", "buffer": manual}
    post("/api/kb/documents", multipart={"file": file, "collection": collection})
    go(ada, people_server, f"knowledge/{collection}")
    expect(ada.locator("tbody")).to_contain_text("Ready")
    ada.get_by_label("Try a search").fill("deadline")
    ada.get_by_role("button", name="Search", exact=True).click()
    expect(ada.get_by_text("1 passage found")).to_be_visible()
    ada.get_by_role("button", name="Passages of").click()
    expect(ada.get_by_role("heading", name="Passages of")).to_be_focused()
    ada.get_by_role("button", name="Manage collection").click()
    expect(ada.locator(".dk-inboxes")).to_contain_text("answers its visitors from this collection")
    expect(ada.get_by_text("There are no members yet.")).to_be_visible()
    ada.get_by_role("button", name="Delete collection").click()
    expect(ada.get_by_role("button", name="for good")).to_be_visible()
    check_accessible(ada)


def ask_sources(page: Page, server: Server, *texts: str) -> None:
    """Sends messages of chats of their own that use the first collection, and waits for their replies."""
    for text in texts:
        found = page.request.get(f"{server.url}/api/kb/collections").json()["collections"]
        sent = page.request.post(
            f"{server.url}/api/turns",
            data={"text": text, "collections": [found[0]["id"]]},
            headers={"Origin": server.url},
        )
        assert sent.status == 201, sent.text()
        page.request.get(f"{server.url}/api/turns/{sent.json()['turn_id']}/events")


def test_questions_that_found_nothing_are_grouped_and_marked_as_done(
    people_server: Server, new_browser: NewBrowser
) -> None:
    pages = make_people(people_server, new_browser, "agent", "viewer")
    ada, agent, viewer = pages["admin"], pages["agent"], pages["viewer"]
    ask_sources(agent, people_server, "Where is the <b>zeppelin</b> moored?", "zeppelin moored where")
    ask_sources(ada, people_server, "Who feeds the llamas?")
    for page in (ada, viewer):
        go(page, people_server, "gaps")
        expect(page.get_by_role("article")).to_have_count(2)
        expect(page.get_by_role("article").first).to_contain_text("Asked 2 times")
    go(agent, people_server, "gaps")
    expect(agent.get_by_role("heading", level=1)).to_have_text("Prompts")  # no such section for an agent
    expect(viewer.get_by_role("button", name="Done")).to_have_count(0)
    group = ada.get_by_role("article").first
    group.get_by_text("2 questions").click()
    expect(group.get_by_text("Where is the <b>zeppelin</b> moored?")).to_be_visible()
    expect(group.get_by_role("link", name="Open the conversation")).to_have_count(0)  # another user's
    own = ada.get_by_role("article").last
    own.get_by_text("1 question").click()
    expect(own.get_by_role("link", name="Open the conversation")).to_have_attribute("href", re.compile(r"^/\?c="))
    group.get_by_role("button", name="Search again").click()
    expect(group.get_by_text("Nothing is found now either.")).to_be_visible()
    manual: FilePayload = {"name": "z.md", "mimeType": "text/markdown", "buffer": b"The zeppelin is moored in Ulm."}
    added = ada.request.post(
        f"{people_server.url}/api/kb/documents", multipart={"file": manual}, headers={"Origin": people_server.url}
    )
    document = f"{people_server.url}/api/kb/documents/{added.json()['id']}"
    while ada.request.get(document).json()["state"] != "ready":
        ada.wait_for_timeout(200)
    group.get_by_role("button", name="Search again").click()
    expect(group.locator("blockquote")).to_have_text("The zeppelin is moored in Ulm.")
    group.get_by_role("button", name="Answers this question").press("Enter")
    expect(group.get_by_text("Marked: “The zeppelin is moored in Ulm.”")).to_be_visible()
    (marked,) = ada.request.get(f"{people_server.url}/api/kb/questions").json()["questions"]
    assert marked["question"] == "zeppelin moored where"
    check_accessible(ada)
    group.get_by_role("button", name="Done").press("Enter")
    expect(ada.get_by_role("article")).to_have_count(1)
    expect(ada.get_by_label("Show")).to_be_focused()
    ada.get_by_label("Show").select_option("Done")
    expect(ada.get_by_role("button", name="Put back")).to_have_count(1)
