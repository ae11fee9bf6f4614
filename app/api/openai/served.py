"""The model as ``/v1`` serves it: its names, its card, and a fingerprint of how it runs."""

from __future__ import annotations

import time
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from app import __version__
from app.api.openai.errors import OpenAIError
from engine import ModelInfo

#: When this process began: the nearest thing to a date that a folder of weights has.
STARTED = int(time.time())


def names_of(info: ModelInfo) -> tuple[str, ...]:
    """Under which the model is asked for; answers carry the first."""
    return info.served_names or (info.name,)


def check_model(name: str | None, info: ModelInfo) -> None:
    """Raises OpenAIError: ``name`` is not the model that is loaded. Without a name it is."""
    names = names_of(info)
    if name is not None and name not in names:
        raise OpenAIError(
            404,
            "model_not_found",
            f"The model '{name[:200]}' does not exist here. '{names[0]}' is loaded.",
            "model",
        )


def model_card(name: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "deskmate",
        "root": info.name,
        "parent": None,
        "max_model_len": info.max_model_len,
    }


@lru_cache(maxsize=8)
def fingerprint(info: ModelInfo) -> str:
    """OpenAI's ``system_fingerprint``: another one where the same request with a seed may have another reply."""
    how = (__version__, info.name, info.dtype, info.device, info.attention, info.num_parameters, info.max_model_len)
    return f"fp_{blake2b(repr(how).encode(), digest_size=6).hexdigest()}"
