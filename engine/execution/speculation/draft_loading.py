"""Loads the draft model of another model, or says why it cannot be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import ModelLoadError
from engine.execution.load import load_model
from engine.model.loaded_model import LoadedModel
from engine.model.progress import Progress
from engine.settings import EngineSettings


def with_draft_model(model: LoadedModel, settings: EngineSettings, progress: Progress) -> LoadedModel:
    """Returns the model with the draft model named in ``settings``; unchanged if they name none.

    Raises:
        ModelLoadError: the draft model cannot be loaded, or its tokenizer differs from the model's.
    """
    chosen = draft_settings(settings)
    if chosen is None:
        return model
    try:
        draft = load_model(chosen, progress)
    except ModelLoadError as error:
        raise ModelLoadError(f"speculation={settings.speculation} cannot be the draft model: {error}") from error
    difference = _difference(model.tokenizer.get_vocab(), draft.tokenizer.get_vocab())
    if difference is not None:
        raise ModelLoadError(
            f"{draft.name} cannot be the draft model of {model.name}: their tokenizers differ ({difference}). Choose a "
            "smaller model of the same family, or speculation=prompt-lookup, which needs no draft model."
        )
    return replace(model, draft=draft)


def draft_settings(settings: EngineSettings) -> EngineSettings | None:
    """Returns the settings to load the draft model with; None if there is no draft model."""
    if settings.draft_model is None:
        return None
    return settings.model_copy(update={"model": settings.draft_model, "revision": None, "speculation": "off"})


def _difference(target: dict[str, Any], draft: dict[str, Any]) -> str | None:
    """Describes the first token that differs; returns None if all are equal."""
    if target == draft:
        return None
    names = [{token_id: token for token, token_id in vocabulary.items()} for vocabulary in (target, draft)]
    first = min(id_ for id_ in names[0].keys() | names[1].keys() if names[0].get(id_) != names[1].get(id_))
    there, here = (repr(name[first]) if first in name else "none" for name in (names[1], names[0]))
    return f"token {first} is {there} in the draft model and {here} in the model"
