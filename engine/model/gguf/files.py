"""Finds GGUF files: in a folder, by the quantization in their names, and the parts of a split file.

Imports neither PyTorch nor transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from engine.errors import ModelLoadError

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?<![A-Z0-9])(?:UD-)?(?:I?Q\d[A-Z0-9_]*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4[A-Z0-9_]*)(?![A-Z0-9])", re.IGNORECASE
)
MAX_NAMED = 8
"""Files or quantizations that a message lists."""


def is_gguf(path: str | Path) -> bool:
    """Whether a file's name ends as a GGUF file's does."""
    return Path(path).suffix.lower() == SUFFIX


def model_name(path: Path) -> str:
    """Returns the name of the model in a file: the file's, without its ending and its part's number."""
    part = _PART.fullmatch(path.name)
    return part["stem"] if part else path.stem


def generation_config_path(path: Path) -> Path:
    """Returns where a file's own ``generation_config.json`` may lie: beside it, with the model's name in front."""
    return path.with_name(f"{model_name(path)}.generation_config.json")


def first_part(path: Path) -> Path:
    """Returns the first part of a split file; the file itself if it is not split."""
    part = _PART.fullmatch(path.name)
    return path.with_name(_part_name(part, 1)) if part else path


def all_parts(path: Path) -> list[Path]:
    """Returns all parts of a split file, given any of them; the file itself if it is not split.

    Raises:
        ModelLoadError: parts are missing.
    """
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    parts = [path.with_name(_part_name(part, number)) for number in range(1, int(part["count"]) + 1)]
    missing = [each.name for each in parts if not each.exists()]
    if missing:
        raise ModelLoadError(
            f"{path.parent} lacks {len(missing)} of the {len(parts)} parts of this model: {_listed(missing)}. Put all "
            "parts into one folder."
        )
    return parts


def file_in_folder(folder: Path, names: Sequence[str]) -> Path | None:
    """Returns the GGUF file of a folder; None if it has none.

    Args:
        names: the names of the folder's files.

    Raises:
        ModelLoadError: it holds several models.
    """
    models = _models(names)
    if len(models) > 1:
        raise ModelLoadError(
            f"{folder} holds several GGUF files: {_listed(sorted(models))}. Name one of them, such as "
            f"{folder / min(models)}."
        )
    return folder / next(iter(models)) if models else None


def files_of_quantization(model: str, wanted: str | None, names: Iterable[str]) -> list[str]:
    """Returns the names of the files of a quantization in a repository: one, or all parts of a split file.

    Args:
        model: the repository.
        wanted: a quantization such as ``Q4_K_M``, in any case; None if the repository is expected to have only one.
        names: all files of the repository.

    Raises:
        ModelLoadError: there is no GGUF file of that quantization, or several, or not all parts of it.
    """
    names = list(names)
    models = _models(names)
    if not models:
        raise ModelLoadError(f"{model} holds no GGUF files. Give its name without a quantization: --model {model}")
    by_quantization: dict[str, list[str]] = {}
    for name in models:
        by_quantization.setdefault(quantization_in_name(name) or PurePosixPath(name).stem, []).append(name)
    offered = f"It has {_listed(sorted(by_quantization))}"
    if wanted is None:
        if len(models) > 1:
            raise ModelLoadError(
                f"{model} holds several GGUF files. {offered}. Name one, such as --model "
                f"{model}:{_common(by_quantization)}"
            )
        (chosen,) = models
    else:
        found = [each for key, files in by_quantization.items() if _same(key, wanted) for each in files]
        found = found or [each for each in models if PurePosixPath(each).stem.casefold().endswith(wanted.casefold())]
        if not found:
            raise ModelLoadError(f"{model} has no quantization {wanted}. {offered}.")
        if len(found) > 1:
            raise ModelLoadError(
                f"{model} has several files of the quantization {wanted}: {_listed(sorted(found))}. Name one by its "
                f"whole name, such as --model {model}:{PurePosixPath(min(found)).stem}"
            )
        (chosen,) = found
    return _parts_among(model, chosen, names)


def quantization_in_name(name: str) -> str | None:
    """Returns the quantization that a file's name, or its folder's, tells; None if neither does."""
    path = PurePosixPath(name)
    for text in (model_name(Path(path.name)), path.parent.name):
        if found := _QUANTIZATION.findall(text):
            return str(found[-1]).upper()
    return None


def _models(names: Iterable[str]) -> dict[str, None]:
    """Returns the GGUF files that hold a language model: of a split file, the first part that is there."""
    models: dict[str, None] = {}
    seen: set[str] = set()
    for name in sorted(names):
        if not is_gguf(name) or "mmproj" in name.casefold() or "imatrix" in name.casefold():
            continue  # projectors of images, and statistics for quantizing
        part = _PART.fullmatch(name)
        key = part["stem"] if part else name
        if key not in seen:
            seen.add(key)
            models[name] = None
    return models


def _parts_among(model: str, chosen: str, names: Sequence[str]) -> list[str]:
    part = _PART.fullmatch(chosen)
    if part is None:
        return [chosen]
    parts = [_part_name(part, number) for number in range(1, int(part["count"]) + 1)]
    missing = sorted(set(parts) - set(names))
    if missing:
        raise ModelLoadError(
            f"{model} lacks {len(missing)} of the {len(parts)} parts of this model: {_listed(missing)}."
        )
    return parts


def _part_name(part: re.Match[str], number: int) -> str:
    return f"{part['stem']}-{number:05d}-of-{part['count']}{SUFFIX}"


def _same(quantization: str, wanted: str) -> bool:
    return quantization.casefold() == wanted.casefold()


def _common(offered: Iterable[str]) -> str:
    """Returns the quantization to suggest: the one that most people take, where it is offered."""
    offered = sorted(offered)
    return next((each for each in ("Q4_K_M", "Q8_0") if each in offered), offered[0])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
