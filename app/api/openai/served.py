"""The loaded model in ``/v1``: its served names, its card, and its system fingerprint."""

from __future__ import annotations

import time
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from app import __version__
from app.api.openai.errors import OpenAIError
from engine import ModelInfo

#: Unix time of the process's start, sent as the model's ``created``: a folder of weights has no date of its own.
STARTED = int(time.time())


def names_of(info: ModelInfo) -> tuple[str, ...]:
    """Returns the names that requests may use for the model; responses carry the first."""
    return info.served_names or (info.name,)


def check_model(name: str | None, info: ModelInfo) -> str | None:
    """Returns the adapter that ``name`` chooses; None for one of the loaded model's own names, or no name.

    Raises:
        OpenAIError: it is another name.
    """
    names = names_of(info)
    if name is None or name in names:
        return None
    if name not in info.adapters:
        raise OpenAIError(
            404,
            "model_not_found",
            f"The model '{name[:200]}' does not exist. The loaded model is '{names[0]}'.",
            "model",
        )
    return name


def model_card(name: str, info: ModelInfo) -> dict[str, Any]:
    """Returns the card of the model or, by its name, of an adapter: as vLLM's, its ``parent`` is the model."""
    adapter = check_model(name, info)
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "deskmate",
        "root": info.name if adapter is None else adapter,
        "parent": None if adapter is None else names_of(info)[0],
        "max_model_len": info.max_model_len,
    }


@lru_cache(maxsize=8)
def fingerprint(info: ModelInfo, adapter: str | None = None) -> str:
    """Returns OpenAI's ``system_fingerprint``, which changes when a request with a seed may get another reply."""
    how: tuple[object, ...] = (__version__, info.name, info.dtype, info.device, info.attention, info.num_parameters)
    how += (info.max_model_len,) if adapter is None else (info.max_model_len, adapter)
    return f"fp_{blake2b(repr(how).encode(), digest_size=6).hexdigest()}"
