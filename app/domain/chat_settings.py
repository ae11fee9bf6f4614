"""A conversation's settings: what the settings panel shows and what a turn is sampled with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, create_model, field_validator

from app.domain.text import clean_text
from app.errors import InvalidInput
from engine import PARAMETERS, ChatOptions, Kind, Parameter, SamplingParams, StructuredOutput, StructureKind

MAX_SYSTEM_PROMPT_CHARS = 200_000
"""In characters. Every reply stores the system prompt that it was generated with."""
MAX_OTHER_CHARS = 100_000
"""In characters, over all other settings together."""

MAX_THINKING_TOKENS = 1_000_000
"""Far above any model's context."""


CHAT_PARAMETERS: Final = tuple([parameter for parameter in PARAMETERS.values() if parameter.in_chat])
"""The sampling parameters that a chat's settings hold, in the settings panel's order."""


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Returns the annotation and the field of a parameter."""

    def refuse_other_types(value: object) -> object:
        # Pydantic reads "0.5" and true as numbers, and calls a list of words a tuple. The range is checked later, so
        # that settings saved under another range can be read.
        if isinstance(value, bool | str):
            SamplingParams(**{parameter.name: value})  # type: ignore[arg-type]  # raises an error with the range
        return value

    types: dict[Kind, Any] = {
        Kind.NUMBER: Annotated[float | None, BeforeValidator(refuse_other_types)],
        Kind.WHOLE: Annotated[int | None, BeforeValidator(refuse_other_types)],
        Kind.STRINGS: tuple[str, ...],
        Kind.WORDS: Annotated[tuple[str, ...], BeforeValidator(refuse_other_types)],
    }
    return types[parameter.kind], Field(parameter.default, description=parameter.help)


class _Preset(BaseModel):  # a base of its own, so that the fields are in the panel's order
    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str | None = None  #: name of the preset these came from, or None when tuned by hand


if TYPE_CHECKING:
    _WithParameters = _Preset
else:
    _WithParameters = create_model("_WithParameters", __base__=_Preset, **{p.name: _field(p) for p in CHAT_PARAMETERS})


class ChatSettings(_WithParameters):
    """Saved with the conversation. ``None`` means the model's own default."""

    system_prompt_name: str | None = None  #: name of one of the desk's prompts, or None for free text
    system_prompt_variables: dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=2000)]] = Field(
        {}, max_length=20, description="Values for the named prompt's variables; the others have their defaults."
    )
    system_prompt: str = ""
    thinking: StrictBool | None = Field(
        None, description="Whether the model thinks before it answers, if it can do both. Null: the model's default."
    )
    max_thinking_tokens: int | None = Field(
        None, ge=1, le=MAX_THINKING_TOKENS, strict=True, description="Tokens of thinking after which the answer begins."
    )
    use_tools: StrictBool | None = Field(
        None, description="False: the model may not call the tools that this chat is offered."
    )
    adapter: str | None = Field(
        None, max_length=100, description="Name of the LoRA adapter that replies. Null: the model without one."
    )
    collections: tuple[Annotated[str, Field(max_length=100)], ...] = Field(
        (), max_length=100, description="Ids of the collections of documents that replies rest on. Empty: none."
    )
    json_schema: str | None = Field(None, description="JSON schema that each reply is held to. Null: free text.")

    if TYPE_CHECKING:  # the parameters' fields are known at run time only

        def __init__(self, **values: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    @field_validator("*")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        # Also of settings stored without this: text that cannot be encoded keeps a chat from being shown or exported.
        match value:
            case str():
                return clean_text(value)
            case tuple():
                # A stop string of which nothing is left stops nothing; one that was empty before is refused later.
                return tuple(cleaned for text in value if (cleaned := clean_text(text)) or not text)
            case dict():
                return {clean_text(name): clean_text(text) for name, text in value.items()}
        return value

    @property
    def has_system_prompt(self) -> bool:
        """Whether the conversation has a system prompt."""
        return self.system_prompt_name is not None or bool(self.system_prompt.strip())

    @property
    def has_shared_system_prompt(self) -> bool:
        """Whether the system prompt is the desk's own, with no text of the user's in it."""
        return (
            self.system_prompt_name is not None and not self.system_prompt.strip() and not self.system_prompt_variables
        )

    def chat_options(self) -> ChatOptions:
        """How the model thinks, and with which adapter, for the engine."""
        return ChatOptions(
            thinking=self.thinking, max_thinking_tokens=self.max_thinking_tokens, adapter=self.adapter or None
        )

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``engine.SamplingParams``; unset fields are left out."""
        values = {parameter.name: getattr(self, parameter.name) for parameter in CHAT_PARAMETERS}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    def sampling_params(self) -> SamplingParams:
        """Converts the settings for the engine.

        Raises:
            InvalidInput: a value is out of range; the message names the field, the value and the range.
        """
        if len(self.system_prompt) > MAX_SYSTEM_PROMPT_CHARS:
            raise InvalidInput(
                f"The system prompt is {len(self.system_prompt):,} characters long; at most "
                f"{MAX_SYSTEM_PROMPT_CHARS:,} are allowed. Shorten it."
            )
        others = (self.preset or "", self.system_prompt_name or "", self.json_schema or "", *self._texts())
        if sum(map(len, others)) > MAX_OTHER_CHARS:
            raise InvalidInput(
                f"These settings are longer than {MAX_OTHER_CHARS:,} characters besides the system prompt. Shorten "
                "the lists below “Advanced”, the stop strings or the JSON schema."
            )
        try:
            return SamplingParams(**self.sampling(), structured=self._structure())
        except ValueError as error:
            raise InvalidInput(f"{str(error).rstrip('.')}.") from error

    def _texts(self) -> list[str]:
        """Returns every string of the parameters that are lists of strings."""
        lists = [getattr(self, parameter.name) for parameter in CHAT_PARAMETERS if not parameter.kind.is_number]
        return [text for texts in lists for text in texts]

    def _structure(self) -> StructuredOutput | None:
        schema: str = self.json_schema or ""
        if not schema.strip():
            return None
        try:
            json.loads(schema)
        except (RecursionError, ValueError) as error:
            raise InvalidInput(f"The JSON schema is not JSON: {error}. Correct it in the settings.") from error
        return StructuredOutput(StructureKind.JSON_SCHEMA, schema)
