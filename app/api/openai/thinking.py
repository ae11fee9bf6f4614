"""Options of a request about thinking and the chat template, under the names of OpenAI, vLLM, SGLang and llama.cpp."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from app.api.openai.fields import Lenient, unsupported
from app.api.openai.json_schemas import check_json_size

MAX_TEMPLATE_KWARGS_BYTES = 64 * 1024
"""Maximum size of ``chat_template_kwargs``; larger ones are refused."""

_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables with which chat templates switch thinking on and off: Qwen's and GLM's; DeepSeek's and Granite's."""
_RESERVED: Final = frozenset(
    {
        # What the server itself passes to a template.
        *("messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("raise_exception", "strftime_now"),
        # Parameters of transformers' apply_chat_template.
        *("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens", "processor_kwargs"),
    }
)


def _template_kwargs(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise unsupported("chat_template_kwargs", "The field '{param}' must be an object.")
    check_json_size("chat_template_kwargs", value, MAX_TEMPLATE_KWARGS_BYTES)
    for name in value:
        if not name.isidentifier() or name.startswith("_"):
            raise unsupported(
                "chat_template_kwargs", f"'{{param}}' holds {name[:64]!a}, which is no name of a variable."
            )
        if name in _RESERVED or name.endswith("_token"):
            raise unsupported(
                f"chat_template_kwargs.{name}",
                "The field '{param}' is set by the server and cannot be replaced. Leave it out.",
            )
    for name in _SWITCHES:
        if not isinstance(value.get(name), bool | None):
            raise unsupported(f"chat_template_kwargs.{name}", "The field '{param}' must be true or false.")
    return value


def _budget(value: object) -> object:
    """Reads -1, with which servers spell no limit, as None."""
    return None if type(value) is int and value == -1 else value


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ThinkingSwitches(Lenient):
    """How the model thinks before it answers."""

    chat_template_kwargs: Annotated[
        dict[str, Any] | None, PlainValidator(_template_kwargs, json_schema_input_type=dict[str, Any] | None)
    ] = Field(None, description="Variables of the model's chat template, such as `enable_thinking`.")
    enable_thinking: bool | None = Field(
        None, description="Whether a model that can do both thinks before it answers. Default: the template's own."
    )
    thinking_token_budget: Annotated[int | None, BeforeValidator(_budget)] = Field(
        None, ge=0, description="Tokens after which the thinking is closed and the answer begins; -1 is no limit."
    )
    stop_in_reasoning: bool | None = Field(
        None, description="True: stop strings and forbidden words act on the thinking, too, not on the answer alone."
    )

    @property
    def requested_effort(self) -> Effort | None:
        """The effort that the request names, in the field that its API has for it."""
        return None

    @property
    def parses_reply(self) -> bool:
        """Whether thinking and tool calls are taken out of the reply's text."""
        return True

    @model_validator(mode="after")
    def _one_answer_to_whether_it_thinks(self) -> Self:
        switches = {switch for switch in self._switches if switch is not None}
        if len(switches) > 1:
            raise unsupported(
                "enable_thinking",
                "'{param}', chat_template_kwargs and the effort of reasoning contradict each other. Send one of them.",
            )
        return self

    @property
    def _switches(self) -> tuple[bool | None, ...]:
        """What each field says about thinking; None where it says nothing."""
        kwargs = self.chat_template_kwargs or {}
        by_effort = False if self.requested_effort == "none" else None
        return self.enable_thinking, by_effort, *(kwargs.get(name) for name in _SWITCHES)

    @property
    def thinking(self) -> bool | None:
        """Whether the model is asked to think; None leaves it to the template."""
        return next((switch for switch in self._switches if switch is not None), None)

    @property
    def effort(self) -> str | None:
        """The effort that the template reads; None where there is to be no thinking."""
        return None if self.requested_effort == "none" else self.requested_effort


class ThinkingInput(ThinkingSwitches):
    """How the model thinks before it answers, and how its thoughts are returned."""

    reasoning_effort: Effort | None = Field(
        None, description="How much the model thinks, where its template reads this; `none` turns thinking off."
    )
    include_reasoning: bool | None = Field(None, description="False leaves the thinking out of the response.")
    separate_reasoning: bool | None = Field(
        None, description="False leaves the thinking in the reply's text as the model wrote it, tags and all."
    )
    stream_reasoning: bool | None = Field(
        None, description="False sends the thinking of a stream in one chunk when it is complete."
    )
    reasoning_format: Literal["none", "auto", "deepseek"] | None = Field(
        None, description="llama.cpp's spelling of separate_reasoning: `none` is false, the others are true."
    )

    @property
    def requested_effort(self) -> Effort | None:
        return self.reasoning_effort

    @property
    def parses_reply(self) -> bool:
        return self.separate_reasoning is not False and self.reasoning_format != "none"
