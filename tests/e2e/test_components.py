"""The components in a Gradio app that is not Deskmate: the example of docs/components.md, and an app of the tests."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from app.ui.components import Composer, Conversations
from app.ui.components.component import FileComponent
from tests.e2e.server import fork_server, free_port
from tests.fork_server import ROOT, ForkedProcess

pytestmark = pytest.mark.full

#: What test_folders.py raises.
OF_FOLDERS = {"move", "change_many", "delete_many", "export_many", "folder_create", "folder_delete", "folder_rename"}

START_SECONDS = 120
EXAMPLE = re.compile(r"^```python\n((?:(?!```).)*?demo\.launch\(\)\n)```$", re.DOTALL | re.MULTILINE)

#: Serves the example's ``demo`` below a path of an app that is itself mounted below another.
BELOW_A_PATH = """
import os
import gradio as gr
import uvicorn
from fastapi import FastAPI
inner = FastAPI()
gr.mount_gradio_app(inner, demo, path="/sub")
outer = FastAPI(lifespan=lambda _: inner.router.lifespan_context(inner))  # starts Gradio's queue
outer.mount("/outer", inner)
uvicorn.run(outer, port=int(os.environ["GRADIO_SERVER_PORT"]))
"""

#: Two chats and a header on one page, driven from Python.
TWO_CHATS = """
import gradio as gr

from app.ui.components import Chat, Header

HISTORY = [
    {"role": "user", "content": "First", "id": "a"},
    {"role": "assistant", "content": "One", "id": "b", "siblings": ["b0", "b"], "status": "stopped"},
]


def log(*expected):
    def listener(event: gr.EventData):
        return " ".join(f"{key}={getattr(event, key)}" for key in expected)
    return listener


with gr.Blocks() as demo:
    header = Header("A title", panels=["settings"], menu=["Sign out"])
    left = Chat(HISTORY, actions=Chat.ACTIONS)
    right = Chat([{"role": "system", "content": "x"}, *HISTORY], actions=["regenerate"], elem_id="right")
    said = gr.Textbox(label="Said")
    header.toggle(log("panel"), None, said)
    header.menu_select(log("name"), None, said)
    left.version(log("id", "step", "index"), None, said)
    left.rate(log("id", "index", "rating"), None, said)
    left.unrate(log("id", "index"), None, said)
    left.delete(log("id", "index"), None, said)
    right.regenerate(log("id", "index"), None, said)
    earlier = gr.Button("Earlier")
    earlier.click(lambda shown: [{"role": "user", "content": "Zero", "id": "z"}, *shown], left, left)
    gr.Button("Read only").click(lambda: Chat(read_only=True), None, left)
    gr.Button("Wrong").click(lambda: [{"role": "robot", "content": ""}], None, left)
    gr.Button("Remove all").click(lambda: None, None, left)

demo.launch()
"""


#: Two lists of conversations, two message boxes and two chats. Each event of theirs writes its data into a field.
TWO_OF_EACH = """
import json

import gradio as gr

from app.ui.components import Chat, Composer, Conversations

LIST = [
    {"id": "1", "title": "Hello", "tags": ["red"]},
    {"id": "2", "title": "World", "message_id": "m7"},
    {"id": "3", "title": "Old", "archived": True},
]
CANNED = [
    {"name": "greeting", "body": "Hi {{ title }}", "variables": [{"name": "title"}]},
    {"name": "asked"},
]


def logged(component, place):
    for event in component.EVENTS:
        if str(event) != "change":
            said = gr.Textbox(label=f"{place} {event}")
            getattr(component, str(event))(log, None, said)


def log(event: gr.EventData):
    return json.dumps(event._data)


def rename(shown, event: gr.EventData):
    return [{**each, "title": event.title} if each["id"] == event.id else each for each in shown]


def fill(event: gr.EventData):
    return "from a listener" if event.name == "asked" else gr.skip()


def changed(place):
    items = [{"id": "9", "title": place}]
    conversations = Conversations(items, current="9", tags=["blue"], has_more=True, note="Python")
    return conversations, Composer(value=f"for {place}", error="A problem.", note="A note.")


def add(place):
    parts = {"actions": Conversations.ACTIONS, "parts": Conversations.PARTS, "height": 300}
    conversations = Conversations(LIST, current="1", elem_id=f"{place}-list", **parts)
    chat = Chat(elem_id=f"{place}-chat", height=200)
    composer = Composer(canned=CANNED, last_message="again", elem_id=f"{place}-composer")
    logged(conversations, place)
    logged(composer, place)
    conversations.rename(rename, conversations, conversations)
    composer.submit(lambda text, shown: [*shown, {"role": "user", "content": text}], [composer, chat], chat)
    composer.submit(lambda: Composer(value="", replying=True), None, composer)
    composer.stop(lambda: Composer(replying=False), None, composer)
    composer.canned_fill(fill, None, composer)
    gr.Button(f"Change {place}").click(lambda: changed(place), None, [conversations, composer])


with gr.Blocks() as demo:
    add("left")
    add("right")

demo.launch()
"""

#: Two panels of settings.
TWO_PANELS = """
import gradio as gr

from app.ui.components import Settings

with gr.Blocks() as demo:
    for place in ("left", "right"):
        with gr.Column(elem_id=place):
            Settings()

demo.launch()
"""

#: The ids that more than one element has.
REPEATED_IDS = """() => {
  const ids = [...document.querySelectorAll('[id]:not([id=""])')].map(({ id }) => id);
  return ids.filter((id, index) => ids.indexOf(id) !== index);
}"""


def examples() -> tuple[str, str]:
    """The short example, and the one with events."""
    short, long = EXAMPLE.findall((ROOT / "docs" / "components.md").read_text(encoding="utf-8"))
    return short, long


Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script as a user does, and returns its address."""
    started: list[ForkedProcess] = []

    def run(script: str, path: str = "/") -> str:
        file, log = tmp_path / "example.py", tmp_path / "log"
        file.write_text(script, encoding="utf-8")
        port = free_port()
        environment = {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
        process = fork_server("tests.e2e.forked_gradio").fork(log, script=str(file), environment=environment)
        started.append(process)
        url = f"http://127.0.0.1:{port}{path}"
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(url, timeout=5).close()
                return url
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    yield run
    for process in started:
        process.terminate()
        process.wait(20)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose every error fails the test. Nothing but Gradio's own fonts may be missing."""
    errors: list[str] = []
    context = browser.new_context(service_workers="block")
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "response",
        lambda answer: errors.append(answer.url) if answer.status >= 400 and "/app/ui/" in answer.url else None,
    )
    yield page
    context.close()
    assert errors == []


def chat_with(page: Page, url: str) -> None:
    page.goto(url)
    box = page.get_by_label("Message", exact=True)
    page.get_by_role("button", name="Hello!", exact=True).click()
    expect(box).to_have_value("Hello!")

    box.fill("ten plus *ten* is twenty")
    box.press("Enter")
    user, reply = page.locator(".dm-user"), page.locator(".dm-reply")
    expect(user.locator(".dm-text")).to_have_text("ten plus *ten* is twenty")
    expect(page.locator(".dm-welcome")).to_be_hidden()
    expect(reply).to_contain_text("You wrote: ten")  # streamed: it starts before it ends
    user.evaluate("element => { element.dataset.mine = 'kept'; }")
    reply.evaluate("element => { element.dataset.mine = 'kept'; }")
    expect(reply).to_contain_text("is twenty")
    assert user.get_attribute("data-mine") == reply.get_attribute("data-mine") == "kept", "the list was built again"
    expect(reply.locator("strong")).to_have_count(1)
    expect(box).to_have_value("")

    user.hover()
    expect(page.get_by_role("button", name="Delete", exact=True)).to_have_count(0)
    user.get_by_role("button", name="Edit message").click()
    page.get_by_label("Edited message").fill("something else")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(user.locator(".dm-text")).to_have_text("something else")
    expect(reply).to_contain_text("You wrote: something else")

    reply.evaluate("element => { element.dataset.mine = 'replaced'; }")
    reply.get_by_role("button", name="Try again").click()
    expect(page.locator(".dm-reply[data-mine]")).to_have_count(0)
    expect(reply).to_contain_text("You wrote: something else")
    expect(user).to_have_count(1)


def test_ten_lines_are_a_chat(start: Start, page: Page) -> None:
    short, _ = examples()
    assert len([line for line in short.splitlines() if line]) == 10
    page.goto(start(short))
    box = page.get_by_label("Message", exact=True)
    box.fill("typed early")  # perhaps before the script of the component is loaded
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(box).to_have_value("typed early")
    for number, text in enumerate(("the first message", "and *another* one")):
        box.fill(text)
        box.press("Enter")
        expect(page.locator(".dm-user .dm-text").nth(number)).to_have_text(text)
        expect(page.locator(".dm-reply .dm-text").nth(number)).to_have_text(text.replace("*", ""))
        expect(box).to_have_value("")


def test_the_example_chats(start: Start, page: Page) -> None:
    chat_with(page, start(examples()[1]))


def test_the_example_chats_below_a_path(start: Start, page: Page) -> None:
    script = examples()[1].replace("demo.launch()\n", BELOW_A_PATH)
    chat_with(page, start(script, "/outer/sub/"))


def test_two_chats_on_a_page_are_each_their_own(start: Start, page: Page) -> None:
    page.goto(start(TWO_CHATS))
    left, right = page.locator(".html-container > .dm-component-chat").nth(0), page.locator("#right")
    said = page.get_by_label("Said")
    expect(page.get_by_role("heading", name="A title")).to_be_visible()
    expect(left.locator(".dm-message")).to_have_count(2)
    expect(right.locator(".dm-message")).to_have_count(2)

    right.get_by_role("button", name="Try again").click()
    expect(said).to_have_value("id=b index=2")  # behind the system message
    expect(right.get_by_role("button", name="Copy")).to_have_count(0)
    left.get_by_role("button", name="Previous version").click()
    expect(said).to_have_value("id=b0 step=previous index=1")
    left.get_by_role("button", name="Good reply").click()
    expect(said).to_have_value("id=b index=1 rating=up")
    left.get_by_role("button", name="Good reply").click()
    expect(said).to_have_value("id=b index=1")
    left.get_by_role("button", name="Delete this reply").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(said).to_have_value("panel=settings")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(said).to_have_value("name=Sign out")

    left.locator(".dm-user").hover()
    left.get_by_role("button", name="Edit message").click()
    page.get_by_label("Edited message").fill("being written")
    page.get_by_role("button", name="Earlier").click()
    expect(left.locator(".dm-message")).to_have_count(3)
    expect(page.get_by_label("Edited message")).to_have_value("being written")  # its message has not changed
    expect(left.locator(".dm-message").first).to_contain_text("Zero")

    page.get_by_role("button", name="Read only").click()
    expect(left.get_by_role("button", name="Try again")).to_have_count(0)
    expect(left.get_by_role("button", name="Copy reply")).to_be_visible()
    expect(left.locator(".dm-message")).to_have_count(3)

    page.get_by_role("button", name="Wrong").click()
    expect(page.get_by_text("Error", exact=True).first).to_be_attached()
    expect(left.locator(".dm-message")).to_have_count(3)
    page.get_by_role("button", name="Remove all").click()
    expect(left.locator(".dm-message")).to_have_count(0)
    expect(left.get_by_role("heading", name="What would you like to talk about?")).to_be_visible()
    expect(right.locator(".dm-message")).to_have_count(2)


class Place:
    """One of two instances of a component, and the data of its events that have reached Python."""

    def __init__(self, page: Page, place: str, kind: str) -> None:
        self.page = page
        self.place = place
        self.root = page.locator(f"#{place}-{kind}")
        self.heard: set[str] = set()

    def expect_event(self, event: str, **data: object) -> None:
        expect(self.page.get_by_label(f"{self.place} {event}", exact=True)).to_have_value(json.dumps(data))
        self.heard.add(event)

    def expect_silence(self, component: type[FileComponent]) -> None:
        for event in events_of(component):
            expect(self.page.get_by_label(f"{self.place} {event}", exact=True)).to_have_value("")

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)


def events_of(component: type[FileComponent]) -> set[str]:
    return {str(event) for event in component.EVENTS} - {"change"}


class ListPlace(Place):
    def __init__(self, page: Page, place: str) -> None:
        super().__init__(page, place, "list")
        self.titles = self.root.locator(".dm-row-title")
        self.search = self.root.get_by_label("Search conversations")
        self.current = self.root.locator('[aria-current="page"]')

    def choose(self, title: str, entry: str) -> None:
        row = self.root.locator(".dm-row").filter(has_text=title)
        row.hover()
        row.get_by_role("button", name=f"Actions for {title}").click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()


def test_two_lists_on_a_page_are_each_their_own(start: Start, page: Page, tmp_path: Path) -> None:
    page.goto(start(TWO_OF_EACH))
    left, right = ListPlace(page, "left"), ListPlace(page, "right")
    for each in (left, right):
        expect(each.titles).to_have_text(["Hello", "World"])
        expect(each.current).to_have_text("Hello#red")
    assert page.evaluate(REPEATED_IDS) == []

    right.button("New chat").click()
    right.expect_event("new")
    right.titles.nth(1).click()
    right.expect_event("select", id="2", message_id="m7")
    expect(right.current).to_have_text("World")
    expect(left.current).to_have_text("Hello#red")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    right.expect_event("select", id="1", message_id=None)

    right.search.fill("wor")
    right.expect_event("search", query="wor", tag=None, archived=False)
    expect(right.titles).to_have_text(["World"])
    right.search.fill("")
    right.expect_event("search", query="", tag=None, archived=False)
    right.button("#red").click()
    right.expect_event("search", query="", tag="red", archived=False)
    expect(right.titles).to_have_text(["Hello"])
    right.button("#red").click()
    right.button("Archived").click()
    right.expect_event("search", query="", tag=None, archived=True)
    expect(right.titles).to_have_text(["Old"])
    right.button("Archived").click()
    expect(right.titles).to_have_text(["Hello", "World"])
    expect(left.titles).to_have_text(["Hello", "World"])

    right.choose("World", "Pin")
    right.expect_event("pin", id="2", pinned=True)
    right.choose("World", "Archive")
    right.expect_event("archive", id="2", archived=True)
    right.choose("World", "Save as Markdown")
    right.expect_event("export", id="2", format="markdown")
    right.choose("World", "Summarise")
    right.expect_event("summarise", id="2", title="World")
    right.choose("World", "Propose an article")
    right.expect_event("article", id="2", title="World")
    right.choose("World", "Tags")
    page.get_by_role("dialog").get_by_label("Tags").fill("blue, green")
    assert page.evaluate(REPEATED_IDS) == []
    page.keyboard.press("Enter")
    right.expect_event("tag", id="2", tags=["blue", "green"])
    right.choose("World", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    right.expect_event("delete", id="2")
    right.choose("World", "Rename")
    page.get_by_label("New title").fill("Earth")
    page.keyboard.press("Enter")
    right.expect_event("rename", id="2", title="Earth")
    expect(right.titles).to_have_text(["Hello", "Earth"])  # as the listener has returned it

    right.button("Export all").click()
    page.get_by_role("menuitem", name="JSON, with all versions").click()
    right.expect_event("export", id=None, format="json")
    file = tmp_path / "chats.json"
    file.write_text('["ä"]', encoding="utf-8")
    with page.expect_file_chooser() as chooser:
        right.button("Import").click()
    chooser.value.set_files(file)
    right.expect_event("upload", name="chats.json", text='["ä"]')

    page.get_by_role("button", name="Change right").click()
    expect(right.titles).to_have_text(["right"])
    expect(right.current).to_have_text("right")
    expect(right.button("#blue")).to_be_visible()
    expect(right.root.get_by_text("Python", exact=True)).to_be_visible()
    right.button("Show more").scroll_into_view_if_needed()
    right.expect_event("more")
    assert right.heard == events_of(Conversations) - OF_FOLDERS

    left.expect_silence(Conversations)
    expect(left.titles).to_have_text(["Hello", "World"])
    left.root.locator(".dm-row-link").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    left.expect_event("select", id="2", message_id="m7")
    expect(left.current).to_have_text("World")
    expect(right.current).to_have_text("right")


class ComposerPlace(Place):
    def __init__(self, page: Page, place: str) -> None:
        super().__init__(page, place, "composer")
        self.box = self.root.get_by_label("Message", exact=True)
        self.alert = self.root.get_by_role("alert")
        self.messages = page.locator(f"#{place}-chat .dm-user .dm-text")


def test_two_message_boxes_on_a_page_are_each_their_own(start: Start, page: Page) -> None:
    page.goto(start(TWO_OF_EACH))
    left, right = ComposerPlace(page, "left"), ComposerPlace(page, "right")
    dialog = page.get_by_role("dialog")
    expect(left.button("Send")).to_be_visible()

    right.box.fill("to the right")
    right.expect_event("input", text="to the right")
    expect(left.box).to_have_value("")
    right.box.press("Enter")
    right.expect_event("submit", text="to the right")
    expect(right.messages).to_have_text(["to the right"])
    expect(right.box).to_have_value("")
    expect(right.button("Stop")).to_be_visible()
    expect(right.button("Send")).to_be_hidden()
    expect(left.button("Stop")).to_be_hidden()

    right.box.fill("too early")
    right.box.press("Enter")
    expect(right.alert).to_contain_text("A reply is still being written.")
    expect(left.alert).to_be_empty()
    right.expect_event("submit", text="to the right")
    right.box.press("Escape")
    right.expect_event("stop")
    expect(right.button("Send")).to_be_visible()

    right.box.fill("")
    right.box.press("ArrowUp")
    expect(right.box).to_have_value("again")
    right.box.fill("")
    right.box.press("/")
    right.expect_event("canned_open")
    assert page.evaluate(REPEATED_IDS) == []
    page.keyboard.press("Enter")
    dialog.get_by_label("title", exact=True).fill("Ann")
    assert page.evaluate(REPEATED_IDS) == []
    page.keyboard.press("Enter")
    right.expect_event("canned_fill", name="greeting", values={"title": "Ann"})
    expect(right.box).to_have_value("Hi Ann")
    expect(right.box).to_be_focused()
    right.button("Canned replies").click()
    dialog.get_by_role("option", name="asked").click()
    right.expect_event("canned_fill", name="asked", values={})
    expect(right.box).to_have_value("from a listener")
    assert right.heard == events_of(Composer) - {"draft", "compare"}  # which test_drafts.py and test_compare.py raise

    left.expect_silence(Composer)
    left.box.press("/")
    page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("option", name="asked")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(left.box).to_have_value("/")
    left.box.fill("to the left")
    left.button("Send").click()
    left.expect_event("submit", text="to the left")
    expect(left.messages).to_have_text(["to the left"])
    expect(right.messages).to_have_text(["to the right"])
    expect(right.box).to_have_value("from a listener")
    left.button("Stop").press("Enter")  # a click so soon after the one on Send would be the second of a double click
    left.expect_event("stop")

    page.get_by_role("button", name="Change right").click()
    expect(right.box).to_have_value("for right")
    expect(right.alert).to_have_text("A problem.")
    expect(right.root.get_by_text("A note.")).to_be_visible()
    expect(left.box).to_have_value("")
    expect(left.alert).to_be_empty()
    right.box.press("x")
    expect(right.alert).to_be_empty()


def test_two_panels_of_settings_on_a_page_are_each_their_own(start: Start, page: Page) -> None:
    page.goto(start(TWO_PANELS))
    left, right = page.locator("#left"), page.locator("#right")
    values = {each: each.get_by_label("number input for Temperature") for each in (left, right)}
    untouched = values[left].input_value()
    right.get_by_label("Precise", exact=True).check()
    expect(values[right]).not_to_have_value(untouched)
    chosen = values[right].input_value()
    expect(values[left]).to_have_value(untouched)
    left.get_by_label("Creative", exact=True).check()
    expect(values[left]).not_to_have_value(untouched)
    expect(values[right]).to_have_value(chosen)
    assert page.evaluate(REPEATED_IDS) == []
