"""The options that the page loads before it can show its controls."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from app.auth.identity import Identity
from app.domain.presets import PRESETS
from app.domain.templates import TemplateKind
from engine import ModelHost

if TYPE_CHECKING:
    from app.services.container import Services


async def page_options(services: Services, identity: Identity) -> dict[str, object]:
    """Return the user, the model and its defaults, the presets and the system prompts, ready for JSON."""
    person = await services.accounts.records.get(identity.user_id) if services.accounts is not None else None
    defaults = services.engine.default_sampling_params
    info = services.engine.info
    return {
        "accounts": services.accounts is not None,
        "user": {"name": person.display_name if person else None, "role": identity.role},
        "retention_days": services.settings.retention_days,
        "model": {
            "name": info.name,
            "max_model_len": info.max_model_len,
            "can_continue": info.can_continue,
            "remote": not isinstance(services.engine, ModelHost),
        },
        "defaults": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        },
        "presets": [asdict(preset) for preset in PRESETS],
        "prompts": [
            {
                "name": prompt.name,
                "title": prompt.template.title,
                "description": prompt.template.description,
                "text": prompt.template.render(),
                "variables": [variable.model_dump() for variable in prompt.template.variables],
                "recommended": prompt.template.recommended.model_dump(mode="json", exclude_defaults=True),
            }
            for prompt in await services.templates.all(TemplateKind.PROMPT)
        ],
    }
