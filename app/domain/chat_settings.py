"""A conversation's settings: what the settings panel shows and what a turn is sampled with."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.errors import InvalidInput
from engine import SamplingParams

MAX_SYSTEM_PROMPT_CHARS = 200_000
"""In characters. Every reply stores the system prompt that it was generated with."""
MAX_OTHER_CHARS = 100_000
"""In characters, over all other settings together."""


class ChatSettings(BaseModel):
    """Saved with the conversation. ``None`` means the model's own default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str | None = None  #: name of the preset these came from, or None when tuned by hand
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    system_prompt_name: str | None = None  #: name of one of the desk's prompts, or None for free text
    system_prompt_variables: dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=2000)]] = Field(
        {}, max_length=20, description="Values for the named prompt's variables; the others have their defaults."
    )
    system_prompt: str = ""

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

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``engine.SamplingParams``; unset fields are left out."""
        fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed")
        chosen = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        if self.stop:
            chosen["stop"] = self.stop
        return chosen

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
        others = (self.preset or "", self.system_prompt_name or "", *self.stop)
        if sum(map(len, others)) > MAX_OTHER_CHARS:
            raise InvalidInput(
                f"These settings are longer than {MAX_OTHER_CHARS:,} characters besides the system prompt. Shorten "
                "the stop strings."
            )
        try:
            return SamplingParams(**self.sampling())
        except ValueError as error:
            raise InvalidInput(f"{str(error).rstrip('.')}.") from error
