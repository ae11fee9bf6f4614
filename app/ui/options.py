"""What the page must know of the server before it can show its controls."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from app.domain.presets import PRESETS

if TYPE_CHECKING:
    from app.services import Services


def page_options(services: Services) -> dict[str, object]:
    """The model, its defaults, the presets and the library of system prompts, as JSON."""
    defaults = services.engine.default_sampling_params
    info = services.engine.info
    return {
        "retention_days": services.settings.retention_days,
        "model": {"name": info.name, "max_model_len": info.max_model_len},
        "defaults": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        },
        "presets": [asdict(preset) for preset in PRESETS],
        "prompts": [
            {"name": prompt.name, "title": prompt.title, "description": prompt.description, "text": prompt.render()}
            for prompt in services.prompts.all()
        ],
    }
