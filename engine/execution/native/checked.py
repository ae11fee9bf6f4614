"""Remembers that a model passed the checks, whatever kind of files it came from, so that a later start can skip them.

The key covers everything that the checks depend on but the weights' values: the model's structure, the names, shapes
and formats of its tensors, the libraries, our code and the compiled decoder. For the values there are some of the
decoder's logits, which each start compares with the recorded ones. Folders of safetensors have more: records that spare
a start the model's module, too (:mod:`engine.execution.native.verified`).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import first_line
from engine.execution.native.build import cache_folder
from engine.execution.native.structure import Structure
from engine.execution.native.verified import encode, environment_hash, logits_sample, matches, write_json
from engine.execution.native.weights import DecoderWeights
from engine.model.tensors import TensorSource

log = logging.getLogger(__name__)


class CheckedModel:
    """The record of a model that may have been checked before.

    Args:
        structure: of the model, as it was found now.
        tensors: of the model, by the names of its parameters.
        number_format: that the model is served in.
        dtype: of what it computes beside it.
        context_window: tokens; the checks go up to its end.
        kv_cache_dtype: that the checks read and write.

    Raises:
        NotCompiled: there is no compiled decoder, or no cache folder.
        OSError: a file cannot be read.
    """

    def __init__(
        self,
        structure: Structure,
        tensors: TensorSource,
        number_format: str,
        dtype: torch.dtype,
        context_window: int,
        kv_cache_dtype: str = "auto",
    ) -> None:
        key = environment_hash()
        parts = [structure, number_format, str(dtype), context_window, kv_cache_dtype]
        key.update(json.dumps(parts, default=encode).encode())
        for name in sorted(tensors.names()):
            key.update(json.dumps([name, *tensors.shape(name), tensors.block_format(name)]).encode())
        self._path: Path = cache_folder() / f"checked-{key.hexdigest()[:32]}.json"
        self._logits = self._read()

    @property
    def is_known(self) -> bool:
        """Whether such a model passed the checks before."""
        return self._logits is not None

    def matches(self, weights: DecoderWeights) -> bool:
        """Whether the decoder computes with these weights what it computed when the model passed the checks."""
        return self._logits is not None and matches(self._logits, weights)

    def remember(self, weights: DecoderWeights) -> None:
        """Records that the model passed the checks with these weights. A folder that is not writable is left alone."""
        write_json(self._path, {"logits": logits_sample(weights).tolist()})

    def _read(self) -> Tensor | None:
        try:
            return torch.tensor(json.loads(self._path.read_text(encoding="utf-8"))["logits"], dtype=torch.float32)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            log.info("a record of a checked model is ignored: %s cannot be read (%s)", self._path, first_line(error))
            return None
