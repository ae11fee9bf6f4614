"""Runs a few tokens through a model at load to see how it calls attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from engine.errors import ModelLoadError, first_line
from engine.model.attention_hook import AttentionNeeds, LayerProbe, UnsupportedAttention
from engine.scheduling.cache_layout import LayerShape


@dataclass(frozen=True, slots=True)
class AttentionCalls:
    """How a model calls attention in a step."""

    layers: tuple[LayerShape, ...]  #: layers of the cache
    layer_per_call: bool  #: layers belong to the calls in their order; otherwise to the modules, by ``layer_idx``
    needs: AttentionNeeds


@torch.inference_mode()
def run_probe_step(module: nn.Module, device: torch.device, probe: LayerProbe) -> None:
    """Runs two tokens through the model."""
    module(
        input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device),
        position_ids=torch.arange(2, device=device).unsqueeze(0),
        use_cache=False,
        logits_to_keep=torch.tensor([1], device=device),
        paged=probe,
    )


def probe_calls(module: nn.Module, config: Any, device: torch.device, name: str) -> AttentionCalls:
    """Runs two tokens through the model and records which layers call attention, how often, and how.

    A model may call attention several times in a layer (differential attention), or run its layers several times
    (recurrent depth). Then each call of a step gets its own layer of the cache, since the calls come in the same order
    in every step.

    Raises:
        ModelLoadError: the engine cannot serve the model; the message says why.
    """
    probe = LayerProbe()
    refused = f"{name} ({config.model_type}) cannot run here: "
    try:
        run_probe_step(module, device, probe)
    except UnsupportedAttention as error:
        raise ModelLoadError(f"{refused}{error}") from error
    except (TypeError, RuntimeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{refused}a first step failed ({first_line(error)}).") from error
    expected = int(config.get_text_config().num_hidden_layers)
    shapes = dict(probe.calls)
    if len(probe.calls) != expected and sorted(shapes) != list(range(expected)):
        raise ModelLoadError(
            f"{refused}{len(shapes)} of its {expected} layers use the attention hook; the others keep their state "
            "elsewhere."
        )
    if not probe.is_causal:
        raise ModelLoadError(
            f"{refused}its tokens attend to later tokens, as in embedding models. Choose a model made to generate text."
        )
    layer_per_call = sorted(shapes) != list(range(len(probe.calls)))
    layers = tuple(shape for _, shape in (probe.calls if layer_per_call else sorted(shapes.items())))
    needs = AttentionNeeds(
        sliding_window=any(layer.sliding_window is not None for layer in layers),
        softcap=probe.softcap,
        sinks=probe.sinks,
        dtype=next(module.parameters()).dtype,
        head_dim=max(layer.head_dim for layer in layers),
        value_head_dim=max(layer.value_head_dim for layer in layers),
    )
    return AttentionCalls(layers, layer_per_call, needs)


def min_cache_window(text_config: Any, calls: AttentionCalls) -> float:
    """Returns the shortest window of transformers' cache in a layer whose attention has no window; inf if none has.

    Moshi's cache has a window and its attention has none. Beyond the window the reply depends on how a prompt was
    split, so a context ends there.
    """
    kept = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=text_config).layers]
    if len(kept) != len(calls.layers):
        return inf
    return min(
        (window for window, layer in zip(kept, calls.layers, strict=True) if window and not layer.sliding_window),
        default=inf,
    )
