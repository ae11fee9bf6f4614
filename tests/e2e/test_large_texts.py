"""A 100 KB reply and a conversation of 200 messages: they open, scroll, and leave the page usable."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab
from tests.e2e.seed import seed_conversation
from tests.e2e.server import Server

_PARAGRAPH = "A paragraph with **bold** words, `code` and [a link](https://example.com/), number {}.\n\n"
_MIXED = "".join(
    _PARAGRAPH.format(i) + (f"- item {i}\n- another\n\n" if i % 3 else f"```python\nprint({i})\n```\n\n")
    for i in range(800)
)


def _shapes() -> dict[str, str]:
    return {
        "mixed": _MIXED[:100_000],
        "one paragraph": "words without any end " * 4_600,
        "one code block": "```\n" + "let x = f(y);\n" * 7_200,
        "one list": "".join(f"- item number {i} of a long list\n" for i in range(3_000)),
        # What a looping model writes, and what parsers of markdown take hours for.
        "deep quotes": "> " * 2_000 + "deep",
        "deep list": "- " * 2_000 + "deep",
        "open emphasis": "_a" * 50_000,
        "open strikes": "~~a" * 30_000,
        "open brackets": "[a](" * 20_000,
        "an address without end": "a." * 50_000 + "@",
    }


@pytest.mark.parametrize("shape", list(_shapes()))
def test_reply_of_100_kb_leaves_the_page_usable(server: Server, reader: ChatPage, shape: str) -> None:
    chat = reader.go(seed_conversation(server.data_dir, f"large: {shape}", ["write a lot", _shapes()[shape]]))
    expect(chat.page.locator(".dm-title")).to_have_text(f"large: {shape}")
    expect(chat.page.locator(".dm-latest")).to_be_hidden()
    assert len(chat.text()) > 1_000
    chat.box.fill("still usable")
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("really")
    expect(chat.box).to_have_value("still usable\nreally")


def test_conversation_of_200_messages(server: Server, new_tab: NewTab) -> None:
    texts = [f"question {i // 2}" if i % 2 == 0 else f"answer {i // 2}\n\n{_PARAGRAPH.format(i)}" for i in range(200)]
    chat = new_tab(seed_conversation(server.data_dir, "two hundred messages", texts))
    expect(chat.page.locator(".dm-message")).to_have_count(100)
    expect(chat.replies.last).to_be_in_viewport()

    chat.page.locator(".dm-scroll").evaluate("element => element.scrollTo(0, 0)")
    first = chat.page.locator(".dm-message").first
    before = first.bounding_box()
    chat.page.get_by_role("button", name="Show earlier messages").click()
    expect(chat.page.locator(".dm-message")).to_have_count(200)
    after = chat.page.locator(".dm-message").nth(100).bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) < 60, "what was being read stays where it was"
    expect(chat.page.get_by_role("button", name="Show earlier messages")).to_be_hidden()
    expect(chat.users.first).to_have_text("question 0")
    chat.box.fill("still usable")
    expect(chat.box).to_have_value("still usable")
