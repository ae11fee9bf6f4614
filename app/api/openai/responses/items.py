"""Input items of a request: messages, calls, their results, and thinking."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, StringConstraints, Tag

from app.api.errors import UNION_TAG
from app.api.openai.fields import Lenient, check_number_of_inputs, checked_text, unsupported
from app.api.openai.messages import TextPart, parse_content
from app.api.openai.responses.fields import ITEM_FIELDS
from app.api.openai.tools import MAX_ID_LENGTH, parse_arguments

_CallId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]


def _parts(field: str) -> PlainValidator:
    return PlainValidator(lambda value: parse_content(value, field), json_schema_input_type=str | list[TextPart])


def _text_of(parts: str | list[TextPart]) -> str:
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


class _Item(Lenient):
    no_ops = ITEM_FIELDS

    id: Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)] | None = None


class MessageItem(_Item):
    """A message. One of a response can be sent back unchanged."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[str | list[TextPart], _parts("content")]

    @property
    def text(self) -> str:
        return _text_of(self.content)

    def to_dict(self) -> dict[str, Any]:
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        if self.role == "assistant":
            content: list[dict[str, Any]] = [
                {"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts
            ]
        else:
            content = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "role": self.role, "status": "completed", "content": content}


class FunctionCallItem(_Item):
    """A call that a reply made."""

    type: Literal["function_call"]
    call_id: _CallId
    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]
    arguments: Annotated[str, PlainValidator(parse_arguments, json_schema_input_type=str)]

    def to_dict(self) -> dict[str, Any]:
        call = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return {"type": "function_call", "status": "completed", **call}


class FunctionCallOutputItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: _CallId
    output: Annotated[str | list[TextPart], _parts("output")]

    @property
    def text(self) -> str:
        return _text_of(self.output)

    def to_dict(self) -> dict[str, Any]:
        return {"type": "function_call_output", "status": "completed", "call_id": self.call_id, "output": self.text}


class SummaryPart(Lenient):
    type: Literal["summary_text"]
    text: str


class ReasoningPart(Lenient):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    """The model's thinking before it answered. Without ``content``, its summary stands for it."""

    type: Literal["reasoning"]
    summary: list[SummaryPart] | None = None
    content: list[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        parts = self.content or self.summary or ()
        return "\n".join(part.text for part in parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": "reasoning",
            "status": "completed",
            "summary": [{"type": "summary_text", "text": part.text} for part in self.summary or ()],
            "content": [{"type": "reasoning_text", "text": part.text} for part in self.content or ()],
        }


class ItemReference(Lenient):
    """Stands for an item of a stored response."""

    type: Literal["item_reference"] = "item_reference"
    id: Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]


InputItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
ReferenceOrItem = InputItem | ItemReference

ID_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
"""Prefixes of the items' ids by their type."""
_KINDS: Final = (*ID_PREFIXES, "item_reference")


def _items(value: object) -> object:
    """Makes a list of items of a text, and refuses items of other types by name."""
    if isinstance(value, str):
        return [{"role": "user", "content": checked_text("input", value)}]
    if not isinstance(value, list):
        raise unsupported("input", "The field '{param}' must be a string or a list of items.")
    check_number_of_inputs("input", value)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise unsupported(f"input[{index}]", "The field '{param}' must be an item, an object.")
        if _kind(item) not in _KINDS:
            kind = item.get("type")
            shown = f"{kind[:40]!a}" if isinstance(kind, str) else "missing" if kind is None else "no string"
            allowed = ", ".join(_KINDS)
            raise unsupported(f"input[{index}].type", f"The field '{{param}}' is {shown}; it must be one of {allowed}.")
    return value


def _kind(item: Any) -> str:
    """Returns an item's type. A message or a reference may leave it out."""
    if isinstance(item, dict):
        kind = item.get("type") or ("message" if "role" in item else "item_reference" if set(item) == {"id"} else None)
    else:
        kind = item.type
    return kind if isinstance(kind, str) else ""


def _tag(item: Any) -> str:
    return UNION_TAG + _kind(item)


InputItems = Annotated[
    list[
        Annotated[
            Annotated[MessageItem, Tag(UNION_TAG + "message")]
            | Annotated[FunctionCallItem, Tag(UNION_TAG + "function_call")]
            | Annotated[FunctionCallOutputItem, Tag(UNION_TAG + "function_call_output")]
            | Annotated[ReasoningItem, Tag(UNION_TAG + "reasoning")]
            | Annotated[ItemReference, Tag(UNION_TAG + "item_reference")],
            Discriminator(_tag),
        ]
    ],
    BeforeValidator(_items, json_schema_input_type=str | list[ReferenceOrItem]),
    Field(description="A text, or items: messages, function calls, their outputs, reasoning, and references to items."),
]
