"""Reads what a list of models shows of a GGUF file: its header without the vocabulary, which takes milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadError
from engine.model.gguf.files import all_parts
from engine.model.gguf.header import TensorInfo, read_header
from engine.model.gguf.model_file import GgufModel

#: Architectures that write no text: embeddings, and the encoders of multimodal models.
_WRITE_NO_TEXT = ("bert", "clip", "t5encoder")


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """What the headers of a model's files say."""

    number_format: str  #: such as ``Q4_K_M``
    nbytes: int  #: of all tensors
    nbytes_per_token: int  #: of those that a token of one chat reads: without idle experts and unused embeddings
    context_length: int | None  #: tokens
    can_chat: bool  #: False for embedding models, encoders and adapters


def summarize_gguf(path: Path) -> GgufSummary:
    """Returns what the headers of a model's files say, given the first of them.

    Raises:
        ModelLoadError: a file is missing, damaged or no GGUF file.
    """
    headers = [read_header(part, arrays=False) for part in all_parts(path)]
    tensors: dict[str, TensorInfo] = {name: info for header in headers for name, info in header.tensors.items()}
    model = GgufModel(path, dict(headers[0].metadata), tensors)
    architecture = model.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelLoadError(f"{path} does not say which architecture its model has (general.architecture).")
    length = model.metadata.get(f"{architecture}.context_length")
    return GgufSummary(
        number_format=model.number_format if tensors else "without tensors",
        nbytes=model.nbytes,
        nbytes_per_token=model.nbytes - _unread_bytes(model, architecture),
        context_length=length if isinstance(length, int) and length > 0 else None,
        can_chat=not architecture.endswith(_WRITE_NO_TEXT) and model.metadata.get("general.type", "model") == "model",
    )


def _unread_bytes(model: GgufModel, architecture: str) -> int:
    """Returns the bytes of tensors that one token does not read."""
    sizes = {name: info.nbytes for name, info in model.tensors.items()}
    unread = 0
    if "output.weight" in sizes:  # otherwise the embeddings are read whole, as the output layer
        unread += sizes.get("token_embd.weight", 0)
    used = model.metadata.get(f"{architecture}.expert_used_count")
    experts = model.metadata.get(f"{architecture}.expert_count")
    if isinstance(used, int) and isinstance(experts, int) and 0 < used < experts:
        of_experts = sum(size for name, size in sizes.items() if "_exps." in name)
        unread += of_experts - of_experts * used // experts
    return unread
