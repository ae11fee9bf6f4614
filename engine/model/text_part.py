"""Takes the text part of multimodal checkpoints: a causal language model, with the weights that belong to it.

Deskmate's chats are text, so vision and audio towers are never loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from engine.errors import ModelLoadError
from engine.model.named_tensors import NamedTensors
from engine.model.tensors import TensorSource

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


def text_config_of(config: Any) -> Any | None:
    """Returns the configuration of a multimodal model's text part; None if the model is no such model.

    A causal class is made for text parts that transformers has none for, of its own text model and an output layer.
    """
    if config.is_encoder_decoder or not set(getattr(config, "sub_configs", ())) - {"text_config"}:
        return None
    text_config = config.get_text_config()
    if type(text_config) is type(config):
        return None
    own = _only(AutoModelForCausalLM._model_mapping.get(type(config), None))
    if own is not None and own.config_class in (type(text_config), None):
        return None  # transformers takes the text part itself
    if AutoModelForCausalLM._model_mapping.get(type(text_config), None) is None:
        body = _only(AutoModel._model_mapping.get(type(text_config), None))
        if body is None or body.__name__.endswith("ForCausalLM"):
            return None
        causal = _make_causal_class(body, type(text_config))
        AutoModelForCausalLM.register(type(text_config), causal, exist_ok=True)  # a configuration of transformers' own
    found = copy.deepcopy(text_config)
    found.dtype = getattr(text_config, "dtype", None) or getattr(config, "dtype", None)
    return found


def text_tensors(source: TensorSource, config: Any, name: str) -> TensorSource:
    """Returns a multimodal checkpoint's tensors of its text part, by the names that they have in the text model.

    Sets whether the output layer is tied to the embedding, by whether the checkpoint holds it.

    Raises:
        ModelLoadError: the text part is not found.
    """
    names = list(source.names())
    if not names:
        return source  # what is missing is named when the weights are loaded
    size = (config.vocab_size, config.hidden_size)
    bodies = _prefixes(names, _EMBEDDING, source, size)
    if len(bodies) != 1:
        raise ModelLoadError(
            f"{name} is a multimodal model, and its text part was not found: {len(bodies)} of its tensors look like "
            f"the embedding of {size[0]:,} tokens."
        )
    heads = _prefixes(names, _HEAD, source, size)
    config.tie_word_embeddings = not heads
    stored = {f"model.{name.removeprefix(bodies[0])}": name for name in names if name.startswith(bodies[0])}
    for prefix in heads:
        stored |= {name.removeprefix(prefix): name for name in names if name.startswith(f"{prefix}lm_head.")}
    return NamedTensors(source, stored)


def _prefixes(names: Iterable[str], suffix: str, source: TensorSource, size: tuple[int, int]) -> list[str]:
    """Returns what comes before ``suffix`` in the names of tensors of that size."""
    found = (name for name in names if name == suffix or name.endswith(f".{suffix}"))
    return [name.removesuffix(suffix) for name in found if tuple(source.shape(name)) == size]


class _CausalModel:
    """A text model with an output layer. Mixed into transformers' base class of the text model."""

    body_class: type[nn.Module]
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _keep_in_fp32_modules = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.model = self.body_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, **named: Any) -> CausalLMOutput:
        hidden = self.model(input_ids=input_ids, **named).last_hidden_state
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits: torch.FloatTensor = self.lm_head(hidden[:, rows])
        return CausalLMOutput(logits=logits)


def _make_causal_class(body: type[nn.Module], config_class: type) -> Any:
    fields = {"body_class": body, "config_class": config_class, "__module__": __name__}
    return type(f"{body.__name__}ForCausalLM", (_CausalModel, *body.__bases__), fields)


def _only(found: Any) -> Any:
    """Returns the first of several architectures."""
    return found[0] if isinstance(found, tuple) else found
