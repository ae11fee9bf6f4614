"""Loads LoRA adapters for a loaded model: for its module, for the C++ decoder, or for both."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.device.memory import available_memory
from engine.errors import ModelLoadError
from engine.execution.native import lora as native
from engine.execution.native.weights import DecoderWeights
from engine.model.adapter_files import WEIGHTS
from engine.model.loaded_model import LoadedModel
from engine.model.lora import LoraAdapter, linear_sizes
from engine.model.peft_folder import LoraPair, read_adapter

COPIES_WHILE_LOADING = 6
"""Memory that an adapter takes at most while it is loaded, as a multiple of its file."""


def load_adapter(model: LoadedModel, name: str, folder: Path) -> LoraAdapter:
    """Reads an adapter for a loaded model.

    Raises:
        ModelLoadError: see :func:`engine.model.peft_folder.read_adapter`; or there is not enough memory.
    """
    _check_memory(folder)
    structure = model.decoder.structure if isinstance(model.decoder, DecoderWeights) else None
    if structure is not None:
        sizes = native.linear_sizes(structure)
    else:
        assert model.module is not None, "one of the two runs the steps"
        sizes = linear_sizes(model.module)
    found = read_adapter(folder, sizes, model.name)
    packed = None if structure is None else native.PackedAdapter(structure, found.pairs)
    pairs = (
        {}
        if model.module is None
        else {one: LoraPair(pair.a.to(model.device), pair.b.to(model.device)) for one, pair in found.pairs.items()}
    )
    return LoraAdapter(
        name=name,
        content_id=found.content_id,
        pairs=pairs,
        packed=packed,
        rank=found.max_rank,
        size_bytes=sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
        + (0 if packed is None else packed.size_bytes),
        base_model=found.base_model,
    )


def _check_memory(folder: Path) -> None:
    """Checks that an adapter can be read: the file, its tensors, and the same in float32 for one or two layouts."""
    try:
        needed = COPIES_WHILE_LOADING * (folder / WEIGHTS).stat().st_size
    except (OSError, ValueError):  # ValueError: no path, such as one with a null byte
        return  # read_adapter() says why
    free = available_memory(torch.device("cpu"))
    if needed > free:
        raise ModelLoadError(
            f"The adapter in {folder} cannot be loaded: reading it takes {needed / 1e6:,.0f} MB of memory, and only "
            f"{free / 1e6:,.0f} MB are free."
        )
