"""Two servers on one PostgreSQL behind a proxy, and a browser that does not know that there are two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from testing.proxy import COOKIE, Proxy
from tests.e2e.chat_page import REPLY_MS, ChatPage, letters
from tests.e2e.conftest import NewBrowser
from tests.faults.conftest import Start, launch, server_host, start  # noqa: F401  # fixtures
from tests.faults.processes import ServerProcess
from tests.faults.scripted_replies import make_question, whole_reply

pytestmark = [pytest.mark.full, pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]


@pytest.fixture
def replicas(launch: Start) -> list[ServerProcess]:  # noqa: F811
    """Two servers, slow enough to be interrupted; neither takes the other for dead because the machine is busy."""
    servers = [launch(page=True, delay=0.03, lease_seconds=5) for _ in range(2)]
    for server in servers:
        server.wait_until_ready()
    return servers


@pytest.fixture
def careless(replicas: list[ServerProcess]) -> Iterator[Proxy]:
    """A proxy that sends each request to the other server than the one before."""
    with Proxy([server.url for server in replicas]).running() as proxy:
        yield proxy


@pytest.fixture
def faithful(replicas: list[ServerProcess]) -> Iterator[Proxy]:
    """A proxy that keeps a browser at one server while that lives."""
    with Proxy([server.url for server in replicas], sticky=True).running() as proxy:
        yield proxy


def test_each_request_may_go_to_another_server(careless: Proxy, new_browser: NewBrowser) -> None:
    """Nothing of the page lives in one process: not its events, nor what Gradio keeps for it."""
    chat = ChatPage(new_browser(careless).new_page(), careless.url).open()
    question = make_question(1, 2000)
    chat.send(question)
    shown = chat.wait_for_text(60)
    chat.reload()
    again = chat.wait_for_text(len(shown) + 40)
    assert letters(again).startswith(letters(shown))
    whole = chat.stop()
    assert letters(whole_reply(question)).startswith(letters(whole))
    assert letters(chat.ask(make_question(2, 5))) == letters(whole_reply(make_question(2, 5)))
    chat.reload()
    assert letters(chat.text(0)) == letters(whole)
    expect(chat.replies).to_have_count(2)
    chat.open_settings()
    expect(chat.page.locator("#dm-model-state")).to_contain_text("fake")
    assert min(careless.served.values()) > 5


def test_the_server_of_a_browser_dies_and_another_one_goes_on(
    faithful: Proxy, replicas: list[ServerProcess], new_browser: NewBrowser
) -> None:
    context = new_browser(faithful)
    chat = ChatPage(context.new_page(), faithful.url).open()
    question = make_question(3, 400)
    chat.send(question)
    chat.wait_for_text(60)
    (home,) = [int(cookie["value"]) for cookie in context.cookies() if cookie["name"] == COOKIE]
    assert set(faithful.served) == {home}
    replicas[home].kill()
    shown = chat.wait_for_end()
    expect(chat.replies.last).to_have_attribute("data-status", "interrupted")
    assert letters(whole_reply(question)).startswith(letters(shown))
    chat.replies.last.get_by_role("button", name="Continue").click()
    expect(chat.replies.last).to_have_attribute("data-status", "complete", timeout=REPLY_MS)
    assert letters(chat.text()) == letters(whole_reply(question))
    assert faithful.served[1 - home] > 0


def test_a_temporary_chat_ends_with_its_server(
    faithful: Proxy, replicas: list[ServerProcess], new_browser: NewBrowser
) -> None:
    context = new_browser(faithful)
    chat = ChatPage(context.new_page(), faithful.url).open()
    chat.page.get_by_role("button", name="Temporary chat").click()
    assert letters(chat.ask(make_question(4, 5))) == letters(whole_reply(make_question(4, 5)))
    chat.send(make_question(5, 2000))
    chat.wait_for_text(60)
    (home,) = [int(cookie["value"]) for cookie in context.cookies() if cookie["name"] == COOKIE]
    replicas[home].kill()
    expect(chat.alert).to_contain_text("This temporary chat has ended")
    assert letters(chat.ask(make_question(6, 5))) == letters(whole_reply(make_question(6, 5)))
