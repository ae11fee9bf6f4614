"""The menu of models: one click on a recommended model, from a hub on this machine, while the chat stays up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from testing.hub import Hub
from testing.models import make_model
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server
from tests.e2e.test_for_everyone import SCREENSHOTS, _violations
from tests.fork_server import ROOT

pytestmark = pytest.mark.full

#: Serves with another recommended list.
_PROGRAM = """
import sys
from pathlib import Path
from app.models import recommended
recommended._FILE = Path(sys.argv.pop(1))
from app.cli.main import main
main(sys.argv[1:])
"""
_LIST = [
    {
        "name": "tiny",
        "title": "Tiny Model",
        "description": "Says nothing.",
        "size_mb": 1,
        "licence": "Apache-2.0",
        "terms": "open",
        "hub": "somebody/model",
    },
    {
        "name": "other",
        "title": "Other Model",
        "description": "Is not there.",
        "size_mb": 2000,
        "licence": "Its own terms",
        "terms": "own",
        "hub": "somebody/missing",
    },
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub") / "model"
    make_model(folder, "qwen3", eos=False, max_position_embeddings=1024)
    with Hub(folder).running(tmp_path_factory.mktemp("this-cache")) as running:
        yield running


def serving(hub: Hub, folder: Path) -> Server:
    """Returns a server with the guide, whose hub, cache and recommended list are the tests'."""
    (folder / "list.yaml").write_text(json.dumps(_LIST))
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    program = ("-c", _PROGRAM, str(folder / "list.yaml"))
    return Server(ROOT / "models/guide", folder / "data", environment=environment, program=program)


@pytest.fixture(scope="module")
def menu_server(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model stays."""
    with serving(hub, tmp_path_factory.mktemp("menu")) as server:
        yield server


@pytest.fixture
def own_menu_server(hub: Hub, tmp_path: Path) -> Iterator[Server]:
    """A server that has downloaded nothing, whose model the test swaps."""
    with serving(hub, tmp_path) as server:
        yield server


def open_menu(page: Page) -> None:
    page.get_by_role("button", name="Models", exact=True).click()
    expect(page.get_by_role("dialog", name="Models")).to_be_visible()


def test_a_failure_says_why_and_the_old_model_stays(menu_server: Server, new_browser: NewBrowser) -> None:
    chat = ChatPage(new_browser(menu_server).new_page(), menu_server.url).open()
    page = chat.page
    open_menu(page)
    expect(page.locator(".dm-models-recommended")).to_contain_text("2.0 GB · Its own terms (not open source)")
    page.get_by_role("button", name="Get Other Model").click()
    expect(page.locator(".dm-models-error")).to_contain_text("there is no model of that name, or it is private")
    page.get_by_label("From the Hugging Face Hub").fill("../../etc/passwd")
    page.keyboard.press("Enter")
    expect(page.locator(".dm-models-error")).to_contain_text("is neither on the recommended list nor a hub ID")
    expect(page.locator(".dm-models-loaded")).to_have_text("guide · ready")
    page.keyboard.press("Escape")
    assert chat.ask("Hi! What can you do?") != ""


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_the_menu_is_for_everyone(menu_server: Server, new_browser: NewBrowser, width: int, scheme: str) -> None:
    context = new_browser(menu_server, color_scheme=scheme, viewport={"width": width, "height": 844})
    page = ChatPage(context.new_page(), menu_server.url).open().page
    expect(page.locator(".dm-suggestion")).to_be_visible()
    open_menu(page)
    expect(page.get_by_role("button", name="Get Tiny Model")).to_be_visible()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"models-{width}-{scheme}.png")
    assert _violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    menu = page.get_by_role("dialog", name="Models").bounding_box()
    assert menu is not None
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= width
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName")
    assert focused.startswith(("Load", "Get", "INPUT")), focused


def test_a_download_is_cancelled(menu_server: Server, hub: Hub, new_browser: NewBrowser) -> None:
    page = ChatPage(new_browser(menu_server).new_page(), menu_server.url).open().page
    hub.paused.clear()
    hub.resume.clear()
    page.locator(".dm-suggestion-button").click()
    assert hub.paused.wait(60)
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator(".dm-models-download")).to_be_hidden()
    expect(page.locator(".dm-models-loaded")).to_have_text("guide · ready")
    expect(page.locator(".dm-model-progress")).to_be_empty()
    hub.resume.set()


def test_one_click_downloads_loads_and_swaps_while_the_old_model_serves(
    own_menu_server: Server, hub: Hub, new_browser: NewBrowser
) -> None:
    chat = ChatPage(new_browser(own_menu_server).new_page(), own_menu_server.url).open()
    page = chat.page
    expect(page.locator(".dm-suggestion")).to_contain_text("This model only knows Deskmate itself.")
    another = ChatPage(new_browser(own_menu_server).new_page(), own_menu_server.url).open()  # somebody else's page
    hub.paused.clear()
    hub.resume.clear()
    open_menu(page)
    page.get_by_role("button", name="Get Tiny Model").click()
    expect(page.locator(".dm-models-about")).to_contain_text("Downloading somebody/model")
    assert hub.paused.wait(60)
    expect(page.locator(".dm-model-progress")).to_contain_text("%")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Models", exact=True)).to_be_focused()
    assert chat.ask("Hi! What can you do?") != ""  # the old model serves
    expect(chat.replies.last.locator(".dm-reply-model")).to_have_text("guide")
    open_menu(another.page)
    expect(another.page.locator(".dm-models-about")).to_contain_text("Downloading somebody/model")
    hub.resume.set()
    expect(page.locator(".dm-status")).to_have_text("somebody/model · ready")
    expect(page.locator(".dm-toast")).to_have_text("Tiny Model is ready.")
    expect(another.page.locator(".dm-models-loaded")).to_have_text("somebody/model · ready")
    expect(another.page.locator(".dm-status")).to_have_text("somebody/model · ready")
    expect(page.locator(".dm-suggestion")).to_be_hidden()
    chat.open_settings()
    chat.set_number("Maximum length", "5")
    chat.ask("to the new model")
    expect(chat.replies.last.locator(".dm-reply-model")).to_have_text("somebody/model")
    chat.reload()
    expect(chat.page.locator(".dm-reply-model")).to_have_text(["guide", "somebody/model"])
