"""Loads a model's weights into memory with progress, or says in a sentence why they cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import ATTENTION_NAME
from engine.model.progress import Progress


def load_weights(folder: Path, name: str, dtype: torch.dtype, device: torch.device, progress: Progress) -> Any:
    """Returns the model with its weights, as transformers makes it.

    Raises:
        ModelLoadError: the weights are missing, damaged, incomplete or too large.
    """
    try:
        with reported_loading(progress):
            module, report = AutoModelForCausalLM.from_pretrained(
                folder,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                output_loading_info=True,
            )
    except torch.OutOfMemoryError as error:
        raise too_large(name, device) from error
    except (OSError, ValueError, RuntimeError, ImportError, AttributeError, SafetensorError) as error:
        reason = first_line(error)
        if "ignore_mismatched_sizes" in reason:  # transformers suggests an option that cannot be set here
            reason = "the sizes of some tensors differ from config.json. Download both files from the same source."
        raise ModelLoadError(f"The weights of {name} cannot be loaded: {reason}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelLoadError(
            f"The weights of {name} are incomplete: {len(missing)} tensors are missing, {missing[0]} among them."
        )
    try:
        module.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise too_large(name, device) from error
    return module


def copy_weights(module: nn.Module) -> None:
    """Copies the weights into the process's own memory.

    On the CPU, loaded weights are memory-mapped files. After a while without use, their pages are evicted, and the next
    token would wait for the disk.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


def too_large(model: str, device: torch.device) -> ModelLoadError:
    """Returns the error of a model that does not fit into a device's memory."""
    return ModelLoadError(
        f"{model} does not fit into the memory of the {device.type} device. Use a smaller model, a shorter number "
        "format (dtype=bfloat16), or free memory there."
    )


@contextmanager
def reported_loading(progress: Progress) -> Iterator[None]:
    """Sends transformers' own loading progress to ``progress`` instead of the terminal."""

    def hook(_factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _ReportingBar(progress, *args, **kwargs)

    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


class _ReportingBar:
    """The subset of tqdm that transformers uses while loading."""

    def __init__(
        self, progress: Progress, iterable: Any = (), *, desc: str = "", total: int | None = None, **_: Any
    ) -> None:
        self._progress = progress
        self._iterable = iterable
        self._description = desc or "Loading weights"
        self._total = total if total is not None else len(iterable)
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update()

    def __enter__(self) -> _ReportingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        self._done += count
        self._progress(self._description, self._done / max(self._total, 1))

    def close(self) -> None: ...

    def set_postfix(self, *_: Any, **__: Any) -> None: ...

    def set_description(self, *_: Any, **__: Any) -> None: ...

    def refresh(self) -> None: ...
