"""Servers with the real engine, a real Chromium, and a watch on every request a page makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Browser, BrowserContext, Request, expect, sync_playwright

from testing.models import make_model
from tests.e2e.chat_page import ChatPage
from tests.e2e.elsewhere import Elsewhere
from tests.e2e.server import Server
from tests.fork_server import ROOT

NewTab = Callable[..., ChatPage]
NewBrowser = Callable[..., BrowserContext]

CONTEXT = 16_384  #: tokens; a reply of this length outlasts any test
GUIDE_CONTEXT = 256

TIMEOUT_MS = 120_000  #: a busy machine may take its time: pages were seen to stand still for over a minute
TEST_SECONDS = 420  #: room for a test to say what it waited for in vain
expect.set_options(timeout=TIMEOUT_MS)

#: The first is Chromium without what only a person at a screen needs, and quicker.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/"):
            item.add_marker(pytest.mark.browser)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the servers' last words with a failure."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Server):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report


def find_chromium() -> str:
    """The browser's path: ``CHROMIUM``, else the first known name on PATH."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [path for name in _BROWSERS if (path := shutil.which(name))]
    if not found:
        pytest.fail(
            "The browser tests need Chromium and found none. Install it with 'apt-get install chromium' (or "
            "'playwright install chromium'), or set CHROMIUM to the path of a Chromium or Chrome.",
            pytrace=False,
        )
    return found[0]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests. It ends with this package: its event loop would disturb asynchronous tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that knows no end: its replies run until they are stopped or reach their length."""
    path = tmp_path_factory.mktemp("models") / "endless"
    return make_model(path, eos=False, max_position_embeddings=CONTEXT, layers=4, hidden=128)


@pytest.fixture(scope="package")
def server(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the endless model, shared by the tests; each makes its own conversations."""
    with Server(endless_model, tmp_path_factory.mktemp("data"), "--dtype", "float32") as server:
        yield server


@pytest.fixture(scope="package")
def guide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the model that comes in the box, which reads no more than a few messages."""
    length = ("--max-model-len", str(GUIDE_CONTEXT))
    with Server(ROOT / "models/guide", tmp_path_factory.mktemp("guide-data"), *length) as server:
        yield server


@pytest.fixture
def own_server(endless_model: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may kill and start again."""
    with Server(endless_model, tmp_path / "data", "--dtype", "float32") as server:
        yield server


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """A scripted model server."""
    elsewhere = Elsewhere()
    yield elsewhere
    elsewhere.close()


class _PageMonitor:
    """What pages of a browser may not do: ask another origin, or fail in their scripts."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self._origin = f"{server.url}/"
        self._faults: list[str] = []
        self._failed: list[str] = []  # expected where a test goes away or cuts the line; it explains faults
        context.on("request", self._request)
        context.on("weberror", lambda error: self._faults.append(f"an error in the page: {error.error}"))
        context.on("requestfailed", lambda request: self._failed.append(f"{request.url}: {request.failure}"))

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._origin, "data:", "blob:")):
            self._faults.append(f"a request left for another origin: {request.url}")

    def check(self) -> None:
        """Fail for what happened since the last check."""
        faults, failed = self._faults[:], self._failed[:]
        self._faults.clear()
        self._failed.clear()
        assert not faults, "\n".join([*faults, "requests that failed:", *failed])


def _new_context(browser: Browser, **options: object) -> BrowserContext:
    # Dots that pulse for ever would be drawn by the processor, which all the others need.
    usual = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
    context = browser.new_context(**{**usual, **options})  # type: ignore[arg-type]
    context.set_default_timeout(TIMEOUT_MS)
    return context


@pytest.fixture
def new_browser(browser: Browser) -> Iterator[NewBrowser]:
    """Makes browsers with storage, tabs and connections of their own."""
    made: list[tuple[BrowserContext, _PageMonitor]] = []

    def make(server: Server, **options: object) -> BrowserContext:
        context = _new_context(browser, **options)
        made.append((context, _PageMonitor(context, server)))
        return context

    yield make
    for context, _ in made:
        context.close()
    for _, watch in made:
        watch.check()


@pytest.fixture(scope="package")
def _shared_browser(browser: Browser, server: Server) -> Iterator[tuple[BrowserContext, _PageMonitor]]:
    """Kept for all tests, as people keep theirs: its cache makes the page load quickly."""
    context = _new_context(browser)
    yield context, _PageMonitor(context, server)
    context.close()


@pytest.fixture
def context(_shared_browser: tuple[BrowserContext, _PageMonitor], server: Server) -> Iterator[BrowserContext]:
    """A browser at the server with the endless model, its storage empty. No reply may outlast a test."""
    context, watch = _shared_browser
    yield context
    for page in context.pages:
        page.evaluate("localStorage.clear()")
        page.close()
    watch.check()
    assert _stop_replies(context, server) == [], "these replies still ran"


def _stop_replies(context: BrowserContext, server: Server) -> list[str]:
    """Stop what still runs, for it would slow the other tests down; returns the conversations' titles."""
    conversations = f"{server.url}/api/conversations"

    def request(method: str, url: str) -> APIResponse:
        # A connection that was not used for some seconds is closed by the server, perhaps just now.
        data: dict[str, object] | None = None if method == "GET" else {}
        return context.request.fetch(url, method=method, data=data, max_retries=3)

    running = [item for item in request("GET", conversations).json()["items"] if item["streaming"]]
    for item in running:
        turn = request("GET", f"{conversations}/{item['id']}").json()["active_turn_id"]
        request("POST", f"{server.url}/api/turns/{turn}/stop")
    return [item["title"] for item in running]


@pytest.fixture
def new_tab(context: BrowserContext, server: Server) -> NewTab:
    """Opens tabs of one browser, at a conversation or a new chat."""

    def make(conversation_id: str | None = None) -> ChatPage:
        return ChatPage(context.new_page(), server.url).open(conversation_id)

    return make


@pytest.fixture
def chat(new_tab: NewTab) -> ChatPage:
    """A tab with a new chat."""
    return new_tab()


@pytest.fixture(scope="package")
def _guide_browser(browser: Browser, guide_server: Server) -> Iterator[tuple[BrowserContext, _PageMonitor]]:
    """Kept for all tests, as the everyday one."""
    context = _new_context(browser)
    yield context, _PageMonitor(context, guide_server)
    context.close()


@pytest.fixture
def guide_chat(_guide_browser: tuple[BrowserContext, _PageMonitor], guide_server: Server) -> Iterator[ChatPage]:
    """A tab with a new chat with the guide."""
    context, watch = _guide_browser
    chat = ChatPage(context.new_page(), guide_server.url).open()
    yield chat
    chat.page.evaluate("localStorage.clear()")
    chat.page.close()
    watch.check()


@pytest.fixture(scope="module")
def reader(browser: Browser, server: Server) -> Iterator[ChatPage]:
    """A tab that stays open through the tests of a file, to read one conversation after another."""
    context = _new_context(browser)
    watch = _PageMonitor(context, server)
    yield ChatPage(context.new_page(), server.url).open()
    context.close()
    watch.check()
