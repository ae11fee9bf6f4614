"""What the model makes of a case, in the page of cases: its summary, and the article that it becomes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from testing.scripted_server import words
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.test_cases_inbox import Desk, check_accessible, open_case, said
from tests.e2e.test_draft_states import PHONE, in_two_parts
from tests.e2e.test_slow_answers import until
from tests.e2e.test_users import SECRET, setup_link
from tests.e2e.test_widths import MISFITS

pytestmark = pytest.mark.full

NOTE = "Second report of this week."
ARTICLE = "# A cold kettle\n\n## Question\n\nWhy?\n\n## Solution\n\nDescale it."


@pytest.fixture
def desk(browser: Browser, elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Desk]:
    """Ada is the admin and Val a viewer of the inbox, in front of a scripted model."""
    with front_server(elsewhere, tmp_path, "--accounts", "--secret-key", SECRET) as server:
        desk = Desk(server, browser)
        desk.add("ada", setup_link(server))
        desk.add("val", str(desk.post("ada", "/api/people/invitations", role="viewer", note=None)["link"]))
        desk.inbox_id = str(desk.post("ada", "/api/inboxes", name="Website", bot=False)["id"])
        desk.post("ada", f"/api/inboxes/{desk.inbox_id}/members/{desk.ids['val']}", method="PUT")
        yield desk
        for context in desk.contexts.values():
            context.close()
        assert desk.errors == []


def solved_case(desk: Desk, *texts: str) -> str:
    """A resolved case of Eve's with a note and a reply."""
    case_id = desk.visitor("Eve", *texts)
    desk.post("ada", f"/api/cases/{case_id}/notes", text=NOTE)
    desk.post("ada", f"/api/cases/{case_id}/messages", text="Descale it.")
    desk.post("ada", f"/api/cases/{case_id}/resolve")
    return case_id


def open_page(desk: Desk, user: str, case_id: str) -> Page:
    page = desk.page(user, f"/desk/cases#all/{case_id}")
    expect(said(page, "Descale it.")).to_be_visible()
    return page


def choose(page: Page, entry: str) -> None:
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("menuitem", name=entry).click()


def summary_of(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Summary")


def articles(desk: Desk) -> list[str]:
    found = desk.contexts["ada"].request.get(f"{desk.server.url}/api/kb/collections").json()["collections"]
    listed = [
        desk.contexts["ada"].request.get(f"{desk.server.url}/api/kb/articles?collection={each['id']}").json()
        for each in found
    ]
    return [article["title"] for each in listed for article in each["articles"]]


def test_an_agent_reads_a_long_case_by_its_summary_and_makes_an_article_of_it(desk: Desk, elsewhere: Elsewhere) -> None:
    texts = [f"It is cold since day {number}." for number in range(205)]  # more than the page loads at once
    page = open_page(desk, "ada", solved_case(desk, *texts))
    expect(said(page, "since day 0.")).to_have_count(0)
    elsewhere.server.say(words("It is cold [1]. It was reported before [206]. Descaling was proposed [207]."))
    choose(page, "Summarise")
    expect(summary_of(page).locator(".dm-case-text .dm-case-link")).to_have_text(["1", "206", "207"])
    check_accessible(page)
    summary_of(page).get_by_role("button", name=f"Note 206: {NOTE}").last.click()
    expect(summary_of(page)).to_have_count(0)
    expect(said(page, NOTE)).to_be_focused()
    expect(said(page, NOTE)).to_be_in_viewport(ratio=1)

    elsewhere.server.say(words("It is cold [1]."))
    choose(page, "Summarise")
    summary_of(page).locator(".dm-case-text .dm-case-link").press("Enter")
    expect(said(page, "since day 0.")).to_be_focused()
    expect(said(page, "since day 0.")).to_be_in_viewport(ratio=1)
    expect(said(page, "since day 0.")).to_have_css("outline-style", "solid")

    page.get_by_role("button", name="Propose an article").click()
    dialog = page.get_by_role("dialog", name="Propose an article")
    expect(dialog.get_by_label("Collection")).to_be_focused()
    check_accessible(page)
    elsewhere.server.say(words(ARTICLE), words(ARTICLE))
    dialog.get_by_role("button", name="Propose", exact=True).dblclick()
    expect(dialog).to_contain_text("Proposed: A cold kettle.")
    assert NOTE not in str(elsewhere.server.generation_requests[-1].body["messages"])
    assert articles(desk) == ["A cold kettle"]
    dialog.get_by_role("link", name="Check, edit and publish it").click()
    expect(page.get_by_role("article", name="A cold kettle")).to_have_count(1)


def test_a_dialog_that_is_closed_stops_the_model(desk: Desk, elsewhere: Elsewhere) -> None:
    page = desk.page("ada", "/desk/cases#all")
    open_case(page, solved_case(desk, "Why is it cold?"))
    elsewhere.server.say(in_two_parts("It is ", asyncio.Event(), "never said."))
    choose(page, "Summarise")
    expect(summary_of(page)).to_contain_text("The model reads the case")
    until(page, lambda: bool(elsewhere.server.generation_requests))
    page.keyboard.press("Escape")
    until(page, lambda: elsewhere.server.num_disconnects == 1)

    elsewhere.server.say(in_two_parts(ARTICLE, asyncio.Event(), "never said."))
    page.get_by_role("button", name="Propose an article").click()
    dialog = page.get_by_role("dialog", name="Propose an article")
    dialog.get_by_role("button", name="Propose", exact=True).click()
    until(page, lambda: len(elsewhere.server.generation_requests) == 2)
    page.go_back()  # as on a phone
    expect(page.get_by_text("Choose a case from the list")).to_be_visible()
    expect(dialog).to_have_count(0)
    until(page, lambda: elsewhere.server.num_disconnects == 2)
    assert articles(desk) == []


def test_without_a_model_the_dialogs_say_so_and_the_article_is_asked_for_again(
    desk: Desk, elsewhere: Elsewhere
) -> None:
    page = open_page(desk, "ada", solved_case(desk, "Why is it cold?"))
    elsewhere.stop()
    choose(page, "Summarise")
    expect(summary_of(page).get_by_role("alert")).to_be_visible()
    expect(summary_of(page).get_by_role("alert")).not_to_contain_text("Something went wrong")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Propose an article").click()
    dialog = page.get_by_role("dialog", name="Propose an article")
    dialog.get_by_role("button", name="Propose", exact=True).click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    elsewhere.start()
    until(page, lambda: page.request.get(f"{desk.server.url}/ready").ok)
    elsewhere.server.say(words(ARTICLE))
    dialog.get_by_role("button", name="Propose", exact=True).click()
    expect(dialog).to_contain_text("Proposed: A cold kettle.")
    assert articles(desk) == ["A cold kettle"]


def test_on_a_phone_the_commands_stay_in_one_line_and_a_viewer_only_reads(desk: Desk, elsewhere: Elsewhere) -> None:
    case_id = solved_case(desk, "Why is it cold?")
    page = open_page(desk, "ada", case_id)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    tops = page.locator(".cs-head .dm-buttons button:visible").evaluate_all("all => all.map((each) => each.offsetTop)")
    assert len({*tops}) == 1
    choose(page, "Propose an article")
    expect(page.get_by_role("dialog", name="Propose an article").get_by_label("Collection")).to_be_focused()
    page.keyboard.press("Escape")

    page = open_page(desk, "val", case_id)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    expect(page.get_by_role("button", name=re.compile("^(More|Propose an article)$"))).to_have_count(0)
    elsewhere.server.say(words(f"{'It is cold, very cold, and stays so. ' * 8}[1] [2]"))
    page.get_by_role("button", name="Summarise").click()
    expect(summary_of(page).locator(".dm-case-text .dm-case-link")).to_have_text(["1", "2"])
    check_accessible(page)
    assert page.evaluate(MISFITS) == []
    summary_of(page).locator(".dm-case-text .dm-case-link").first.click()
    expect(said(page, "Why is it cold?")).to_be_in_viewport(ratio=1)
