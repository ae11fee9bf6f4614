"""What cannot be sent is explained in the page, and what was typed is still there."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import CONTEXT


def test_too_long_for_the_context(chat: ChatPage) -> None:
    text = "word " * 9_000
    chat.box.fill(text)
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text(re.compile(f"{CONTEXT}|{CONTEXT:,}"))
    numbers = [int(digits.replace(",", "")) for digits in re.findall(r"\d[\d,]*", chat.alert.inner_text())]
    assert max(numbers) > CONTEXT, "its own length is said too"
    expect(chat.box).to_have_value(text)
    expect(chat.users).to_have_count(0)


@pytest.mark.parametrize(("label", "value"), [("Seed", "-5"), ("Maximum length", "0")])
def test_parameter_out_of_range(chat: ChatPage, label: str, value: str) -> None:
    chat.open_settings()
    chat.set_number(label, value)
    chat.box.fill("with a wrong setting")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text(f"{label} must be ")
    expect(chat.box).to_have_value("with a wrong setting")
    expect(chat.users).to_have_count(0)


def test_server_that_does_not_answer(chat: ChatPage) -> None:
    chat.page.route("**/api/turns", lambda route: route.abort())
    chat.box.fill("nobody hears this")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("cannot be reached")
    expect(chat.box).to_have_value("nobody hears this")
    chat.page.unroute("**/api/turns")
    chat.box.press("Enter")
    expect(chat.users).to_have_text(["nobody hears this"])
    expect(chat.alert).to_be_empty()
    chat.wait_for_text(1)
    chat.stop()


def test_unsent_text_survives_a_reload(chat: ChatPage) -> None:
    chat.box.fill("not sent yet")
    chat.reload()
    expect(chat.box).to_have_value("not sent yet")
