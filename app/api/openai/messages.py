"""Request messages: text, thinking and tool calls, in the formats of OpenAI's and Anthropic's clients."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, StringConstraints, field_validator, model_validator

from app.api.openai.chat_options import ChatOptionsInput
from app.api.openai.fields import (
    MESSAGE_FIELDS,
    PART_FIELDS,
    Lenient,
    check_number_of_inputs,
    checked_text,
    unsupported,
)
from app.api.openai.thinking import ThinkingInput
from app.api.openai.tools import MAX_ID_LENGTH, FunctionDefinition, FunctionTool, ToolCallParam
from engine import ChatMessage, ToolChoiceMode

#: The field that holds the text, by the type of a part.
_TEXT_IN: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
#: Names of unsupported parts, by a word in their type.
_MEDIA: Final = {"image": "an image", "audio": "sound", "video": "a video", "file": "a file", "tool": "a tool's result"}

MAX_SHOWN_LENGTH = 64
"""Maximum characters of a caller's value in an error's message; the rest is cut off."""


class TextPart(Lenient):
    """A text part of a message."""

    no_ops = PART_FIELDS

    type: Literal["text"] = "text"
    text: str


def parse_content(value: object, field: str = "content") -> str | list[TextPart]:
    """Parses a message's content: a text or a list of parts; null is empty, as in vLLM.

    Args:
        field: the name of the field that holds it.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return checked_text(field, value)
    if not isinstance(value, list):
        raise unsupported(field, "The field '{param}' must be a string, a list of parts, or null.")
    return [_part(f"{field}[{index}]", part) for index, part in enumerate(value)]


def _part(path: str, part: Any) -> TextPart:
    if isinstance(part, str):
        return TextPart(text=checked_text(path, part))
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise unsupported(path, 'The field \'{param}\' must be a part such as {"type": "text", "text": "Hello"}.')
    if kind not in _TEXT_IN:
        held = next((media for word, media in _MEDIA.items() if word in kind), f"of the type {kind[:40]!a}")
        raise unsupported(path, f"The part '{{param}}' is {held}, but the model only reads text. Send its text.")
    others = {key: value for key, value in part.items() if key not in ("type", _TEXT_IN[kind])}
    text = part.get(_TEXT_IN[kind])
    if not isinstance(text, str):
        raise unsupported(f"{path}.{_TEXT_IN[kind]}", "The field '{param}' must be a string.")
    return TextPart.model_validate({**others, "text": checked_text(f"{path}.{_TEXT_IN[kind]}", text)})


class ChatMessageParam(Lenient):
    """One message of the conversation. The message of a response can be sent back unchanged."""

    no_ops = MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | list[TextPart], PlainValidator(parse_content, json_schema_input_type=str | list[TextPart] | None)
    ] = ""
    name: Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")] | None = Field(
        None, description="Distinguishes participants of the same role, if the model's chat template shows it."
    )

    tool_calls: list[ToolCallParam] | None = Field(None, description="Replies only: the calls that the reply made.")
    tool_call_id: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)] | None = Field(
        None, description="Role `tool` only: the call whose result this is."
    )
    reasoning: str | None = Field(None, description="Replies only: what the model thought before it answered.")
    reasoning_content: str | None = Field(None, description="The same, under its older name.")

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> ChatMessageParam:
        if "content" not in self.model_fields_set and self.role != "assistant":
            raise unsupported("content", "The field '{param}' is missing.")
        if self.role == "tool" and self.tool_call_id is None:
            raise unsupported("tool_call_id", "The field '{param}' is missing: it names the call whose result this is.")
        for name in ("tool_calls", "reasoning", "reasoning_content"):
            if getattr(self, name) and self.role != "assistant":
                raise unsupported(name, "Only a message of the role 'assistant' can hold '{param}'. Leave it out.")
        return self

    @property
    def num_characters(self) -> int:
        """Characters that the chat template may render."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        calls = sum(len(call.function.name) + len(call.function.arguments) for call in self.tool_calls or ())
        return len(content) + calls + len(self.reasoning or self.reasoning_content or "")

    def for_engine(self) -> ChatMessage:
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message: ChatMessage = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if reasoning := self.reasoning or self.reasoning_content:
            message["reasoning"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = tuple(call.for_engine() for call in self.tool_calls)
        if self.role == "tool" and self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatInput(ChatOptionsInput, ThinkingInput):
    """The messages to reply to, or those whose last reply is to be continued; the tools; and how to think."""

    path_to_function = ".function"

    messages: list[ChatMessageParam] = Field(min_length=1)
    tools: list[FunctionTool] | None = Field(None, description="Functions that the model may call.")
    continue_final_message: bool | None = Field(
        None, description="Continue the last message, which is a reply; the response holds only the new text."
    )
    add_generation_prompt: bool | None = Field(None, description="False to continue a reply, true to start one.")

    @field_validator("messages", mode="before")
    @classmethod
    def _messages_are_few(cls, messages: Any) -> Any:
        if isinstance(messages, list):
            check_number_of_inputs("messages", messages)
        return messages

    @model_validator(mode="after")
    def _begins_or_continues(self) -> ChatInput:
        continues = bool(self.continue_final_message)
        if self.add_generation_prompt is continues:
            raise ValueError("add_generation_prompt must be the opposite of continue_final_message, or left out")
        if continues and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs a reply, with the role 'assistant', as the last message")
        if continues and self.messages[-1].tool_calls:
            raise ValueError("continue_final_message needs a last message without tool calls: those are complete")
        return self

    @model_validator(mode="after")
    def _results_have_calls(self) -> ChatInput:
        called: set[str] = set()
        for index, message in enumerate(self.messages):
            if message.tool_call_id is not None and message.role == "tool" and message.tool_call_id not in called:
                wrong = message.tool_call_id[:MAX_SHOWN_LENGTH]
                raise unsupported(
                    f"messages[{index}].tool_call_id",
                    f"The field '{{param}}' is {wrong!a}, but no reply before it makes a call of that id.",
                )
            called.update(call.id for call in message.tool_calls or ())
        return self

    @model_validator(mode="after")
    def _tool_calls_are_parsed(self) -> ChatInput:
        if self.tools and self.tool_choice is not ToolChoiceMode.NONE and not self.parses_reply:
            name = "reasoning_format" if self.separate_reasoning is not False else "separate_reasoning"
            raise unsupported(
                name, "The parameter '{param}' leaves the reply unparsed, so it cannot go with tools. Leave it out."
            )
        return self

    @property
    def functions(self) -> list[FunctionDefinition]:
        return [tool.function for tool in self.tools or ()]

    def for_engine(self) -> list[ChatMessage]:
        messages = [message.for_engine() for message in self.messages]
        if self.continue_final_message:
            messages[-1]["unfinished"] = True
        return messages

    @property
    def num_characters(self) -> int:
        """Characters that the chat template may render: of the messages, their tool calls, and the tools."""
        # Chat templates render tools as JSON.
        tools = sum(len(json.dumps(function.model_dump(), ensure_ascii=False)) for function in self.functions)
        return sum(message.num_characters for message in self.messages) + tools
