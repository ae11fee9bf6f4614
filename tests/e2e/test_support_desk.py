"""The whole story of docs/support-desk.md: two visitors, two agents, and a server that is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, FilePayload, expect

from tests.e2e.server import Server
from tests.e2e.test_cases_inbox import Desk, row, said
from tests.e2e.test_users import SECRET, setup_link
from tests.e2e.website import Website
from tests.e2e.widget_page import heard, visit, write

RETURNS = "# Returns\n\nShoes can be sent back within 30 days, unworn, with the receipt in the parcel.\n"


@pytest.fixture
def desk(browser: Browser, endless_model: Path, tmp_path: Path) -> Iterator[Desk]:
    """Ada is the admin, Ben and Cleo are agents."""
    with Server(endless_model, tmp_path / "data", "--dtype", "float32", "--accounts", "--secret-key", SECRET) as server:
        desk = Desk(server, browser)
        desk.add("ada", setup_link(server))
        for name in ("ben", "cleo"):
            desk.add(name, str(desk.post("ada", "/api/people/invitations", role="agent", note=None)["link"]))
        yield desk
        for context in desk.contexts.values():
            context.close()
        assert desk.errors == []


@pytest.fixture
def visitors(browser: Browser) -> Iterator[list[BrowserContext]]:
    contexts = [browser.new_context(reduced_motion="reduce", locale="en") for _ in range(2)]
    yield contexts
    for context in contexts:
        context.close()


def set_up(desk: Desk, website: Website) -> None:
    """What an admin does: a document, an inbox with its members, and the script tag on the website."""
    page = desk.page("ada", "/desk#knowledge")
    document: FilePayload = {"name": "returns.md", "mimeType": "text/markdown", "buffer": RETURNS.encode()}
    page.get_by_label("Add documents").set_input_files(document)
    expect(page.locator("tbody tr").filter(has_text="returns.md")).to_contain_text("Ready")
    page.goto(f"{desk.server.url}/desk#inboxes")
    page.get_by_role("button", name="New inbox").click()
    page.get_by_label("Name").fill("Shop")
    page.get_by_label("Websites that may show it").fill(website.origin)
    page.get_by_label("The assistant answers first").check()
    page.get_by_role("checkbox", name="Knowledge", exact=True).check()
    page.get_by_role("button", name="Create").click()
    tag = page.get_by_label("Script tag").input_value()
    for name in ("Ben", "Cleo"):
        page.get_by_label("User").select_option(label=name)
        page.get_by_role("button", name="Add member").click()
        expect(page.get_by_role("list", name="Members")).to_contain_text(name)
    website.pages["/shop"] = (f"<!doctype html><title>Shop</title><h1>Shop</h1>{tag}", {})
    page.close()


def test_a_support_desk_in_ten_minutes(desk: Desk, visitors: list[BrowserContext]) -> None:
    with Website() as website:
        set_up(desk, website)
        _, mia = visit(visitors[0], website, "/shop", "Shop")
        write(mia, "How long can I send back shoes?")
        # Too small to answer, the model has what the search found shown, honestly labelled, and people have the case.
        expect(heard(mia, "These passages of our documents match your question best.")).to_be_visible()
        expect(heard(mia, "within 30 days, unworn").first).to_be_attached()
        expect(heard(mia, "A person from our team will answer you here.").first).to_be_visible()
        _, tom = visit(visitors[1], website, "/shop", "Shop")
        tom.get_by_role("button", name="Talk to a person").click()
        expect(heard(tom, "You asked for a person.")).to_be_visible()

        ben, cleo = desk.page("ben"), desk.page("cleo")
        row(ben, "How long can I send back shoes?").get_by_role("link").click()
        expect(said(ben, "How long can I send back shoes?")).to_be_visible()
        row(cleo, "How long can I send back shoes?").get_by_role("link").click()
        expect(ben.get_by_text("Cleo is looking at this case.")).to_be_visible()
        cleo.get_by_role("link", name="Unassigned").click()
        ben.get_by_label("Reply to the customer").fill("Thirty days, Mia.")
        ben.get_by_role("button", name="Send to customer").click()
        expect(heard(mia, "Thirty days, Mia.")).to_be_visible()
        expect(mia.get_by_label("Your team").get_by_text("Ben is with you.")).to_be_visible()
        expect(heard(tom, "Thirty days, Mia.")).to_have_count(0)

        desk.server.kill()
        write(mia, "And without the box?")
        expect(mia.get_by_text("Will be sent once there is a connection.")).to_be_visible()
        desk.server.start()
        expect(mia.get_by_text(re.compile("· sent"))).to_have_count(2)
        expect(said(ben, "And without the box?")).to_have_count(1)

        ben.get_by_label("Reply to the customer").fill("The parcel is enough.")
        ben.get_by_role("button", name="Send to customer").click()
        expect(heard(mia, "The parcel is enough.")).to_have_count(1)
        ben.get_by_role("button", name="Resolve").click()
        mia.get_by_role("radio", name="Very good").check(force=True)
        mia.get_by_role("button", name="Send rating").click()
        expect(mia.get_by_label("Your team").get_by_text("Thank you for your rating.")).to_be_visible()

        figures = desk.page("ada", "/desk#case-figures")
        expect(figures.get_by_text("of 5, 1 rating")).to_be_visible()
