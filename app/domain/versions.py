"""Versions of a reply: what each was written with, and in what two of them differ."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.chat_settings import ChatSettings
from app.domain.views import SettingDifference

MAX_VALUE_CHARS = 200
"""Of a text that is shown as a difference. A longer one is cut, with an ellipsis."""

_UNCOMPARED = frozenset({"preset", "seed"})  # a preset is its values; a seed tells only versions that are alike apart


@dataclass(frozen=True, slots=True)
class Origin:
    """What a reply was written with."""

    settings: ChatSettings
    model: str | None = None


def differences_of(origin: Origin, other: Origin) -> tuple[SettingDifference, ...]:
    """In what a version differs from another, in the settings panel's order."""
    found = [
        SettingDifference(name, _shown(getattr(origin.settings, name)), _shown(getattr(other.settings, name)))
        for name in ChatSettings.model_fields
        if name not in _UNCOMPARED and getattr(origin.settings, name) != getattr(other.settings, name)
    ]
    if origin.model != other.model:
        found.append(SettingDifference("model", origin.model, other.model))
    return tuple(found)


def _shown(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
    elif isinstance(value, dict):
        text = ", ".join(f"{name}: {each}" for name, each in value.items())
    else:
        text = str(value)
    text = " ".join(text.split())
    return (text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…") or None
