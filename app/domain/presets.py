"""Named presets of sampling settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.domain.chat_settings import CHAT_PARAMETERS, ChatSettings
from app.domain.text import shown_name
from app.errors import InvalidInput

PRESET_PARAMETERS: Final = tuple([parameter for parameter in CHAT_PARAMETERS if parameter.slider is not None])
"""The sampling parameters that a preset sets; length, stop strings and seed are not part of one."""

MAX_PRESET_NAME_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Values for the settings panel, by the parameters' names. A missing one is the model's own default.

    Raises:
        InvalidInput: a value is out of range, or its parameter is not one that presets set.
    """

    name: str
    title: str
    description: str
    values: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if other := self.values.keys() - {parameter.name for parameter in PRESET_PARAMETERS}:
            raise InvalidInput(f"A preset cannot set '{min(other)}'.")
        ChatSettings(**self.values).sampling_params()

    def options(self) -> dict[str, object]:
        """Returns the preset for the page, with every parameter; None is the model's own default."""
        values = {parameter.name: self.values.get(parameter.name) for parameter in PRESET_PARAMETERS}
        return {"name": self.name, "title": self.title, "description": self.description, **values}


@dataclass(frozen=True, slots=True)
class OwnPreset:
    """A preset that a user has saved. A parameter that is missing in ``values`` is the model's own default."""

    id: str
    name: str
    values: Mapping[str, float]


def own_preset(preset_id: str, name: str, settings: ChatSettings) -> OwnPreset:
    """Takes from settings what presets set.

    Raises:
        InvalidInput: the name is empty, too long or that of a preset that all users have, or a value is out of range.
    """
    name = shown_name(name)
    if not name or len(name) > MAX_PRESET_NAME_CHARS:
        raise InvalidInput(f"The name of a preset has 1 to {MAX_PRESET_NAME_CHARS} characters.")
    if name.casefold() in {"custom", *(preset.title.casefold() for preset in PRESETS)}:
        raise InvalidInput(f"All users have a preset named “{name}”. Choose another name.")
    settings.sampling_params()
    values = {parameter.name: getattr(settings, parameter.name) for parameter in PRESET_PARAMETERS}
    return OwnPreset(preset_id, name, {key: value for key, value in values.items() if value is not None})


PRESETS: tuple[Preset, ...] = (
    Preset(
        name="default",
        title="Model default",
        description="What the model's authors recommend.",
    ),
    Preset(
        name="precise",
        title="Precise",
        description="Keeps to the likeliest words: facts, code, short answers.",
        values={"temperature": 0.2, "top_p": 0.9, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0},
    ),
    Preset(
        name="balanced",
        title="Balanced",
        description="Varied but to the point: everyday questions.",
        values={"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.0, "repetition_penalty": 1.05},
    ),
    Preset(
        name="creative",
        title="Creative",
        description="Takes surprising turns: stories, names, ideas.",
        values={"temperature": 1.1, "top_p": 1.0, "top_k": 0, "min_p": 0.05, "repetition_penalty": 1.05},
    ),
)
