"""Request messages: text, in the formats of OpenAI's and Anthropic's clients."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, StringConstraints, model_validator

from app.api.openai.fields import MESSAGE_FIELDS, PART_FIELDS, Lenient, checked_text, unsupported
from engine import ChatMessage

#: The field that holds the text, by the type of a part.
_TEXT_IN: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
#: Names of unsupported parts, by a word in their type.
_MEDIA: Final = {"image": "an image", "audio": "sound", "video": "a video", "file": "a file", "tool": "a tool's result"}


class TextPart(Lenient):
    """A text part of a message."""

    no_ops = PART_FIELDS

    type: Literal["text"] = "text"
    text: str


def _content(value: object) -> str | list[TextPart]:
    """Parses a message's content: a text or a list of parts; null is empty, as in vLLM."""
    if value is None:
        return ""
    if isinstance(value, str):
        return checked_text("content", value)
    if not isinstance(value, list):
        raise unsupported("content", "The field '{param}' must be a string, a list of parts, or null.")
    return [_part(f"content[{index}]", part) for index, part in enumerate(value)]


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

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | list[TextPart], PlainValidator(_content, json_schema_input_type=str | list[TextPart] | None)
    ] = ""
    name: Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")] | None = Field(
        None, description="Distinguishes participants of the same role, if the model's chat template shows it."
    )

    @model_validator(mode="after")
    def _only_a_reply_may_lack_content(self) -> ChatMessageParam:
        if "content" not in self.model_fields_set and self.role != "assistant":
            raise unsupported("content", "The field '{param}' is missing.")
        return self

    def for_engine(self) -> ChatMessage:
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message: ChatMessage = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        return message


class ChatInput(Lenient):
    """The messages to reply to, or those whose last reply is to be continued."""

    messages: list[ChatMessageParam] = Field(min_length=1)
    continue_final_message: bool | None = Field(
        None, description="Continue the last message, which is a reply; the response holds only the new text."
    )
    add_generation_prompt: bool | None = Field(None, description="False to continue a reply, true to start one.")

    @model_validator(mode="after")
    def _begins_or_continues(self) -> ChatInput:
        continues = bool(self.continue_final_message)
        if self.add_generation_prompt is continues:
            raise ValueError("add_generation_prompt must be the opposite of continue_final_message, or left out")
        if continues and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs a reply, with the role 'assistant', as the last message")
        return self

    def for_engine(self) -> list[ChatMessage]:
        messages = [message.for_engine() for message in self.messages]
        if self.continue_final_message:
            messages[-1]["unfinished"] = True
        return messages
