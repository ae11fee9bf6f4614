"""Drafts of replies in a case: in two tabs, over a visit to another case, after a new message, a kill, on a phone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from testing.scripted_server import chunk, reply, words
from tests.e2e.elsewhere import Elsewhere, front_server
from tests.e2e.seed import seed_case_message
from tests.e2e.test_cases_inbox import Desk, open_case, said
from tests.e2e.test_draft_states import PHONE, SENTENCE, check_at_rest, check_usable, in_two_parts, write
from tests.e2e.test_drafts import panel, text
from tests.e2e.test_slow_answers import until
from tests.e2e.test_users import SECRET, setup_link

pytestmark = pytest.mark.full


@pytest.fixture
def desk(browser: Browser, elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Desk]:
    """An admin's desk with an inbox, in front of a scripted model."""
    with front_server(elsewhere, tmp_path, "--accounts", "--secret-key", SECRET) as server:
        desk = Desk(server, browser)
        desk.add("ada", setup_link(server))
        desk.inbox_id = str(desk.post("ada", "/api/inboxes", name="Website", bot=False)["id"])
        yield desk
        for context in desk.contexts.values():
            context.close()
        assert desk.errors == []


def open_page(desk: Desk, case_id: str) -> Page:
    page = desk.page("ada", f"/desk/cases#all/{case_id}")
    expect(page.locator(".cs-head h2")).to_be_visible()
    return page


def test_two_tabs_write_drafts_in_one_case_and_neither_loses_its_own(desk: Desk, elsewhere: Elsewhere) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold.")
    first, second = open_page(desk, case_id), open_page(desk, case_id)
    gate = asyncio.Event()
    elsewhere.server.say(in_two_parts("The first ", gate, "tab writes."))
    write(first)
    expect(text(first)).to_have_value("The first ")
    elsewhere.server.say(words("The second tab is faster."))
    write(second)
    expect(panel(second).get_by_text("The draft is ready.")).to_be_visible()
    text(second).fill("The second tab, edited.")
    second.get_by_label("Reply to the customer").fill("Typed by hand. ")
    elsewhere.open_gate(gate)
    expect(text(first)).to_have_value("The first tab writes.")
    expect(text(second)).to_have_value("The second tab, edited.")
    check_at_rest(first)

    panel(first).get_by_role("button", name="Insert", exact=True).click()
    expect(first.get_by_label("Reply to the customer")).to_have_value("The first tab writes.")
    first.keyboard.press("Control+Enter")
    expect(said(second, "The first tab writes.")).to_be_visible()
    expect(text(second)).to_have_value("The second tab, edited.")
    second.reload()
    expect(text(second)).to_have_value("The second tab, edited.")
    check_at_rest(second)
    panel(second).get_by_role("button", name="Insert", exact=True).click()
    expect(second.get_by_label("Reply to the customer")).to_have_value("Typed by hand. The second tab, edited.")


def test_a_draft_is_written_to_its_end_while_another_case_is_open(desk: Desk, elsewhere: Elsewhere) -> None:
    mine, other = desk.visitor("Eve", "My kettle is cold."), desk.visitor("Tom", "Where is my toaster?")
    page = open_page(desk, mine)
    gate = asyncio.Event()
    elsewhere.server.say(words("Before."), in_two_parts("It lasts ", gate, "31 months."))
    write(page)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    write(page, "Try again")
    expect(text(page)).to_have_value("It lasts ")
    open_case(page, other)
    expect(page.locator(".cs-head h2")).to_have_text("Where is my toaster?")
    expect(panel(page)).to_be_hidden()
    elsewhere.server.say(words("It is on its way."))
    write(page)
    expect(text(page)).to_have_value("It is on its way.")
    open_case(page, mine)
    expect(text(page)).to_have_value("It lasts ")
    expect(panel(page).get_by_text("Writing the draft")).to_be_visible()
    expect(panel(page).get_by_text("closed, reloaded")).to_have_count(0)  # it is still being written
    elsewhere.open_gate(gate)
    expect(text(page)).to_have_value("It lasts 31 months.")
    text(page).fill("It lasts 31 months, Eve.")
    panel(page).get_by_role("button", name="Insert", exact=True).click()
    expect(page.get_by_label("Reply to the customer")).to_have_value("It lasts 31 months, Eve.")
    open_case(page, other)
    expect(text(page)).to_have_value("It is on its way.")
    expect(page.get_by_label("Reply to the customer")).to_have_value("")
    page.evaluate("location.hash = '#all'")
    expect(page.get_by_text("Choose a case from the list")).to_be_visible()
    open_case(page, other)
    expect(text(page)).to_have_value("It is on its way.")


def test_a_customer_who_writes_again_gets_another_draft(desk: Desk, elsewhere: Elsewhere) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold.")
    page = open_page(desk, case_id)
    elsewhere.server.say(words("Descale it."), words("The toaster is not for bread."))
    write(page)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    origin = panel(page).locator(".dm-draft-origin")
    expect(origin).to_have_text("Customer’s last message: “My kettle is cold.”")
    seed_case_message(desk.server.data_dir, case_id, "I mean the toaster.")
    expect(said(page, "I mean the toaster.")).to_be_visible()
    expect(origin).to_have_text("An earlier message of the customer’s: “My kettle is cold.”")
    expect(text(page)).to_have_value("Descale it.")
    write(page)
    expect(text(page)).to_have_value("The toaster is not for bread.")
    expect(origin).to_have_text("Customer’s last message: “I mean the toaster.”")
    assert "I mean the toaster." in elsewhere.server.generation_requests[-1].body["messages"][-1]["content"]
    panel(page).get_by_role("button", name="Previous draft").click()
    expect(text(page)).to_have_value("Descale it.")
    expect(origin).to_have_text("An earlier message of the customer’s: “My kettle is cold.”")
    panel(page).locator("summary").first.click()
    panel(page).get_by_label("Customer’s message").fill("My kettle leaks.")
    expect(origin).to_have_text("Customer’s message (this draft answers another one): “My kettle leaks.”")


def test_a_customer_who_writes_while_a_draft_is_written_gets_the_next_one(desk: Desk, elsewhere: Elsewhere) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold.")
    page = open_page(desk, case_id)
    gate = asyncio.Event()
    elsewhere.server.say(in_two_parts("Descale ", gate, "it."))
    write(page)
    expect(text(page)).to_have_value("Descale ")
    seed_case_message(desk.server.data_dir, case_id, "I mean the toaster.")
    expect(said(page, "I mean the toaster.")).to_be_visible()
    write(page)
    origin = panel(page).locator(".dm-draft-origin")
    expect(origin).to_have_text("An earlier message of the customer’s: “My kettle is cold.”")
    elsewhere.open_gate(gate)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(text(page)).to_have_value("Descale it.")
    elsewhere.server.say(words("The toaster is not for bread."))
    write(page)
    expect(text(page)).to_have_value("The toaster is not for bread.")
    expect(origin).to_have_text("Customer’s last message: “I mean the toaster.”")


def test_a_case_s_draft_survives_a_stop_and_a_server_that_is_killed(desk: Desk, elsewhere: Elsewhere) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold.")
    page = open_page(desk, case_id)
    box = page.get_by_label("Reply to the customer")
    box.fill("Dear Eve, ")
    elsewhere.server.say(reply(chunk(), chunk("Descale "), asyncio.Event()))
    write(page)
    expect(text(page)).to_have_value("Descale ")
    panel(page).get_by_role("button", name="Stop writing").click()
    expect(panel(page).get_by_text("You stopped this draft.")).to_be_visible()
    check_at_rest(page)
    until(page, lambda: elsewhere.server.running == 0)

    elsewhere.server.say(reply(chunk(), chunk("Take "), asyncio.Event()))
    write(page, "Try again")
    expect(text(page)).to_have_value("Take ")
    desk.server.kill()
    alert = panel(page).get_by_role("alert")
    expect(alert).to_have_text("The connection to Deskmate was lost. Check that it is running, then try again.")
    expect(text(page)).to_have_value("Take ")
    expect(box).to_have_value("Dear Eve, ")
    check_at_rest(page)
    desk.server.start()
    elsewhere.server.say(words("take vinegar."))
    write(page, "Try again")
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    expect(alert).to_be_hidden()
    panel(page).get_by_role("button", name="Insert", exact=True).click()
    expect(box).to_have_value("Dear Eve, take vinegar.")
    box.press("Control+Enter")
    expect(said(page, "Dear Eve, take vinegar.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_case_s_draft_is_wholly_usable_on_a_phone(desk: Desk, elsewhere: Elsewhere, scheme: str) -> None:
    case_id = desk.visitor("Eve", "My kettle is cold. " + "a" * 200)
    page = open_page(desk, case_id)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    gate = asyncio.Event()
    elsewhere.server.say(words(SENTENCE * 12), in_two_parts(SENTENCE, gate, "x" * 300))
    write(page)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    panel(page).get_by_role("button", name="Shorter").click()
    expect(text(page)).to_have_value(SENTENCE)
    check_usable(page)
    elsewhere.open_gate(gate)
    expect(panel(page).get_by_text("The draft is ready.")).to_be_visible()
    panel(page).locator("summary").first.click()
    check_usable(page)
    page.set_viewport_size({"width": 390, "height": 480})  # with the keyboard of a phone
    check_usable(page)
    panel(page).get_by_role("button", name="Insert", exact=True).click()
    expect(page.get_by_label("Reply to the customer")).to_be_focused()
