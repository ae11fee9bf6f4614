"""A model's files, opened: everything that is known of a model before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from engine.model.quantized import QuantizedFormat
from engine.model.tensors import TensorSource


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's configuration, its tokenizer, and where its weights are, whatever kind of files they come from.

    Each kind has a function that opens it (:func:`engine.model.safetensors_folder.open_folder` for a folder of
    safetensors), called by :func:`engine.model.load.open_checkpoint`. It raises ``ModelLoadError`` for everything that
    can be found wrong without reading weights.

    The weights are read in one of two ways. If ``tensors`` is given and the C++ decoder can run every step of the
    model, they go from there into the decoder's memory one by one, and no module of transformers holds them. Otherwise
    transformers loads them from ``folder``. A kind of file that transformers cannot load has no folder: its tensors are
    then given to transformers as numbers (:mod:`engine.model.filled_module`).
    """

    name: str  #: as the model is called by default: its folder's or file's name, or its hub id
    config: Any  #: transformers' configuration of the model
    tokenizer: Any
    generation_config: GenerationConfig
    tensors: TensorSource | None  #: None if only transformers can read the weights
    folder: Path | None  #: the folder that transformers loads the weights from
    weight_bytes: int  #: of all weights in the files
    quantized: QuantizedFormat | None = None  #: how the files store the weights that ``tensors`` dequantizes
    has_unused_adapter: bool = False  #: the folder also holds a LoRA adapter, which is not applied
    file_format: str | None = None  #: the quantization of a GGUF file as people name it, such as ``Q4_K_M``
    num_parameters: int | None = None  #: known where tensors of one file have several number formats
