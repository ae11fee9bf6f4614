"""The model in the settings panel: another one while the chat stays up, one that cannot be loaded, sleep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from testing.models import make_model
from tests.e2e.chat_page import ChatPage, letters
from tests.e2e.conftest import NewBrowser
from tests.e2e.server import Server

LOADING_MS = 60_000


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "other"
    make_model(folder, "qwen3", eos=False, max_position_embeddings=1024)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return folder


@pytest.fixture(scope="module")
def changing_server(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model the tests change."""
    server = Server(endless_model, tmp_path_factory.mktemp("data"), "--dtype", "float32")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.full
def test_a_reply_that_another_model_cuts_off_says_so(
    changing_server: Server, endless_model: Path, other_model: Path, new_browser: NewBrowser
) -> None:
    browser = new_browser(changing_server)
    chat = ChatPage(browser.new_page(), changing_server.url).open()
    chat.send("a long story")
    shown = chat.wait_for_text(20)
    swap = f"{changing_server.url}/api/engine/swap"
    answer = browser.request.post(swap, data={"model": str(other_model), "timeout": 0}, timeout=LOADING_MS)
    assert answer.ok, answer.text()
    assert letters(chat.wait_for_end()).startswith(letters(shown))
    expect(chat.replies.last.locator(".dm-note")).to_contain_text(
        re.compile(r"^Interrupted\. Another model was loaded before the reply was finished\.")
    )
    back = browser.request.post(swap, data={"model": str(endless_model)}, timeout=LOADING_MS)
    assert back.ok, back.text()


@pytest.mark.full
def test_another_model_is_loaded_while_the_chat_stays_up(
    changing_server: Server, other_model: Path, new_browser: NewBrowser, tmp_path: Path
) -> None:
    browser = new_browser(changing_server)
    chat = ChatPage(browser.new_page(), changing_server.url).open()
    page = chat.page
    chat.open_settings()
    chat.set_number("Maximum length", "20")
    first = chat.ask("to the first model")
    state, error = page.locator("#dm-model-state"), page.locator("#dm-model-error")
    expect(state).to_have_text("endless · ready")
    about = page.locator("#dm-model-about")
    expect(about).to_contain_text("parameters, float32 on cpu")
    expect(about).not_to_contain_text("LoRA")

    # One that cannot be loaded: the sentence, and the model as before.
    name, load = page.get_by_label("Another model"), page.get_by_role("button", name="Load", exact=True)
    name.fill(str(tmp_path / "nowhere"))
    load.click()
    expect(error).to_contain_text("There is no model folder at")
    expect(state).to_have_text("endless · ready")
    expect(name).to_have_value(str(tmp_path / "nowhere"))

    name.fill(str(other_model))
    name.press("Enter")
    expect(state).to_have_text("other · ready", timeout=LOADING_MS)
    expect(about).to_contain_text("The LoRA adapter in its folder is not applied.")
    expect(error).to_be_empty()
    expect(name).to_have_value("")
    expect(page.locator(".dm-status")).to_have_text("other · ready")
    assert chat.text(0) == first  # the conversation stays, and goes on
    chat.ask("to the second model")
    expect(chat.replies).to_have_count(2)

    page.get_by_role("button", name="Sleep").click()
    expect(state).to_have_text("other · asleep")
    expect(page.locator(".dm-status")).to_have_text("other · not ready")
    chat.box.fill("is anybody there?")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("asleep")
    expect(chat.box).to_have_value("is anybody there?")
    page.get_by_role("button", name="Wake up").click()
    expect(state).to_have_text("other · ready", timeout=LOADING_MS)
    expect(page.locator(".dm-status")).to_have_text("other · ready")
    chat.box.press("Enter")
    expect(chat.replies).to_have_count(3)
    chat.wait_for_end()
