"""The components in a Gradio app that is not Deskmate: the example of docs/components.md, and an app of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.server import ROOT, free_port

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


def examples() -> tuple[str, str]:
    """The short example, and the one with events."""
    short, long = EXAMPLE.findall((ROOT / "docs" / "components.md").read_text(encoding="utf-8"))
    return short, long


Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script as a user does, and returns its address."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, path: str = "/") -> str:
        file, log = tmp_path / "example.py", tmp_path / "log"
        file.write_text(script, encoding="utf-8")
        port = free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GRADIO_SERVER_PORT": str(port),
            "GRADIO_ANALYTICS_ENABLED": "False",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(file)], cwd=tmp_path, env=environment, stdout=output, stderr=output
            )
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
    before = {*(ROOT / "app").rglob("*.pyi")}
    chat_with(page, start(examples()[1]))
    assert {*(ROOT / "app").rglob("*.pyi")} == before, "Gradio wrote type stubs beside the components"


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
