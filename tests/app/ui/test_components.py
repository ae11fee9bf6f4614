"""The Gradio components as a Python developer meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio.data_classes import _StaticFiles

from app.ui.component_files import files_served_at
from app.ui.components import Chat, Header
from app.ui.static_files import STATIC_DIR

HISTORY = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def props(component: gr.HTML) -> dict[str, Any]:
    return dict(component.get_config()["props"])


def test_the_messages_of_a_chat_are_its_value() -> None:
    chat = Chat(HISTORY)
    assert chat.get_config()["value"] == HISTORY
    assert chat.postprocess(None) == chat.preprocess("") == chat.preprocess(None) == []
    assert json.loads(json.dumps(chat.preprocess(HISTORY))) == HISTORY


def test_a_message_keeps_keys_that_the_chat_does_not_know() -> None:
    message = {"role": "user", "content": "Hi", "metadata": {"title": "mine"}, "mine": 3}
    assert Chat().postprocess([message]) == [message]


def test_the_chat_takes_what_gradios_own_chat_takes() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
    assert Chat().preprocess([{"role": "user", "content": parts}])[0]["content"] == "One\n\ntwo"
    assert Chat().postprocess([gr.ChatMessage(content="Hello")])[0]["content"] == "Hello"


def test_the_messages_that_a_listener_changes_are_not_those_that_were_sent() -> None:
    """Gradio sends the difference between two yields of a generator, which may yield one list again and again."""
    messages = [{"role": "assistant", "content": "He"}]
    sent = Chat().postprocess(messages)
    messages[-1]["content"] += "llo"
    assert sent[-1]["content"] == "He"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("Hi", "The value of a chat: Input should be a valid list"),
        ({"role": "user"}, "The value of a chat: Input should be a valid list"),
        (["Hi"], "Message 0 of the chat: Input should be a valid dictionary"),
        (
            [*HISTORY, {"role": "robot", "content": ""}],
            "Message 2 of the chat, role: Input should be 'user', 'assistant'",
        ),
        ([{"role": "user"}], "Message 0 of the chat, content: Field required"),
        ([{"role": "user", "content": None}], "Message 0 of the chat, content: Input should be a valid string"),
        ([{"role": "user", "content": [{"path": "a.png"}]}], "content: .*shows text only, no files"),
        ([{**HISTORY[0], "status": "done"}], "Message 0 of the chat, status: Input should be 'streaming'"),
        ([{**HISTORY[1], "stats": {"prompt_tokens": "x"}}], "Message 0 of the chat, stats, prompt_tokens: "),
        ([{**HISTORY[1], "feedback": {"rating": "meh"}}], "Message 0 of the chat, feedback, rating: "),
        ([{**HISTORY[0], "id": "a"}, {**HISTORY[1], "id": "a"}], "different ids, but 'a' occurs more than once"),
    ],
)
def test_a_wrong_value_is_refused_by_what_is_wrong(value: Any, problem: str) -> None:
    for refuse in (Chat().postprocess, Chat().preprocess, Chat):
        with pytest.raises(ValueError, match=problem):
            refuse(value)


def test_an_unknown_action_or_panel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown actions: fork, undo\. Known: copy, edit"):
        Chat(actions=["copy", "undo", "fork"])
    with pytest.raises(ValueError, match=r"Unknown panels: top\."):
        Header(panels=["top"])


def test_the_title_of_a_header_is_its_value() -> None:
    assert Header("Hi").get_config()["value"] == "Hi"
    assert Header().preprocess(None) == Header().postprocess(None) == ""
    with pytest.raises(ValueError, match="must be a string"):
        Header().postprocess(3)


def test_the_script_gets_the_props() -> None:
    config = props(Chat(actions=("copy",), examples=("One",), height=None))
    assert (config["actions"], config["examples"], config["height"]) == (["copy"], ["One"], None)
    assert props(Header(menu=("Sign out",)))["menu"] == ["Sign out"]


def test_every_event_has_a_listener_and_is_documented() -> None:
    with gr.Blocks(analytics_enabled=False) as demo:
        for component in (Chat(), Header()):
            for event in component.EVENTS:
                assert event == "change" or event.doc.endswith("."), event
                getattr(component, event)(lambda: None)
    heard = {event for fn in demo.fns.values() for _, event in fn.targets}
    assert heard == {*Chat.EVENTS, *Header.EVENTS}


def test_the_schema_of_the_value_is_that_of_the_messages() -> None:
    schema = Chat().api_info()
    assert schema["type"] == "array"
    assert {"role", "content"} <= set(schema["$defs"]["Message"]["required"])
    with gr.Blocks(analytics_enabled=False) as demo:
        chat = Chat()
        chat.change(lambda messages: messages, chat, chat, api_name="echo")
    parameter = demo.get_api_info()["named_endpoints"]["/echo"]["parameters"][0]
    assert parameter["example_input"] == Chat().preprocess(parameter["example_input"])


def test_gradio_serves_scripts_and_styles_but_no_sources() -> None:
    Chat()
    served = {Path(path) for path in _StaticFiles.all_paths}
    assert STATIC_DIR / "components" / "chat" / "chat.js" in served
    assert STATIC_DIR / "shared" / "component.js" in served
    assert not [path for path in served if path.suffix == ".py"]
    folders = {STATIC_DIR, *STATIC_DIR.parents, *(path for path in STATIC_DIR.rglob("*") if path.is_dir())}
    assert not served & folders, "a folder is served with the sources in it"


def test_files_are_loaded_from_where_the_page_serves_them() -> None:
    with files_served_at("/elsewhere"):
        script = Chat().js_on_load
    assert '"/elsewhere/components/chat/chat.js"' in script
    with files_served_at("/elsewhere", script="all.js", style="all.css"):
        script = Chat().js_on_load
    assert 'import(at("/elsewhere/all.js"))' in script
    assert '["/elsewhere/all.css"]' in script
    assert "/chat.js" not in script.replace('modules["components/chat/chat.js"]', "")
    assert "/elsewhere" not in Chat().js_on_load


@pytest.mark.full
@pytest.mark.slow
def test_importing_a_component_loads_no_model_library_and_writes_no_stub() -> None:
    """In a process of its own, where Gradio is imported first, as an app does."""
    script = """
import sys
import gradio
from gradio import component_meta
written = []
write = component_meta.create_or_modify_pyi
component_meta.create_or_modify_pyi = lambda component, *_: written.append(component)
from app.ui.components import Chat, Header
class Other(gradio.HTML):
    EVENTS = []
assert written == [Other], written
heavy = {"torch", "transformers", "sqlalchemy", "app.store", "app.services", "app.main"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True)
