"""Customers reach the desk in containers: an inbox, its widget on a website of another origin, and a crash."""

from __future__ import annotations

import secrets

from playwright.sync_api import Browser, expect

from tests.e2e.compose.desk import ComposeProject
from tests.e2e.compose.test_desk import PASSWORD, kill_the_server
from tests.e2e.conftest import NewBrowser
from tests.e2e.test_cases_inbox import row, said
from tests.e2e.website import Website
from tests.e2e.widget_page import heard, visit, write


def test_a_visitor_of_a_website_and_a_person_at_the_desk(
    desk: ComposeProject, browser: Browser, new_browser: NewBrowser
) -> None:
    name = f"ida-{secrets.token_hex(3)}"
    create = ("exec", "-T", "app", "deskmate", "user", "create", name, "--role", "admin", "--password-stdin")
    desk.compose(*create, given=PASSWORD.encode())
    admin = new_browser(desk).new_page()
    admin.goto(f"{desk.url}/desk#inboxes")
    admin.get_by_label("Username or email address").fill(name)
    admin.get_by_label("Password").fill(PASSWORD)
    admin.get_by_role("button", name="Sign in").click()
    admin.wait_for_url(f"{desk.url}/desk**")

    with Website() as website, browser.new_context(reduced_motion="reduce", locale="en") as visitor:
        admin.goto(f"{desk.url}/desk#inboxes")
        admin.get_by_role("button", name="New inbox").click()
        admin.get_by_label("Name").fill("Shop")
        admin.get_by_label("Websites that may show it").fill(website.origin)
        admin.get_by_role("button", name="Create").click()
        tag = admin.get_by_label("Script tag").input_value()
        website.pages["/shop"] = (f"<!doctype html><title>Shop</title><h1>Shop</h1>{tag}", {})
        _, mia = visit(visitor, website, "/shop", "Shop")
        write(mia, "Where is my parcel?")
        expect(heard(mia, "Where is my parcel?")).to_be_visible()

        admin.goto(f"{desk.url}/desk/cases#unassigned")
        row(admin, "Where is my parcel?").get_by_role("link").click()
        admin.get_by_label("Reply to the customer").fill("On its way, Mia.")
        admin.get_by_role("button", name="Send to customer").click()
        expect(heard(mia, "On its way, Mia.")).to_be_visible()

        kill_the_server(desk)
        write(mia, "Thank you!")
        expect(said(admin, "Thank you!")).to_have_count(1)
        admin.get_by_role("button", name="Resolve").click()
        mia.get_by_role("radio", name="Very good").check(force=True)
        mia.get_by_role("button", name="Send rating").click()
        expect(mia.get_by_label("Your team").get_by_text("Thank you for your rating.")).to_be_visible()
