"""The page says that the server cannot be reached, or that its model sleeps, for as long as that is so."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.server import Server


def test_the_network_goes_and_comes_back(chat: ChatPage) -> None:
    status = chat.page.locator(".dm-status")
    model = chat.page.locator("#dm-model-state")
    chat.open_settings()
    expect(model).to_have_text("endless · ready")
    chat.page.context.set_offline(True)
    try:
        chat.box.fill("is anybody there?")
        chat.box.press("Enter")
        expect(chat.alert).to_contain_text("Deskmate cannot be reached.")
        expect(status).to_have_text("endless · not reachable")
        expect(model).to_contain_text("Deskmate cannot be reached.")
    finally:
        chat.page.context.set_offline(False)
    expect(status).to_have_text("endless · ready")
    expect(model).to_have_text("endless · ready")  # though the server tells nothing new
    expect(chat.alert).to_be_empty()
    expect(chat.box).to_have_value("is anybody there?")


def test_the_model_wakes_up_elsewhere(chat: ChatPage, server: Server) -> None:
    status = chat.page.locator(".dm-status")
    request = chat.page.context.request
    assert request.post(f"{server.url}/api/engine/sleep", data={}).ok
    try:
        chat.box.fill("are you awake?")
        with chat.page.expect_response("**/ready"):  # it looks again by itself
            chat.box.press("Enter")
        expect(chat.alert).to_contain_text("asleep")
        expect(status).to_have_text("endless · not ready")
    finally:
        assert request.post(f"{server.url}/api/engine/wake", data={}).ok
    expect(status).to_have_text("endless · ready")
    expect(chat.alert).to_be_empty()
