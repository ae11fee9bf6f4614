"""The widget on a website of another origin: a visitor's talk, with a desk that the test plays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, expect

from tests.e2e.website import Website
from tests.e2e.widget_page import visit, write
from tests.e2e.widget_server import INBOX, PNG, WidgetServer

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
#: What a website has to allow, and all that it has to: the rest of its policy is as strict as there is.
POLICY = "default-src 'none'; script-src {0}; frame-src {0}"

HOSTILE_STYLE = "<style>body > * { display: none } button, iframe { display: none !important }</style>"


@pytest.fixture(scope="module")
def website() -> Iterator[Website]:
    with Website() as website:
        yield website


@pytest.fixture
def desk(website: Website) -> Iterator[WidgetServer]:
    with WidgetServer(website.origin) as desk:
        phones = '<meta name="viewport" content="width=device-width">'
        script = f'{phones}<script src="{desk.url}/widget/{INBOX}.js" async></script>'
        html = '<!doctype html><html lang="{}"><head><title>Shop</title>{}</head><body><h1>Shop</h1></body></html>'
        website.pages["/en"] = (html.format("en", script), {"Content-Security-Policy": POLICY.format(desk.url)})
        website.pages["/de"] = (html.format("de", script + HOSTILE_STYLE), {})
        yield desk


@pytest.fixture
def visitor(browser: Browser, desk: WidgetServer) -> Iterator[BrowserContext]:
    with browser.new_context(reduced_motion="reduce", timezone_id="Europe/Berlin", locale="en") as context:
        faults: list[str] = []
        context.on("weberror", lambda error: faults.append(str(error.error)))
        yield context
        assert not faults


def open_chat(visitor: BrowserContext, website: Website, path: str = "/en") -> tuple[Page, FrameLocator]:
    return visit(visitor, website, path, "The Shop")


def check_with_axe(page: Page) -> None:
    for frame in page.frames:
        if frame.parent_frame is None:
            continue  # the website is the test's, and its policy admits no other script
        frame.evaluate(AXE.read_text())
        found = frame.evaluate(
            "async () => (await axe.run()).violations.map((v) => [v.id, v.nodes.map((n) => n.html)])"
        )
        assert found == []
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_visitor_talks_with_the_bot_and_then_with_a_person(
    desk: WidgetServer, website: Website, visitor: BrowserContext, tmp_path: Path
) -> None:
    page, chat = open_chat(visitor, website)
    expect(chat.get_by_text("Hello! How can we help you?")).to_be_visible()
    expect(chat.get_by_label("Your message")).to_be_focused()
    write(chat, "Can I send back shoes?")
    expect(chat.get_by_text(re.compile("· sent"))).to_be_visible()

    reply = desk.say("bot", "", status="streaming")
    desk.write(reply, "Within **30 days** [1]. <img src=x> 👍🏽")
    desk.write(reply, " See [this](javascript:alert(1)).")
    expect(chat.locator("strong", has_text="30 days")).to_be_visible()
    expect(chat.locator("[aria-live=polite]")).to_have_text("")  # no half of a reply is read out
    passage = "Unworn items <b>can</b> be sent back."
    desk.end(reply, citations=[{"number": 1, "title": "Returns", "heading": "", "text": passage}])
    expect(chat.locator("[aria-live=polite]")).to_contain_text("Assistant: Within")
    expect(chat.get_by_text("<img src=x> 👍🏽 See this.")).to_be_visible()
    chat.get_by_text("Sources (1)").click()
    chat.get_by_text("Returns", exact=True).click()
    expect(chat.get_by_text(passage)).to_be_visible()
    check_with_axe(page)

    chat.get_by_role("button", name="Talk to a person").click()
    desk.turn_to(status="open", open=False, opens_at="2999-01-07T08:00:00Z")
    expect(chat.get_by_text("Our team answers again on Monday, January 7 at 9:00")).to_be_visible()
    chat.get_by_label(re.compile("e-mail address")).fill("ada@example.com")
    chat.get_by_role("button", name="Save").click()
    expect(chat.get_by_text("We also answer to ada@example.com.")).to_be_visible()
    assert desk.sent("contact") == [{"name": "", "email": "ada@example.com"}]

    desk.event("typing", {"name": "Ben"})
    expect(chat.get_by_label("Ben is typing.")).to_be_visible()
    desk.say("agent", "Hello, see https://shop.example/returns.", name="Ben")
    expect(chat.get_by_role("link", name="https://shop.example/returns", exact=True)).to_be_visible()
    expect(chat.get_by_label("Ben is typing.")).to_be_hidden()

    desk.turn_to(status="resolved", agent={"name": "Ben"}, rating=True)
    chat.get_by_role("radio", name="Good", exact=True).check(force=True)
    chat.get_by_label("Anything to add?").fill("Quick!")
    check_with_axe(page)
    chat.get_by_role("button", name="Send rating").click()
    expect(chat.get_by_text("Thank you for your rating.")).to_be_visible()
    assert desk.sent("rating") == [{"score": 4, "comment": "Quick!"}]

    with page.expect_download() as download:
        chat.get_by_role("button", name="Download the talk").click()
    assert download.value.suggested_filename == "The Shop.txt"


def test_offline_messages_wait_over_a_reload_and_are_sent_once_with_two_tabs_open(
    desk: WidgetServer, website: Website, visitor: BrowserContext
) -> None:
    page, chat = open_chat(visitor, website)
    write(chat, "before")
    expect(chat.get_by_text(re.compile("· sent"))).to_be_visible()
    other_page, other = open_chat(visitor, website)
    expect(other.get_by_text("before")).to_be_visible()
    desk.is_up = False
    expect(chat.get_by_text("There is no connection at the moment. Trying again …")).to_be_visible()
    write(chat, "while the line is dead")
    expect(chat.get_by_text("Will be sent once there is a connection.")).to_be_visible()
    expect(other.get_by_text("while the line is dead")).to_be_visible()
    page.reload()
    page.locator(".launcher").click()
    desk.is_up = True
    for each in (chat, other):
        expect(each.get_by_text("while the line is dead")).to_have_count(1)
        expect(each.locator(".dw-pending")).to_have_count(0)
    assert [each["text"] for each in desk.messages] == ["before", "while the line is dead"]
    assert {each["token"] for each in desk.sent("sessions")[1:]} == {"visitor-1"}
    other_page.close()


def test_keyboard_and_script_open_and_close_it_and_news_are_counted_meanwhile(
    desk: WidgetServer, website: Website, visitor: BrowserContext
) -> None:
    page = visitor.new_page()
    page.goto(f"{website.origin}/en")
    launcher = page.get_by_role("button", name="Open chat")
    launcher.press("Enter")
    chat = page.frame_locator("iframe")
    expect(chat.get_by_label("Your message")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("iframe")).to_be_hidden()
    expect(launcher).to_be_focused()
    desk.turn_to()
    desk.say("agent", "Are you still there?", name="Ben")
    expect(page.get_by_role("button", name="Open chat (New messages: 1)")).to_be_visible()
    page.evaluate("deskmateWidget.open()")
    expect(chat.get_by_text("Are you still there?")).to_be_visible()
    expect(page.get_by_role("button", name="Close chat", exact=True).first).to_be_visible()
    page.evaluate("deskmateWidget.close()")
    expect(page.locator("iframe")).to_be_hidden()
    assert page.evaluate("Object.keys(window).filter((name) => /desk/i.test(name))") == ["deskmateWidget"]


def test_the_website_says_who_its_customer_is_before_the_talk_begins_and_when_they_leave(
    desk: WidgetServer, website: Website, visitor: BrowserContext
) -> None:
    page = visitor.new_page()
    page.goto(f"{website.origin}/en")
    page.locator(".launcher").wait_for()
    page.evaluate("deskmateWidget.identify('signed.by.website')")
    page.locator(".launcher").click()
    chat = page.frame_locator("iframe")
    write(chat, "hello")
    expect(chat.get_by_text(re.compile("· sent"))).to_be_visible()
    assert [(each["token"], each["identity"]) for each in desk.sent("sessions")] == [(None, "signed.by.website")]
    desk.messages.clear()
    page.evaluate("deskmateWidget.identify(null)")
    expect(chat.get_by_text("hello", exact=True)).to_have_count(0)
    assert [(each["token"], each["identity"]) for each in desk.sent("sessions")][-1] == (None, None)


def test_a_website_that_is_not_the_inboxs_shows_no_chat(
    desk: WidgetServer, website: Website, visitor: BrowserContext
) -> None:
    with Website() as another:
        another.pages["/"] = website.pages["/en"]
        page = visitor.new_page()
        page.goto(another.origin)
        page.locator(".launcher").click()
        expect(page.locator("iframe")).to_be_visible()
        page.wait_for_timeout(500)
        assert desk.sent("sessions") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_in_german_it_fills_the_screen_and_takes_a_picture(
    desk: WidgetServer, website: Website, browser: Browser, scheme: str
) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "locale": "de"}
    with browser.new_context(color_scheme=scheme, reduced_motion="reduce", **options) as phone:  # type: ignore[arg-type]
        page = phone.new_page()
        page.goto(f"{website.origin}/de")
        page.get_by_role("button", name="Chat öffnen").tap()
        chat = page.frame_locator("iframe")
        expect(chat.get_by_role("button", name="Mit einem Menschen sprechen")).to_be_enabled()
        box = page.locator("iframe").bounding_box()
        assert box is not None
        assert (box["x"], box["y"], box["width"]) == (0, 0, 390)
        chat.locator("input[type=file]").set_input_files({"name": "photo.png", "mimeType": "image/png", "buffer": PNG})
        expect(chat.get_by_role("button", name="photo.png entfernen")).to_be_visible()
        chat.get_by_role("button", name="Senden").tap()
        expect(chat.get_by_role("img", name="photo.png")).to_be_visible()
        assert desk.sent("messages")[0]["attachments"] == ["file"]
        sizes = page.frames[-1].evaluate(
            "[...document.querySelectorAll('button, summary')].map((b) => b.getBoundingClientRect())"
            ".filter((r) => r.width > 0).map((r) => Math.min(r.width, r.height))"
        )
        assert min(sizes) >= 44, sizes
        check_with_axe(page)
        chat.get_by_role("button", name="Chat schließen").tap()
        expect(page.locator("iframe")).to_be_hidden()
