"""The request model of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from app.api.openai.chat_options import OPTION_SPELLING, ChatOptionsInput
from app.api.openai.fields import STREAM_FIELDS, Lenient, checked_text, unsupported
from app.api.openai.requests import GenerationRequest, Whole, model_with_parameters, requested_parameters
from app.api.openai.responses.fields import INCLUDED, REASONING_FIELDS, RESPONSE_FIELDS, TEXT_FIELDS, TOOL_FIELDS
from app.api.openai.responses.items import InputItems
from app.api.openai.structured import JsonSchemaFormat, ResponseFormat, structured_output
from app.api.openai.thinking import Effort
from app.api.openai.tools import FunctionDefinition, only_functions
from engine import NamedTool, SamplingParams, ToolChoiceMode

MAX_METADATA = 16
"""Maximum pairs of ``metadata``, as at OpenAI; more are refused."""


class ResponseTool(FunctionDefinition):
    """A function that the model may call, without chat completions' nesting."""

    no_ops = TOOL_FIELDS

    type: Literal["function"] = "function"

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, data: Any) -> Any:
        return only_functions(data)

    def to_dict(self) -> dict[str, Any]:
        return {"type": "function", **self.model_dump(include={"name", "description", "parameters", "strict"})}


class TextFormat(JsonSchemaFormat):
    """The form of the reply, without chat completions' nesting."""

    type: Literal["text", "json_object", "json_schema"]

    def for_chat(self) -> ResponseFormat:
        schema = JsonSchemaFormat(name=self.name, schema=self.json_schema, strict=self.strict)
        return ResponseFormat(type=self.type, json_schema=schema if self.type == "json_schema" else None)


class TextOptions(Lenient):
    no_ops = TEXT_FIELDS

    format: TextFormat | None = None


class ReasoningOptions(Lenient):
    no_ops = REASONING_FIELDS

    effort: Effort | None = Field(
        None, description="How much the model thinks, where its template reads this; `none` turns thinking off."
    )


class ResponseStreamOptions(Lenient):
    no_ops = STREAM_FIELDS


def _include(value: object) -> object:
    for index, kind in enumerate(value if isinstance(value, list) else ()):
        if isinstance(kind, str) and kind not in INCLUDED:
            raise unsupported(
                f"include[{index}]",
                f"The value '{{param}}' is {kind[:64]!a}, which is not supported here. Leave it out.",
            )
    return value


if TYPE_CHECKING:
    _SamplingFields = Lenient
else:
    _SamplingFields = model_with_parameters("logprobs", "prompt_logprobs", "max_tokens", "n")


class ResponseRequest(GenerationRequest, ChatOptionsInput, _SamplingFields):
    """A request for a response: OpenAI's fields, and the engine's sampling parameters beside them."""

    no_ops = RESPONSE_FIELDS
    spelling: ClassVar[Mapping[str, str]] = {
        **OPTION_SPELLING,
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
        "reasoning_effort": "reasoning.effort",
    }

    input: InputItems = Field(default_factory=list)
    previous_response_id: str | None = Field(
        None,
        description="A stored response, whose conversation this one continues. Its instructions do not carry over.",
    )
    store: bool | None = Field(
        None,
        description="Whether to store the response, for previous_response_id and for reading it again. Default: true.",
    )
    instructions: str | None = Field(None, description="The system message.")
    tools: list[ResponseTool] | None = Field(None, description="Functions that the model may call.")
    text: TextOptions | None = Field(
        None, description="`format`: text, json_object, or json_schema with `schema`, `name` and `strict`."
    )
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Whole | None = Field(None, description="Maximum tokens of the reply, its thinking included.")
    top_logprobs: Whole | None = Field(
        None, description="How many of the likeliest tokens to return for each token of the text."
    )
    include: Annotated[list[str], BeforeValidator(_include)] | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="`auto` leaves out the oldest turns of a conversation that is too long."
    )
    metadata: dict[str, Annotated[str, StringConstraints(max_length=512)]] | None = Field(
        None, description="Labels for the caller's own records, returned with the response."
    )
    stream_options: ResponseStreamOptions | None = None

    if TYPE_CHECKING:  # the parameters' fields are known at run time only

        def __getattr__(self, name: str) -> Any: ...

    @field_validator("metadata")
    @classmethod
    def _metadata_is_short(cls, metadata: dict[str, str] | None) -> dict[str, str] | None:
        if metadata is not None and len(metadata) > MAX_METADATA:
            raise unsupported("metadata", f"'{{param}}' has {len(metadata)} pairs; the maximum is {MAX_METADATA}.")
        for key, value in (metadata or {}).items():
            if len(checked_text("metadata", key)) > 64:
                raise unsupported("metadata", "A key of '{param}' has more than 64 characters. Shorten it.")
            checked_text("metadata", value)
        return metadata

    @model_validator(mode="after")
    def _has_input(self) -> ResponseRequest:
        if not self.input and self.previous_response_id is None:
            raise unsupported("input", "The field '{param}' is missing or empty.")
        return self

    @property
    def functions(self) -> list[ResponseTool]:
        return self.tools or []

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def names(self) -> Mapping[str, str]:
        form = "text.format" if self.structured_outputs is None else "structured_outputs"
        return {**self.spelling, "structured": form}

    @property
    def requested_effort(self) -> Effort | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    def sampling_params(self) -> SamplingParams:
        format = self.text.format if self.text is not None else None
        given = requested_parameters(self) | {
            "max_tokens": self.max_output_tokens,
            "logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
            "structured": structured_output(format.for_chat() if format is not None else None, self.structured_outputs),
        }
        return SamplingParams(**given)

    def echo(self) -> dict[str, Any]:
        """Returns the fields of the response that repeat the request."""
        choice = self.tool_choice or ToolChoiceMode.AUTO
        format = self.text.format if self.text is not None else None
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "previous_response_id": self.previous_response_id,
            "store": self.stores,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": self.requested_effort, "summary": None},
            "text": {"format": {"type": "text"} if format is None else _format_dict(format), "verbosity": "medium"},
            "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice.value,
            "tools": [tool.to_dict() for tool in self.tools or ()],
            "top_logprobs": self.top_logprobs or 0,
            "truncation": self.truncation or "disabled",
            "service_tier": "default",
        }


def _format_dict(format: TextFormat) -> dict[str, Any]:
    if format.type != "json_schema":
        return {"type": format.type}
    return {
        "type": format.type,
        **format.model_dump(by_alias=True, include={"name", "description", "json_schema", "strict"}),
    }
