"""What the page shows in an empty chat: what the loaded model is good for, and examples to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_EXAMPLES: Final = 8  #: of a group; more would push the message box off a phone
MAX_EXAMPLE_CHARS: Final = 300

Example = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_EXAMPLE_CHARS)]


class WelcomeGroup(BaseModel):
    """The examples for some models. Without ``for_model`` and ``max_parameters``, for all models."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    for_model: Literal["guide"] | None = Field(None, alias="for")
    max_parameters: int | None = Field(None, ge=1)
    good_for: str = Field("", max_length=200)
    examples: tuple[Example, ...] = Field(min_length=1, max_length=MAX_EXAMPLES)

    @model_validator(mode="after")
    def _has_one_condition(self) -> Self:
        if self.for_model is not None and self.max_parameters is not None:
            raise ValueError("a group has 'for' or 'max_parameters', not both")
        return self

    @property
    def fits_all(self) -> bool:
        return self.for_model is None and self.max_parameters is None

    def fits(self, *, is_guide: bool, num_parameters: int) -> bool:
        """Whether the group is for a model. ``num_parameters``: 0 if unknown."""
        if self.for_model is not None:
            return is_guide
        return self.max_parameters is None or 0 < num_parameters <= self.max_parameters


class WelcomeTexts:
    """The groups of ``prompts/examples.yaml``, in their order.

    Raises:
        ValueError: there is no group for every model at the end.
    """

    def __init__(self, groups: Sequence[WelcomeGroup]) -> None:
        if not groups or not groups[-1].fits_all:
            raise ValueError("the last group has to be for every model, without 'for' and 'max_parameters'")
        self._groups = tuple(groups)

    def find_group(self, *, is_guide: bool, num_parameters: int) -> WelcomeGroup:
        """Returns the first group that fits the model."""
        return next(each for each in self._groups if each.fits(is_guide=is_guide, num_parameters=num_parameters))
