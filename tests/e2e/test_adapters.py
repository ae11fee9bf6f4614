"""LoRA adapters in the page: chosen in a chat's settings, kept with it, named below its replies."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from testing.lora import make_adapter
from testing.models import make_model
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server


@pytest.mark.full
def test_a_chat_chooses_an_adapter(chat: ChatPage, new_browser: NewBrowser, tmp_path: Path) -> None:
    chat.open_settings()
    expect(chat.page.locator(".dm-control-adapter")).to_be_hidden()  # none is loaded
    model = make_model(tmp_path / "base", eos=False)
    adapter = make_adapter(tmp_path / "adapter", model)
    server = Server(model, tmp_path / "data", "--dtype", "float32", "--lora", f"sql={adapter}")
    with server:
        other = ChatPage(new_browser(server).new_page(), server.url).open()
        other.open_settings()
        other.set_number("Maximum length", "8")
        other.page.get_by_label("Adapter").click()
        other.page.get_by_role("option", name="sql").click()
        other.ask("which are you?")
        expect(other.replies.last.locator(".dm-reply-model")).to_have_text("sql")
        other.reload().open_settings()
        expect(other.page.get_by_label("Adapter")).to_have_value("sql")

        assert other.page.request.delete(f"{server.url}/api/engine/adapters/sql").ok
        other.reload().open_settings()
        expect(other.page.get_by_label("Adapter")).to_have_value("sql (not loaded)")
        other.box.fill("again")
        other.box.press("Enter")
        expect(other.page.get_by_text("The adapter sql of this chat isn't loaded.")).to_be_visible()
