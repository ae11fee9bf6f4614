"""Reads how an encoder's folder wants its vectors made, from the files that sentence-transformers writes.

``modules.json`` lists the steps, ``1_Pooling/config.json`` says how the vectors of the tokens become one,
``config_sentence_transformers.json`` has the prompts and ``sentence_bert_config.json`` the maximum length.
Source: https://sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.embeddings import TextRole
from engine.errors import ModelLoadError


class Pooling(StrEnum):
    """How the vectors of a text's tokens become one."""

    MEAN = "mean"
    CLS = "cls"  #: the first token's
    MAX = "max"
    LAST_TOKEN = "lasttoken"


_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
#: Names of a role's prompt, the first of which a folder has: those of ``encode_query`` and ``encode_document``.
_ROLE_PROMPTS = {TextRole.QUERY: ("query",), TextRole.DOCUMENT: ("document", "passage", "corpus")}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a folder's vectors are made.

    ``is_stated``: the folder says so; otherwise it is the mean of a plain encoder's tokens, to length 1.
    """

    pooling: Pooling = Pooling.MEAN
    normalizes: bool = True  #: to length 1
    pools_prompt: bool = True  #: the tokens of the prompt are part of the mean
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    max_tokens: int | None = None
    is_stated: bool = False

    def prompt_for(self, role: TextRole | None) -> str:
        """Returns the text that stands before each text of a role; empty where there is none."""
        names = () if role is None else _ROLE_PROMPTS[role]
        return next((self.prompts[name] for name in names if name in self.prompts), self.default_prompt)


def read_recipe(folder: Path, name: str) -> Recipe:
    """Reads the recipe of an encoder's folder.

    Args:
        name: of the encoder, for messages.

    Raises:
        ModelLoadError: a file is damaged, or asks for a step that is not supported.
    """
    prompts, default = _prompts(folder, name)
    limit = _read(folder / "sentence_bert_config.json", name, dict).get("max_seq_length")
    max_tokens = limit if isinstance(limit, int) and limit > 0 else None
    modules: list[Any] = _read(folder / "modules.json", name, list)
    if not modules:
        return Recipe(prompts=prompts, default_prompt=default, max_tokens=max_tokens)
    kinds = {}
    for module in modules:
        kind, path = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ModelLoadError(
                f"The encoder {name} cannot run here: its modules.json has a step {kind or 'without a type'}, and only "
                "Transformer, Pooling and Normalize are supported. Choose another encoder."
            )
        kinds[kind] = folder / path
    if not kinds.get("Pooling", folder).resolve().is_relative_to(folder.resolve()):
        raise ModelLoadError(f"The encoder {name} is damaged: its modules.json names a folder outside of it.")
    pooling: dict[str, Any] = _read(kinds.get("Pooling", folder / "1_Pooling") / "config.json", name, dict)
    return Recipe(
        pooling=_pooling(pooling, name),
        normalizes="Normalize" in kinds,
        pools_prompt=bool(pooling.get("include_prompt", True)),
        prompts=prompts,
        default_prompt=default,
        max_tokens=max_tokens,
        is_stated=True,
    )


def _pooling(config: Mapping[str, Any], name: str) -> Pooling:
    modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    stated = config.get("pooling_mode")
    if isinstance(stated, str | list):
        modes = [stated] if isinstance(stated, str) else list(stated)
    if len(modes) > 1 or not set(modes) <= {one.value for one in Pooling}:
        raise ModelLoadError(
            f"The encoder {name} cannot run here: it pools by {' and '.join(map(str, modes))}, and only one of "
            f"{', '.join(Pooling)} is supported. Choose another encoder."
        )
    return Pooling(modes[0]) if modes else Pooling.MEAN


def _prompts(folder: Path, name: str) -> tuple[dict[str, str], str]:
    config: dict[str, Any] = _read(folder / "config_sentence_transformers.json", name, dict)
    given = config.get("prompts")
    prompts = {str(key): str(text) for key, text in given.items()} if isinstance(given, dict) else {}
    return prompts, prompts.get(str(config.get("default_prompt_name")), "")


def _read(file: Path, name: str, kind: type[Any]) -> Any:
    """Returns the JSON of a file; an empty ``kind`` where there is no such file."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The encoder {name} is damaged: {file.name} cannot be read ({error}).") from error
    if not isinstance(value, kind):
        raise ModelLoadError(f"The encoder {name} is damaged: {file.name} is not a JSON {kind.__name__}.")
    return value
