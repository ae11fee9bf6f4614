"""Tools of a request, and the tool calls of a conversation's replies, in OpenAI's format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Self

import orjson
from pydantic import Field, PlainValidator, StringConstraints, field_validator, model_validator

from app.api.openai.fields import Lenient, NoOp, checked_text, unsupported
from app.api.openai.json_schemas import check_depth, check_json_size, check_object_schema
from engine import NamedTool, Tool, ToolCall, ToolChoice, ToolChoiceMode

MAX_TOOLS = 128
"""Maximum tools of a request, as at OpenAI; more are refused."""
MAX_TOOLS_BYTES = 512 * 1024
"""Maximum size of all tools of a request together; larger ones are refused."""
MAX_ARGUMENTS_BYTES = 1024 * 1024
"""Maximum size of the arguments of one call in the conversation; larger ones are refused."""
MAX_ID_LENGTH = 256
"""Maximum characters of a call's id, and of the name of the function that it called."""

_LABEL: Final = NoOp(accepts_any=True)
_CHOICES: Final = (
    'The field \'{param}\' must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.'
)


def _parameters(value: object) -> dict[str, Any] | None:
    return None if value is None else check_object_schema("parameters", value)


class FunctionDefinition(Lenient):
    """A function that the model may call."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = Field(None, description="When to call it, for the model.")
    parameters: Annotated[
        dict[str, Any] | None, PlainValidator(_parameters, json_schema_input_type=dict[str, Any] | None)
    ] = Field(None, description="JSON Schema of its arguments, an object. Default: it takes none.")
    strict: bool | None = Field(None, description="Hold the arguments to the schema.")

    def for_engine(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))


class FunctionTool(Lenient):
    """A tool of chat completions."""

    type: str = "function"
    function: FunctionDefinition

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, data: Any) -> Any:
        return only_functions(data)


def only_functions(tool: Any) -> Any:
    """Returns the tool, as it came, unless it is of another type than ``function``.

    Raises:
        PydanticCustomError: it is.
    """
    kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
    if kind != "function":
        shown = f"{kind[:40]!a}" if isinstance(kind, str) else "no string"
        raise unsupported("type", f"The field '{{param}}' is {shown}, but the only type of tool is \"function\".")
    return tool


def _tool_choice(value: object) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str) and value in set(ToolChoiceMode):
        return ToolChoiceMode(value)
    if not isinstance(value, dict):
        raise unsupported("tool_choice", _CHOICES)
    if value.get("type") == "allowed_tools":
        raise unsupported(
            "tool_choice",
            "The parameter '{param}' is a list of allowed tools, which is not supported here. Send only those tools.",
        )
    function = value.get("function", value)  # the Responses API has the name beside the type
    name = function.get("name") if isinstance(function, dict) else None
    if value.get("type") != "function" or not isinstance(name, str):
        raise unsupported("tool_choice", _CHOICES)
    return NamedTool(name)


class ToolsInput(Lenient, ABC):
    """Tools that a reply may call, in the field ``tools`` of each API's own form, and which of them it calls."""

    #: From a tool to the fields of its function, in the paths of errors.
    path_to_function: ClassVar[str] = ""

    tool_choice: Annotated[
        ToolChoice | None, PlainValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None)
    ] = Field(
        None,
        description="`none`, `auto` (the default), `required`, or the one function that the reply must call: "
        '`{"type": "function", "function": {"name": ...}}`.',
    )
    parallel_tool_calls: bool | None = Field(None, description="False: the reply calls one tool at most.")

    @property
    @abstractmethod
    def functions(self) -> Sequence[FunctionDefinition]:
        """The functions of the tools."""

    @field_validator("tools", mode="before", check_fields=False)
    @classmethod
    def _tools_are_few(cls, tools: Any) -> Any:
        """Checks the size of all tools at once, and first: to check each takes longer, and delays other requests."""
        if isinstance(tools, list):
            _check_size_of_tools(tools)
        return tools

    @model_validator(mode="after")
    def _tools_are_coherent(self) -> Self:
        _check_tools(self.functions, self.tool_choice, self.path_to_function)
        return self


def _check_size_of_tools(tools: Sequence[Any]) -> None:
    """Checks the number and the size of a request's tools, as they came.

    Raises:
        PydanticCustomError: there are too many, or they are too large.
    """
    if len(tools) > MAX_TOOLS:
        raise unsupported("tools", f"'{{param}}' has {len(tools)} tools; the maximum is {MAX_TOOLS}.")
    size = 0
    for tool in tools:  # one by one, to stop early
        try:
            size += len(json.dumps(tool, ensure_ascii=False).encode(errors="replace"))
        except RecursionError:
            return  # the check of the schema says where it is too deep
        if size > MAX_TOOLS_BYTES:
            raise unsupported(
                "tools", f"'{{param}}' has more than {MAX_TOOLS_BYTES} bytes. Send fewer or smaller tools."
            )


def _check_tools(functions: Sequence[FunctionDefinition], choice: ToolChoice | None, path: str) -> None:
    """Checks the tools of a request together.

    Args:
        path: from a tool to its function's fields.

    Raises:
        PydanticCustomError: two have the same name, or the choice names none.
    """
    names: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in names:
            raise unsupported(
                f"tools[{index}]{path}.name",
                f"The field '{{param}}' repeats the name of another tool, {function.name!a}.",
            )
        names.add(function.name)
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise unsupported(
            "tool_choice", f"The parameter '{{param}}' names the tool {choice.name[:64]!a}, which 'tools' lacks."
        )
    if choice is ToolChoiceMode.REQUIRED and not names:
        raise unsupported(
            "tool_choice", "The parameter '{param}' requires a tool call, but 'tools' is empty. Send a tool."
        )


def parse_arguments(value: object) -> str:
    """Parses the arguments of a call: JSON text of an object; empty text is an empty object.

    Some clients send the object itself, which is taken, too.
    """
    if isinstance(value, dict):
        check_json_size("arguments", value, MAX_ARGUMENTS_BYTES)
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise unsupported("arguments", "The field '{param}' must be a string with a JSON object.")
    if len(checked_text("arguments", value).encode()) > MAX_ARGUMENTS_BYTES:
        raise unsupported("arguments", f"The field '{{param}}' has more than {MAX_ARGUMENTS_BYTES} bytes. Shorten it.")
    if not value.strip():
        return "{}"
    try:
        parsed = orjson.loads(value)  # refuses deep nesting instead of overflowing the stack
    except ValueError:
        raise unsupported("arguments", "The field '{param}' is not valid JSON. Send a JSON object.") from None
    if not isinstance(parsed, dict):
        raise unsupported("arguments", "The field '{param}' must hold a JSON object.")
    check_depth("arguments", parsed)
    return value


class CalledFunction(Lenient):
    """The function that a reply called."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]
    arguments: Annotated[str, PlainValidator(parse_arguments, json_schema_input_type=str)] = "{}"


class ToolCallParam(Lenient):
    """A call that a reply of the conversation made."""

    no_ops = {"index": _LABEL}  # noqa: RUF012 - some clients send the parts of a stream back

    id: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)]
    type: str = "function"
    function: CalledFunction

    @model_validator(mode="after")
    def _only_functions(self) -> ToolCallParam:
        if self.type != "function":
            raise unsupported("type", "The field '{param}' must be \"function\".")
        return self

    def for_engine(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)
