"""The options that the page loads before it can show its controls."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from app.auth.identity import Identity
from app.domain.chat_settings import CHAT_PARAMETERS
from app.domain.presets import PRESET_PARAMETERS, PRESETS
from app.domain.templates import TemplateKind
from app.models.recommended import recommended_models
from engine import ChatEngine, EngineState, Group, ModelHost, Parameter

if TYPE_CHECKING:
    from app.services.container import Services
    from app.store.desk.template_versions import StoredTemplate


async def page_options(services: Services, identity: Identity) -> dict[str, object]:
    """Return the user, the model, the sampling parameters with its defaults, the presets, collections and prompts."""
    person = await services.accounts.records.get(identity.user_id) if services.accounts is not None else None
    new_chats = await services.presets.for_new_chats(identity.user_id)
    info = services.engine.info
    limit = await services.models.decode_limit()
    return {
        "accounts": services.accounts is not None,
        "user": {"name": person.display_name if person else None, "role": identity.role},
        "retention_days": services.settings.retention_days,
        "model": {
            "name": info.name,
            "max_model_len": info.max_model_len,
            "num_parameters": info.num_parameters,
            "can_continue": info.can_continue,
            "can_inspect": info.can_inspect,
            "can_think": info.can_think,
            "can_call_tools": info.can_call_tools and bool(services.tools.names),
            "adapters": list(info.adapters),
            "remote": not isinstance(services.engine, ModelHost),
            "is_loading": is_loading(services.engine),
            "is_downloading": services.models.is_downloading,
            "decode_limit": asdict(limit) if limit is not None else None,
        },
        "suggested_model": _suggested_model(services),
        "welcome": _welcome(services),
        "parameters": [_parameter_options(parameter) for parameter in CHAT_PARAMETERS],
        "defaults": preset_defaults(services.engine),
        "presets": [preset.options() for preset in PRESETS],
        "own_presets": [asdict(preset) for preset in await services.presets.all(identity.user_id)],
        "new_chat_settings": new_chats.model_dump(mode="json") if new_chats else None,
        "collections": [
            {"id": collection.id, "name": collection.name, "is_empty": collection.documents == 0}
            for collection in await services.knowledge.collections.all(identity.user_id)
        ],
        "prompts": [_prompt_options(prompt) for prompt in await services.templates.all(TemplateKind.PROMPT)],
    }


def is_loading(engine: ChatEngine) -> bool:
    """Whether the server is loading its first model or another one, so that its name and limits are not certain yet."""
    return isinstance(engine, ModelHost) and engine.status.state in (EngineState.STARTING, EngineState.SWAPPING)


def _suggested_model(services: Services) -> dict[str, object] | None:
    """Return the first recommended model while the guide is loaded, which answers questions about Deskmate only."""
    if not services.models.has_guide:
        return None
    model = recommended_models()[0]
    return {"name": model.name, "title": model.title, "size_mb": model.size_mb, "licence": model.licence}


def _welcome(services: Services) -> dict[str, object]:
    """Return what an empty chat says about the loaded model, and the examples that it can answer."""
    is_guide, size = services.models.has_guide, services.engine.info.num_parameters
    group = services.welcome.find_group(is_guide=is_guide, num_parameters=size)
    return {"good_for": group.good_for, "examples": list(group.examples)}


async def find_prompt(services: Services, name: str) -> dict[str, object] | None:
    """Return one of the system prompts in use, as it is now, as in :func:`page_options`; None if there is none."""
    prompts = await services.templates.all(TemplateKind.PROMPT)
    return next((_prompt_options(prompt) for prompt in prompts if prompt.name == name), None)


def preset_defaults(engine: ChatEngine) -> dict[str, float]:
    """Return the model's own defaults of the parameters that presets set, by name."""
    defaults = engine.default_sampling_params
    return {parameter.name: getattr(defaults, parameter.name) for parameter in PRESET_PARAMETERS}


def _prompt_options(prompt: StoredTemplate) -> dict[str, object]:
    template = prompt.template
    return {
        "name": prompt.name,
        "title": template.title,
        "description": template.description,
        "text": template.render(),
        "variables": [variable.model_dump() for variable in template.variables],
        "min_parameters": template.min_parameters,
        "recommended": template.recommended.model_dump(mode="json", exclude_defaults=True),
    }


def _parameter_options(parameter: Parameter) -> dict[str, object]:
    """Return what the page's scripts need to know of a parameter; ``components/settings`` makes its control."""
    return {
        "name": parameter.name,
        "label": parameter.label,
        "kind": parameter.kind,
        "unit": parameter.unit,
        "unset": parameter.default,
        "is_slider": parameter.slider is not None,
        "is_advanced": parameter.is_advanced,
        # The desk's editor of prompts offers the numbers, but no seed: one seed for every chat would repeat replies.
        "is_recommendable": parameter.group is not Group.OUTPUT and parameter.kind.is_number,
    }
