"""Loads an encoder's folder, or says in a sentence why it is none. Structure and tokenizer come from transformers."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from engine.device.host_memory import available_host_memory
from engine.embeddings import EncoderInfo
from engine.encoder.encoder_model import EncoderModel
from engine.encoder.memory import weight_bytes
from engine.encoder.recipe import read_recipe
from engine.errors import ModelLoadError, first_line
from engine.model.folders import find_model
from engine.model.hub import fetch_encoder_description, fetch_weights
from engine.model.progress import Progress

DEFAULT_MAX_TOKENS = 512
"""Tokens. The limit where no file states one."""
UNSTATED_LENGTH = 10**6
"""Tokens. Tokenizers without a limit report a number beyond this one."""
FINGERPRINT_SAMPLES, SAMPLE_BYTES = 32, 4096
"""Parts of each weight file that the fingerprint covers: to read all of it would take seconds."""


def load_encoder(model: str, progress: Progress) -> EncoderModel:
    """Loads an encoder in float32, for the CPU.

    Args:
        model: a folder, relative to the working directory or to Deskmate's folder, or a hub id.

    Raises:
        ModelLoadError: there is no such model, it is no encoder, it is damaged, or it is larger than the free memory.
    """
    try:
        found = find_model(model)
    except ModelLoadError as error:
        raise ModelLoadError(f"ENGINE_ENCODER: {error}") from error
    if isinstance(found, Path) and found.is_file():
        raise ModelLoadError(f"The encoder {model} is a GGUF file. Give a folder with config.json and *.safetensors.")
    is_local = isinstance(found, Path)
    folder = found if isinstance(found, Path) else fetch_encoder_description(found, None, progress)
    name = Path(model).name if is_local else model
    recipe = read_recipe(folder, name)
    config = _load_config(folder, name)
    if not recipe.is_stated and any(str(one).endswith("ForCausalLM") for one in config.architectures or ()):
        raise _no_encoder(name, "it is a model that writes text, and has no modules.json that says how to pool")
    if config.is_encoder_decoder:
        raise _no_encoder(name, f"it is an encoder-decoder model ({config.model_type})")
    tokenizer = _load_tokenizer(folder, name)
    if not is_local:
        fetch_weights(model, folder, progress)
    progress(f"Loading the encoder {name}", 0.0)
    _require_memory(folder, name)
    module = _load_module(folder, name)
    info = EncoderInfo(
        name=name,
        dimensions=int(config.get_text_config().hidden_size),
        max_tokens=_max_tokens(recipe.max_tokens, tokenizer, config, module),
        fingerprint=_fingerprint(folder),
        shorter_dimensions=_shorter_dimensions(config),
    )
    encoder = EncoderModel(info, recipe, module, tokenizer)
    _check(encoder)
    progress(f"Loading the encoder {name}", 1.0)
    return encoder


def _no_encoder(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} is not an encoder: {why}. Give ENGINE_ENCODER the folder or hub id of one, such as "
        "sentence-transformers/all-MiniLM-L6-v2."
    )


def _load_config(folder: Path, name: str) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise _no_encoder(name, "it brings its own Python code, which Deskmate never runs") from error
        raise ModelLoadError(f"The encoder {name} cannot be read: {first_line(error)}") from error


def _load_tokenizer(folder: Path, name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelLoadError(f"The tokenizer of the encoder {name} cannot be loaded: {first_line(error)}") from error


def _load_module(folder: Path, name: str) -> PreTrainedModel:
    draws_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # ours is on the page and in the log
    try:
        module, report = AutoModel.from_pretrained(
            folder,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        raise ModelLoadError(f"The encoder {name} cannot be loaded: {first_line(error)}") from error
    finally:
        if draws_bar:
            logging.enable_progress_bar()
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise ModelLoadError(f"The encoder {name} is incomplete: its weights lack {missing[0]}. Download it again.")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.clone()  # not mapped from the file, which would count as free memory
    module.eval()
    return module


def _require_memory(folder: Path, name: str) -> None:
    needed = weight_bytes(folder)
    free = available_host_memory()
    if needed > free:
        raise ModelLoadError(
            f"The encoder {name} does not fit into memory: its weights take {needed / 1e9:.2f} GB in float32, and "
            f"{free / 1e9:.2f} GB are free. Choose a smaller encoder, or free memory."
        )


def _max_tokens(stated: int | None, tokenizer: Any, config: Any, module: nn.Module) -> int:
    limits = [stated, tokenizer.model_max_length, _positions(config, module)]
    known = [int(one) for one in limits if one is not None and one < UNSTATED_LENGTH]
    return min(known, default=DEFAULT_MAX_TOKENS)


def _positions(config: Any, module: nn.Module) -> int | None:
    """Returns how many tokens have a position. Tables with a padding row begin to count after it (RoBERTa's)."""
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            return part.num_embeddings - (part.padding_idx + 1 if part.padding_idx is not None else 0)
    return positions


def _shorter_dimensions(config: Any) -> tuple[int, ...] | None:
    """Returns the lengths that vectors may be cut to: as for vLLM, ``matryoshka_dimensions`` of config.json."""
    listed = getattr(config, "matryoshka_dimensions", None)
    if isinstance(listed, list | tuple):
        return tuple(int(one) for one in listed)
    return None if getattr(config, "is_matryoshka", False) is True else ()


def _fingerprint(folder: Path) -> str:
    """Returns a hash of what the vectors depend on: the configuration, the tokenizer, and samples of the weights."""
    digest = blake2b(digest_size=8)
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.suffix not in (".json", ".txt", ".model", ".safetensors"):
            continue
        size = file.stat().st_size
        digest.update(f"{file.relative_to(folder).as_posix()} {size}\n".encode())
        with file.open("rb") as content:
            if file.suffix != ".safetensors":
                digest.update(content.read())
                continue
            for number in range(FINGERPRINT_SAMPLES):
                content.seek(max(size - SAMPLE_BYTES, 0) * number // (FINGERPRINT_SAMPLES - 1))
                digest.update(content.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _check(encoder: EncoderModel) -> None:
    """Encodes a word, and refuses a model whose output is not that of an encoder."""
    name = encoder.info.name
    try:
        ids = encoder.tokenize(["Hello"], None)[0].ids
        hidden = encoder.hidden_states([ids, [*ids, ids[0]]])
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        raise _no_encoder(name, f"a text cannot be given to it ({first_line(error).rstrip('.')})") from error
    if hidden.ndim != 3 or hidden.shape[-1] != encoder.info.dimensions or not bool(hidden.isfinite().all()):
        raise _no_encoder(name, "it does not return a vector of numbers for each token")
    if not encoder.recipe.is_stated:
        one, other = encoder.hidden_states([[ids[0], ids[0]], [ids[0], ids[-1]]])
        if ids[0] != ids[-1] and torch.equal(one[0], other[0]):
            raise _no_encoder(name, "its first token does not see the last, and no modules.json says how to pool")
