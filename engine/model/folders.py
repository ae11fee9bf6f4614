"""Finds a model by its folder, file or hub id, and checks its folder. Imports neither PyTorch nor transformers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.model.adapter_files import adapter_alone, is_adapter_only
from engine.model.checkpoints import mode_of, refuse_unreadable_weights
from engine.model.gguf.files import file_in_folder, first_part, is_gguf, model_name
from engine.model.gguf.header import read_header
from engine.model.gguf.model_file import open_gguf
from engine.outputs import ModelInfo
from engine.settings import EngineSettings

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
PROJECT_ROOT = Path(__file__).resolve().parents[2]
UNKNOWN_LENGTH = 4096
"""Tokens. The context window that is reported until the model's own is known."""


def find_model(model: str) -> Path | str:
    """Returns the folder of a model, or its GGUF file, or its hub id.

    Args:
        model: a folder or GGUF file, relative to the working directory or to Deskmate's folder, or a hub id, which may
            name the quantization of a GGUF file: ``org/repo:Q4_K_M``.

    Raises:
        ModelLoadError: there is no such folder or file, or it holds no model with weights that can be read.
    """
    path = Path(model).expanduser()
    try:
        for candidate in (path, PROJECT_ROOT / model):
            mode = mode_of(candidate)
            if stat.S_ISDIR(mode):
                return _model_in_folder(candidate)
            if stat.S_ISREG(mode) and (is_gguf(candidate) or _begins_as_gguf(candidate)):
                return open_gguf(candidate.absolute()).path
        is_file = stat.S_ISREG(mode_of(path))
    except OSError as error:
        raise ModelLoadError(f"The model folder {model} cannot be read: {error.strerror or error}.") from error
    if is_file:
        raise ModelLoadError(
            f"{model} is a file, and not a .gguf file. Give a GGUF file, or the folder that holds config.json and the "
            "weights."
        )
    looks_like_path = (
        model.startswith((".", "/", "~")) or model.count("/") != 1 or (path.parent.is_dir() and len(path.parts) > 1)
    )
    if looks_like_path:
        raise ModelLoadError(
            f"There is no {'GGUF file' if is_gguf(model) else 'model folder'} at {model}. Give a folder with "
            "config.json and *.safetensors, a GGUF file, or a hub id such as Qwen/Qwen3-0.6B."
        )
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported, but not by its __all__

    try:
        repository, colon, quantization = model.partition(":")
        validate_repo_id(repository)
        if colon and not quantization:
            raise ModelLoadError(
                f"'{model}' names no quantization after the colon. Name one, such as {repository}:Q4_K_M."
            )
    except HFValidationError as error:
        raise ModelLoadError(f"'{model}' is neither a model folder nor a hub id such as Qwen/Qwen3-0.6B.") from error
    return model


def expected_info(settings: EngineSettings) -> ModelInfo:
    """Returns what can be said of the model before it is loaded: its name, and the context window if the folder tells.

    The rest are placeholders. Never raises: loading the model reports what is wrong with it.
    """
    name, length = _stated(settings.model)
    return ModelInfo(
        name=name,
        max_model_len=settings.max_model_len or length or UNKNOWN_LENGTH,
        vocab_size=0,
        dtype="unknown",
        device="unknown",
        attention="unknown",
        num_parameters=0,
        has_chat_template=True,
        served_names=settings.served_model_name,
    )


def _stated(model: str) -> tuple[str, int | None]:
    """Returns a model's name, and its context window if its files are here and tell."""
    path = Path(model).expanduser()
    if not path.exists():
        path = PROJECT_ROOT / model
    try:
        if path.is_dir() and not (path / "config.json").is_file():
            path = file_in_folder(path, sorted(os.listdir(path))) or path
        if path.is_file():
            return model_name(path), _stated_length_of_gguf(path)
    except (OSError, ModelLoadError):
        return model, None
    return (Path(model).name, _stated_length(path)) if path.is_dir() else (model, None)


def _stated_length_of_gguf(file: Path) -> int | None:
    metadata = read_header(first_part(file), arrays=False).metadata
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) and length > 0 else None


def _begins_as_gguf(file: Path) -> bool:
    """Whether a file begins with GGUF's magic bytes: Ollama names its files by their hashes."""
    with file.open("rb") as content:
        return content.read(4) == b"GGUF"


def _stated_length(folder: Path) -> int | None:
    """Returns ``max_position_embeddings`` of the folder's config.json; None if it has none."""
    try:
        config: Any = json.loads((folder / "config.json").read_bytes())
        length = config.get("max_position_embeddings") or config["text_config"]["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return length if isinstance(length, int) and length > 0 else None


def _model_in_folder(folder: Path) -> Path:
    """Returns the folder if it holds safetensors weights, otherwise the GGUF file in it."""
    if is_adapter_only(folder):
        raise adapter_alone(str(folder), folder)
    names = sorted(os.listdir(folder))  # raises if the folder cannot be read, where glob would find nothing
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights or "config.json" not in names:
        file = file_in_folder(folder, names)
        if file is not None:
            return open_gguf(file.absolute()).path
    if "config.json" not in names:
        raise ModelLoadError(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    for name in weights:
        refuse_unreadable_weights(folder / name)
    if weights:
        return folder.resolve()
    pickles = [name for name in names if Path(name).suffix in PICKLE_SUFFIXES]
    if pickles:
        raise ModelLoadError(
            f"{folder} holds only pickle weights ({pickles[0]}), which can run arbitrary code when opened. "
            "Convert them to safetensors with model.save_pretrained(folder) in transformers."
        )
    raise ModelLoadError(f"{folder} has no weights: it contains no *.safetensors and no *.gguf file.")
