"""A forced call in formats that are not JSON alone: through the engine it is read back, and fits the tool's schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine import ChatMessage, ChatOptions, Engine, EngineSettings, InvalidRequestError, SamplingParams, ToolChoiceMode
from engine.chat_options import NamedTool, Tool
from testing.models import make_model

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES: list[ChatMessage] = [{"role": "user", "content": "Which city?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", 'R"m']},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 2},
        "is_fast": {"type": ["boolean", "null"]},
        "note": {"type": "string", "maxLength": 6},
        "area": {"$ref": "#/$defs/area"},
    },
    "required": ["city", "note"],
    "additionalProperties": False,
    "$defs": {
        "area": {
            "type": "object",
            "properties": {"inner": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/area"}]}, "km": {"type": "number"}},
            "additionalProperties": False,
        }
    },
}
TOOLS = (Tool("find", parameters=SCHEMA), Tool("now"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_model(tmp_path_factory.mktemp("calls") / "qwen3", "qwen3", max_position_embeddings=2048)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def settings_of(model: Path, reply_format: str) -> EngineSettings:
    return EngineSettings(_env_file=None, model=str(model), dtype="float32", reply_format=reply_format)


async def call(engine: Engine, seed: int, options: ChatOptions) -> tuple[str, list[tuple[str, str]]]:
    """Returns a random reply's text, and its calls with their arguments as they were streamed."""
    params = SamplingParams(seed=seed, temperature=1.5, max_tokens=900)
    text, calls = "", list[tuple[str, str]]()
    async for delta in engine.chat(MESSAGES, params, options=options):
        text += delta.text
        for part in delta.tool_calls:
            if part.index == len(calls):
                calls.append((part.name or "", ""))
            calls[part.index] = (calls[part.index][0], calls[part.index][1] + part.arguments)
    return text, calls


@pytest.mark.parametrize("reply_format", ["pythonic", "functiongemma", "gemma4-thought+gemma4", "harmony"])
async def test_a_forced_call_is_read_back_and_fits_the_schema(model: Path, reply_format: str) -> None:
    chosen = (ToolChoiceMode.REQUIRED, NamedTool("find"), NamedTool("now"))
    called = set()
    async with Engine(settings_of(model, reply_format)) as engine:
        for seed in range(9):
            choice = chosen[seed % 3]
            options = ChatOptions(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_thinking_tokens=5)
            text, calls = await call(engine, seed, options)
            assert text == ""
            ((name, arguments),) = calls
            called.add(name)
            assert not isinstance(choice, NamedTool) or choice.name == name
            jsonschema.validate(json.loads(arguments), SCHEMA if name == "find" else {"maxProperties": 0})
    assert called == {"find", "now"}


@pytest.mark.parametrize(
    ("reply_format", "tool", "reason"),
    [
        ("pythonic", Tool("get-city"), "'get-city' is no name in Python"),
        ("pythonic", Tool("f", parameters={"properties": {"class": {}}}), "'class' is no name of an argument"),
        ("gemma4", Tool("f", parameters={"properties": {"a b": {}}}), "'a b' cannot be written as a key"),
        ("gemma4", Tool("f", parameters={"properties": {"a": {"const": '<|"|>'}}}), "it holds"),
        ("gemma4", Tool("f", parameters={"properties": {"a": {"pattern": "x"}}}), 'model\'s notation: "pattern"'),
        ("gemma4", Tool("f", parameters={"properties": {}, "required": ["a"]}), "names what is none"),
        ("pythonic", Tool("f", parameters={"properties": {"a": {"$ref": "#/x"}}}), "'#/x' leads nowhere"),
        ("harmony", Tool("f", parameters={"properties": {"a": {"not": {}}}}), 'not supported: "not"'),
    ],
)
async def test_a_tool_that_the_format_cannot_write_is_refused(
    model: Path, reply_format: str, tool: Tool, reason: str
) -> None:
    async with Engine(settings_of(model, reply_format)) as engine:
        with pytest.raises(InvalidRequestError, match=reason):
            await engine.prepare(MESSAGES, options=ChatOptions(tools=(tool,), tool_choice=ToolChoiceMode.REQUIRED))


async def test_a_strict_tool_holds_calls_in_channels_and_leaves_other_messages_free(model: Path) -> None:
    options = ChatOptions(tools=(Tool("find", parameters=SCHEMA, strict=True),), max_thinking_tokens=20)
    async with Engine(settings_of(model, "harmony")) as engine:
        ended = set()
        for seed in range(12):
            text, calls = await call(engine, seed, options)
            for _name, arguments in calls:
                jsonschema.validate(json.loads(arguments), SCHEMA)
            assert "<|" not in text
            ended.add(bool(calls))
    assert True in ended
