"""A model that thinks: its thoughts are folded above the answer, stay after a reload, and can be turned off."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from testing.models import make_model
from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

THINKS = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking is not defined or enable_thinking %}"
    "<think>\n{% endif %}{% endif %}{# </think> #}"
)


def thinking_server(folder: Path) -> Server:
    model = make_model(folder / "thinker", eos=False, layers=4, hidden=128)
    (model / "chat_template.jinja").write_text(THINKS)
    return Server(model, folder / "data", "--dtype", "float32")


def thoughts(chat: ChatPage) -> Locator:
    return chat.replies.last.locator("details.dm-thoughts")


def test_thoughts_are_folded_above_the_answer(new_browser: NewBrowser, tmp_path: Path) -> None:
    with thinking_server(tmp_path) as server:
        chat = ChatPage(new_browser(server).new_page(), server.url).open()
        chat.open_settings()
        chat.set_number("Maximum length", "60")
        chat.set_number("Maximum thinking", "25")
        answer = chat.ask("think first")
        assert answer.strip()
        folded = thoughts(chat)
        expect(folded.locator("summary")).to_have_text(re.compile(r"^Thought for \d+ s$"))
        expect(folded.locator(".dm-thoughts-text")).to_be_hidden()

        folded.locator("summary").click()
        expect(folded.locator(".dm-thoughts-text")).to_be_visible()
        thought = folded.locator(".dm-thoughts-text").inner_text()
        assert thought.strip()

        chat.reload()
        assert chat.text() == answer
        thoughts(chat).locator("summary").click()
        expect(thoughts(chat).locator(".dm-thoughts-text")).to_be_visible()
        assert thoughts(chat).locator(".dm-thoughts-text").inner_text() == thought

        chat.open_settings()
        chat.page.locator(".dm-control-thinking").get_by_role("radio", name="Off").check()
        expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
        chat.ask("answer at once")
        expect(thoughts(chat)).to_be_hidden()


def test_a_model_without_a_switch_offers_no_thinking(chat: ChatPage) -> None:
    chat.open_settings()
    expect(chat.page.locator(".dm-control-thinking")).to_be_hidden()
    expect(chat.page.locator(".dm-control-max_thinking_tokens")).to_be_hidden()
