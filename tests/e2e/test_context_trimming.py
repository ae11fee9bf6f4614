"""Talking past the model's context: the talk goes on, and the page says what the model no longer reads."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import GUIDE_CONTEXT as CONTEXT
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

QUESTION = "What does the temperature do, and which one should I choose for short answers about my own work?"


def test_a_talk_goes_on_beyond_the_context_and_the_page_says_so(guide_chat: ChatPage) -> None:
    chat = guide_chat
    chat.open_settings()
    chat.set_number("Maximum length", "30")
    line = chat.page.locator(".dm-left-out:visible")
    for turn in range(12):
        chat.ask(f"{turn}. {QUESTION}")
        expect(chat.alert).to_have_text("")
        if line.count() == 2:
            break
    shown = line.all_inner_texts()
    assert len(shown) == 2, "the context was full twice"
    for text in shown:
        assert re.fullmatch(
            rf"\d+ earlier messages were left out, so that the model's {CONTEXT} tokens have room for this reply "
            r"and what follows\.",
            text,
        )
    counts = [int(text.split()[0]) for text in shown]
    assert counts[1] >= counts[0] + 2
    assert len(chat.users.all()) > len(shown), "it is said where it changes, not with every reply"
    chat.reload()
    expect(line).to_have_text(shown)


def test_a_reply_that_fills_the_context_says_that_it_did(guide_chat: ChatPage, guide_server: Server) -> None:
    """Behind the longest message that is accepted there is room for a token or two."""
    settings = {"system_prompt": "Be kind.", "temperature": 0}
    ask = f"{guide_server.url}/api/turns"
    first = guide_chat.page.request.post(ask, data={"text": "hi", "settings": settings}).json()
    guide_chat.open(first["conversation_id"]).wait_for_end()
    for words in range(CONTEXT, 0, -1):
        message = {"text": "a " * words, "conversation_id": first["conversation_id"]}
        answer = guide_chat.page.request.post(ask, data=message)
        if answer.status == 201:
            break
        assert answer.json()["error"]["code"] == "context_too_long"
    guide_chat.reload()
    guide_chat.wait_for_end()
    reply = guide_chat.replies.last
    expect(reply.locator(".dm-stats")).to_contain_text("reached the end of the model's context")
    expect(reply.locator(".dm-left-out")).to_have_text(
        f"2 earlier messages were left out, so that the model's {CONTEXT} tokens have room for this reply and what "
        "follows; the system prompt was kept."
    )


def test_a_message_that_does_not_fit_alone_is_refused_with_both_numbers(
    guide_chat: ChatPage, guide_server: Server
) -> None:
    conversation = seed_conversation(guide_server.data_dir, "earlier", ["hello", "hi"])
    chat = guide_chat.open(conversation)
    message = " ".join([QUESTION] * 40)
    chat.box.fill(message)
    chat.box.press("Enter")
    expect(chat.alert).to_have_text(
        re.compile(rf"This message is \d+ tokens long; the model reads at most {CONTEXT}, .*Shorten it\.")
    )
    expect(chat.box).to_have_value(message)
