"""Named presets of sampling settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Values for the settings panel. ``None`` leaves a field to the model's own default."""

    name: str
    title: str
    description: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


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
        temperature=0.2,
        top_p=0.9,
        top_k=20,
        min_p=0.0,
        repetition_penalty=1.0,
    ),
    Preset(
        name="balanced",
        title="Balanced",
        description="Varied but to the point: everyday questions.",
        temperature=0.7,
        top_p=0.9,
        top_k=50,
        min_p=0.0,
        repetition_penalty=1.05,
    ),
    Preset(
        name="creative",
        title="Creative",
        description="Takes surprising turns: stories, names, ideas.",
        temperature=1.1,
        top_p=1.0,
        top_k=0,
        min_p=0.05,
        repetition_penalty=1.05,
    ),
)
