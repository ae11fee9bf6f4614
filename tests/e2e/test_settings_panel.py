"""Settings belong to the conversation: saved with it, shown again with it, used by its replies."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Request, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.conftest import NewTab


def _short_chat(chat: ChatPage, message: str) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "20")
    chat.ask(message)


def test_settings_survive_a_reload(chat: ChatPage) -> None:
    _short_chat(chat, "with settings")
    chat.set_number("Temperature", "0.35")
    chat.set_number("Top-k", "17")
    chat.set_number("Seed", "1234")
    chat.page.get_by_label("Stop strings").press_sequentially("END\nSTOP", delay=30)
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")

    chat.reload().open_settings()
    expect(chat.setting("Temperature")).to_have_value("0.35")
    expect(chat.setting("Top-k")).to_have_value("17")
    expect(chat.setting("Seed")).to_have_value("1234")
    expect(chat.setting("Maximum length")).to_have_value("20")
    expect(chat.page.get_by_label("Stop strings")).to_have_value("END\nSTOP")


@pytest.mark.full
def test_settings_of_a_chat_not_yet_begun_survive_a_reload_and_go_with_it(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Temperature", "1.4")
    chat.set_number("Maximum length", "12")
    chat.reload().open_settings()
    expect(chat.setting("Temperature")).to_have_value("1.4")
    chat.ask("twelve tokens at most")
    expect(chat.replies.last.locator(".dm-stats")).to_have_text(re.compile(r"^12 tokens "))
    chat.reload().open_settings()
    expect(chat.setting("Temperature")).to_have_value("1.4")


def test_each_conversation_has_its_own(chat: ChatPage, new_tab: NewTab) -> None:
    _short_chat(chat, "the warm one")
    chat.set_number("Temperature", "1.6")
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
    other = new_tab()
    _short_chat(other, "the cold one")
    other.set_number("Temperature", "0.1")
    other.row("the warm one").first.locator("a").click()
    expect(other.setting("Temperature")).to_have_value("1.6")
    other.row("the cold one").first.locator("a").click()
    expect(other.setting("Temperature")).to_have_value("0.1")


def test_presets_and_reset(chat: ChatPage) -> None:
    chat.open_settings()
    expect(chat.page.get_by_role("radio", name="Model default")).to_be_checked()
    default = chat.setting("Temperature").input_value()
    chat.page.get_by_role("radio", name="Precise").check()
    expect(chat.setting("Temperature")).to_have_value("0.2")
    chat.set_number("Temperature", "0.25")
    expect(chat.page.get_by_role("radio", name="Precise")).not_to_be_checked()
    chat.page.get_by_role("radio", name="Creative").check()
    expect(chat.setting("Min-p")).to_have_value("0.05")
    chat.page.get_by_role("button", name="Reset to").click()
    expect(chat.setting("Temperature")).to_have_value(default)
    expect(chat.page.get_by_role("radio", name="Model default")).to_be_checked()


def test_system_prompt_from_the_library_and_own_text(chat: ChatPage) -> None:
    _short_chat(chat, "with a system prompt")
    text = chat.page.get_by_label("System prompt text")
    choice = chat.page.get_by_role("combobox", name="System prompt")
    choice.click()
    chat.page.get_by_role("option").nth(1).click()
    expect(text).not_to_have_value("")
    chosen, words = choice.input_value(), text.input_value()
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
    chat.reload().open_settings()
    expect(choice).to_have_value(chosen)
    expect(text).to_have_value(words)

    text.fill("Answer in one word.")
    expect(choice).to_have_value("Custom")
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
    chat.reload().open_settings()
    expect(choice).to_have_value("Custom")
    expect(text).to_have_value("Answer in one word.")


def test_advanced_parameters_are_hidden_until_asked_for_and_say_that_they_are_changed(chat: ChatPage) -> None:
    _short_chat(chat, "with penalties")
    advanced = chat.page.get_by_role("button", name="Advanced")
    expect(chat.setting("Presence penalty")).to_be_hidden()
    expect(advanced).to_have_attribute("aria-expanded", "false")
    advanced.click()
    expect(advanced).to_have_attribute("aria-expanded", "true")
    chat.set_number("Presence penalty", "1.5")
    chat.set_number("Typical-p", "0.9")
    expect(advanced).to_have_text(re.compile("2 changed"))
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")

    chat.reload().open_settings()
    advanced = chat.page.get_by_role("button", name="Advanced")
    expect(advanced).to_have_text(re.compile("2 changed"))
    advanced.click()
    expect(chat.setting("Presence penalty")).to_have_value("1.5")
    expect(chat.setting("Typical-p")).to_have_value("0.9")
    chat.page.get_by_role("button", name="Reset to").click()
    expect(chat.setting("Presence penalty")).to_have_value("0")
    expect(advanced).not_to_have_text(re.compile("changed"))


def test_every_control_says_what_it_does(chat: ChatPage) -> None:
    chat.open_settings()
    chat.page.get_by_role("button", name="Advanced").click()
    blocks = chat.page.locator("#dm-settings .form .block").filter(visible=True)  # some are for models that think
    assert blocks.count() >= 12
    for block in blocks.all():
        title, _, explanation = block.inner_text().strip().partition("\n")
        assert len(explanation.strip()) > 15, f"{title} explains nothing"


def _hold_choices(chat: ChatPage) -> None:
    """Choices reach their listeners only once `held` is called, each. What the model panel asks for has no data."""
    chat.page.evaluate(
        """() => {
          const real = window.fetch;
          window.held = [];
          window.stopHolding = () => {
            window.held.forEach((go) => go());
            window.fetch = real;
          };
          window.fetch = async (url, ...rest) => {
            const isChoice = String(url).includes("gradio_api/run/") && JSON.parse(rest[0].body).data.length > 0;
            if (isChoice) await new Promise((go) => window.held.push(go));
            return real(url, ...rest);
          };
        }"""
    )


def _sent_turns(chat: ChatPage) -> list[dict[str, Any]]:
    """The bodies of the turns that the page requests from now on."""
    sent: list[dict[str, Any]] = []

    def record(request: Request) -> None:
        if request.url.endswith("/api/turns"):
            sent.append(request.post_data_json or {})

    chat.page.on("request", record)
    return sent


def test_a_preset_chosen_just_before_a_message_goes_with_it(chat: ChatPage) -> None:
    chat.open_settings()
    chat.set_number("Maximum length", "5")
    _hold_choices(chat)
    sent = _sent_turns(chat)
    chat.page.get_by_role("radio", name="Precise").check()
    chat.page.wait_for_function("window.held.length === 1")
    chat.page.get_by_role("radio", name="Creative").check()
    chat.box.fill("with a preset")
    chat.box.press("Enter")
    assert sent == []  # it waits for the preset
    chat.page.evaluate("window.held[0]()")
    expect(chat.users).to_have_count(1)
    assert isinstance(settings := sent[0]["settings"], dict)
    assert (settings["preset"], settings["temperature"], settings["max_tokens"]) == ("creative", 1.1, 5)
    chat.wait_for_end()  # of a short reply, but it may outlast the test on a busy machine


def test_a_preset_does_not_follow_into_another_chat(chat: ChatPage) -> None:
    _short_chat(chat, "the one that is left")
    _hold_choices(chat)
    before = chat.setting("Temperature").input_value()
    chat.page.get_by_role("radio", name="Precise").check()
    chat.page.wait_for_function("window.held.length === 1")
    chat.go(None)
    expect(chat.page.get_by_role("radio", name="Model default")).to_be_checked()
    with chat.page.expect_response(lambda one: "gradio_api/run/" in one.url):
        chat.page.evaluate("window.held[0]()")
    chat.page.wait_for_timeout(500)
    expect(chat.setting("Temperature")).to_have_value(before)
    expect(chat.page.get_by_role("radio", name="Model default")).to_be_checked()
    assert chat.page.evaluate("window.deskmate.settings.value.temperature") is None


def _choose_prompt(chat: ChatPage, title: str) -> None:
    chat.page.locator(".dm-prompt input").click()
    chat.page.get_by_role("option", name=title, exact=True).click()


@pytest.mark.full
def test_the_prompt_chosen_last_goes_with_a_message_and_a_late_one_stays_out_of_other_chats(chat: ChatPage) -> None:
    _short_chat(chat, "the one that is left")
    choice = chat.page.get_by_role("combobox", name="System prompt")
    titles = chat.page.evaluate("window.deskmate.options.prompts.map(({title}) => title)")
    names = chat.page.evaluate("window.deskmate.options.prompts.map(({name}) => name)")
    _hold_choices(chat)
    sent = _sent_turns(chat)
    _choose_prompt(chat, titles[0])
    chat.page.wait_for_function("window.held.length > 0")
    first = chat.page.evaluate("window.held.length")  # a dropdown may raise its event more than once
    _choose_prompt(chat, titles[1])
    chat.box.fill("with a prompt")
    chat.box.press("Enter")
    chat.page.wait_for_timeout(300)
    assert sent == []  # it waits for the prompt
    chat.page.evaluate("window.held.forEach((go) => go())")
    chat.page.wait_for_function(f"window.held.length > {first}")  # the one chosen last is asked for by itself
    assert sent == []
    with chat.page.expect_request("**/api/turns"):  # this model refuses system prompts, so the turn itself fails
        chat.page.evaluate("window.stopHolding()")
    settings = sent[0]["settings"]
    assert (settings["system_prompt_name"], settings["system_prompt"]) == (names[1], "")
    expect(choice).to_have_value(titles[1])

    _hold_choices(chat)
    _choose_prompt(chat, titles[0])
    chat.page.wait_for_function("window.held.length > 0")
    chat.go(None)
    expect(choice).to_have_value("None")
    with chat.page.expect_response(lambda one: "gradio_api/run/" in one.url):
        chat.page.evaluate("window.held.forEach((go) => go())")
    chat.page.wait_for_timeout(500)
    expect(choice).to_have_value("None")
    expect(chat.page.locator(".dm-prompt-text textarea")).to_have_value("")
    assert chat.page.evaluate("window.deskmate.settings.value.system_prompt_name") is None


def test_a_text_written_after_a_prompt_was_chosen_stays(chat: ChatPage) -> None:
    chat.open_settings()
    text = chat.page.locator(".dm-prompt-text textarea")
    expect(chat.page.locator(".dm-prompt-text")).to_have_css("background-color", "rgba(0, 0, 0, 0)")
    titles = chat.page.evaluate("window.deskmate.options.prompts.map(({title}) => title)")
    _hold_choices(chat)
    _choose_prompt(chat, titles[0])
    chat.page.wait_for_function("window.held.length > 0")
    text.fill("Answer in one word.")
    expect(chat.page.get_by_role("combobox", name="System prompt")).to_have_value("Custom")
    with chat.page.expect_response(lambda one: "gradio_api/run/" in one.url):
        chat.page.evaluate("window.held.forEach((go) => go())")
    chat.page.wait_for_timeout(500)
    expect(text).to_have_value("Answer in one word.")
    expect(chat.page.get_by_role("combobox", name="System prompt")).to_have_value("Custom")
    assert chat.page.evaluate("window.deskmate.settings.value.system_prompt") == "Answer in one word."


@pytest.mark.full
def test_without_a_server_a_prompt_is_refused_but_none_and_an_own_text_are_not(chat: ChatPage) -> None:
    with chat.page.expect_event("requestfinished", lambda one: "gradio_api/run/" in one.url):  # as in the next test
        chat.open_settings()
    note = chat.page.locator(".dm-settings-note")
    choice = chat.page.get_by_role("combobox", name="System prompt")
    text = chat.page.locator(".dm-prompt-text textarea")
    titles = chat.page.evaluate("window.deskmate.options.prompts.map(({title}) => title)")
    chat.page.context.set_offline(True)
    _choose_prompt(chat, titles[0])
    expect(note).to_contain_text("Deskmate cannot be reached.")
    expect(choice).to_have_value("None")
    expect(text).to_have_value("")
    _choose_prompt(chat, "Custom")
    expect(choice).to_have_value("Custom")
    expect(note).to_have_text("")
    text.fill("Answer in one word.")
    chat.page.wait_for_timeout(500)  # a late answer would change it
    expect(text).to_have_value("Answer in one word.")
    _choose_prompt(chat, "None")
    expect(text).to_have_value("")
    chat.page.context.set_offline(False)
    _choose_prompt(chat, titles[0])  # the listeners are alive
    expect(text).not_to_have_value("")
    expect(choice).to_have_value(titles[0])
    _choose_prompt(chat, "None")
    expect(text).to_have_value("")
    with chat.page.expect_event("requestfinished", lambda one: "gradio_api/run/" in one.url):
        _choose_prompt(chat, "Custom")
    chat.page.wait_for_timeout(500)
    expect(choice).to_have_value("Custom")


def test_without_a_server_a_preset_is_refused_and_the_panel_tells_what_holds(chat: ChatPage) -> None:
    # Not while the model panel asks for its state: if its request is lost, an unpatched Gradio ends all listeners.
    with chat.page.expect_event("requestfinished", lambda one: "gradio_api/run/" in one.url):
        chat.open_settings()
    before = chat.setting("Temperature").input_value()
    chat.page.context.set_offline(True)
    chat.page.get_by_role("radio", name="Precise").click()  # it does not stay checked
    expect(chat.page.locator(".dm-settings-note")).to_contain_text("Deskmate cannot be reached.")
    expect(chat.page.get_by_role("radio", name="Model default")).to_be_checked()
    expect(chat.setting("Temperature")).to_have_value(before)
    chat.page.context.set_offline(False)
    chat.page.get_by_role("radio", name="Precise").check()  # the listeners are alive
    expect(chat.setting("Temperature")).to_have_value("0.2")


def test_a_reply_is_held_to_a_json_schema(chat: ChatPage) -> None:
    chat.open_settings()
    chat.page.locator(".dm-advanced-toggle").click()
    schema = chat.page.get_by_label("JSON schema")
    schema.fill('{"enum": ["yes", "no"]}')
    expect(chat.page.locator(".dm-advanced-changed")).to_have_text("1 changed")
    assert chat.ask("yes or no?").strip() in ('"yes"', '"no"')

    schema.fill('{"enum": [}')
    expect(chat.page.locator(".dm-settings-note")).to_contain_text("The JSON schema is not JSON")
    schema.fill('{"type": "string", "minLength": 2, "maxLength": 1}')
    expect(chat.page.locator(".dm-settings-note")).to_have_text("Saved with this conversation.")
    chat.box.fill("impossible")
    chat.box.press("Enter")
    expect(chat.alert).to_contain_text("The JSON schema in the settings cannot be used")
    schema.fill("")
    expect(chat.page.locator(".dm-advanced-changed")).to_have_text("")


def test_each_setting_has_a_sentence_and_a_picture_that_follows_its_value(chat: ChatPage) -> None:
    chat.open_settings()
    chat.page.locator(".dm-advanced-toggle").click()
    parts = {name: f".dm-control-{name} .dm-setting-picture" for name in ("temperature", "top_k", "typical_p", "seed")}
    for part in parts.values():
        expect(chat.page.locator(part)).to_have_attribute("aria-hidden", "true")
    kept = chat.page.locator(f"{parts['top_k']} .dm-shape-kept")
    chat.set_number("Top-k", "3")
    expect(kept).to_have_count(3)
    chat.set_number("Top-k", "7")
    expect(kept).to_have_count(7)
    pictures = chat.page.locator("#dm-settings .dm-setting-picture")
    for picture in pictures.all():
        control = picture.locator("xpath=ancestor::*[contains(@class, 'dm-control-')][1]")
        assert control.inner_text().strip().endswith("."), "a label, and a sentence below it"
