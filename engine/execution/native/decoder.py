"""Runs whole steps in C++, for models of the expected parts. Each model passes a parity check before it is used.

In a small step, a framework spends more time between the operators than in them; here nothing lies between them. No
architecture is named: a model is accepted if it consists of the expected parts
(:mod:`engine.execution.native.structure`), and used if its logits equal those of transformers
(:mod:`engine.execution.native.parity_check`). Other models, and steps of many rows on CPUs without AVX2, run through
transformers' own modules, on the same cache.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.execution.attention.base import LayerCache
from engine.execution.batch import Batch
from engine.execution.native.activations import KINDS
from engine.execution.native.build import load_library
from engine.execution.native.experts import Routing
from engine.execution.native.lora import PackedAdapter
from engine.execution.native.modules import NORMS
from engine.execution.native.multi_step import (
    DECODE_REQUEST,
    Host,
    HostCallback,
    MultiStepOutput,
    MultiStepRow,
    PackedRequests,
)
from engine.execution.native.sampling import check_size
from engine.execution.native.structure import LANES
from engine.execution.native.weights import DecoderWeights, ExpertWeights, PackedLinear
from engine.model.lora import LoraAdapter

MAX_ROWS_WITHOUT_AVX2 = 64
"""Most rows of a step that runs in C++ on x86-64 without AVX2. With more rows oneDNN is faster."""


class _PackedLinear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("weight_sums", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
    )


class _Experts(ctypes.Structure):
    _fields_ = (
        ("gate_up", ctypes.POINTER(_PackedLinear)),
        ("down", ctypes.POINTER(_PackedLinear)),
        ("router", ctypes.c_void_p),
        ("router_bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "per_token", "intermediate", "is_normalized")),
        ("scale", ctypes.c_float),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*NORMS, "sinks")),
        *((name, _PackedLinear) for name in ("qkv", "output", "gate_up", "down")),
        ("experts", ctypes.POINTER(_Experts)),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("window", "group", "rotary")),
        *((name, ctypes.c_float) for name in ("attention_scale", "softcap", "attention_multiplier", "mlp_multiplier")),
    )


class _Rotary(ctypes.Structure):
    _fields_ = (
        ("inv_freq", ctypes.c_void_p),
        ("num_frequencies", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("is_interleaved", ctypes.c_int32),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("embedding", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("rotary", ctypes.POINTER(_Rotary)),
        ("lm_head", _PackedLinear),
        *(
            (name, ctypes.c_int64)
            for name in (
                *("num_layers", "hidden", "intermediate", "num_heads", "num_kv_heads"),
                *("head_dim", "vocab_size", "block_size", "num_rotary", "activation", "norms_all_heads"),
            )
        ),
        *(
            (name, ctypes.c_float)
            for name in (
                *("activation_alpha", "activation_limit", "up_offset"),
                *("epsilon", "embedding_scale", "logits_scale", "logits_softcap"),
            )
        ),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "logits_rows", "query_lens")),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("slots", "block_tables", "table_offsets")),
        ("adapters", ctypes.POINTER(ctypes.c_void_p)),
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_logits", "num_sequences", "num_threads", "max_shrunk")),
    )


class Decoder:
    """Computes steps of up to ``max_rows`` rows on a cache.

    Args:
        weights: of the model.
        caches: of each layer, in the embedding's dtype or in int8.
        group_of_layer: the group whose block tables each layer uses.

    Raises:
        NotCompiled: the C++ code cannot be compiled here.
    """

    def __init__(self, weights: DecoderWeights, caches: Sequence[LayerCache], group_of_layer: Sequence[int]) -> None:
        code, structure = load_library(), weights.structure
        check_size(DECODE_REQUEST, code.deskmate_decode_request_size())
        self._step = getattr(code, f"deskmate_step_{weights.number_format}")
        self._steps = getattr(code, f"deskmate_steps_{weights.number_format}")
        self._steps.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        ]
        self._steps.restype = ctypes.c_int64
        self.max_rows = max_rows()  #: most rows of a step that is faster here than through transformers
        self._logits_memory = np.empty(0, np.float32)  # of steps of which only the tokens are read
        self._weights = weights  # kept alive: the structures hold addresses only
        self._caches = tuple(caches)
        self._experts = [  # of each layer; kept alive
            None if layer.experts is None or constants.routing is None else _experts(layer.experts, constants.routing)
            for layer, constants in zip(weights.layers, structure.layers, strict=True)
        ]
        self._layers = (_Layer * len(weights.layers))(
            *(
                _Layer(
                    *(_address(getattr(layer, name)) for name in (*NORMS, "sinks")),
                    *map(_packed_linear, (layer.qkv, layer.output, layer.gate_up, layer.down)),
                    self._experts[index],
                    *map(_address, cache.tensors),
                    *((None, None) if len(cache.tensors) == 2 else ()),
                    shape.sliding_window or 0,
                    group,
                    -1 if constants.rotary is None else constants.rotary,
                    constants.attention_scale,
                    constants.softcap,
                    constants.attention_multiplier,
                    constants.mlp_multiplier,
                )
                for index, (layer, constants, shape, cache, group) in enumerate(
                    zip(weights.layers, structure.layers, structure.shapes, caches, group_of_layer, strict=True)
                )
            )
        )
        self._rotary = (_Rotary * len(structure.rotary))(
            *(
                _Rotary(_address(rotary.inv_freq), len(rotary.inv_freq), rotary.scale, rotary.is_interleaved)
                for rotary in structure.rotary
            )
        )
        self._model = _Model(
            self._layers,
            *map(_address, (weights.embedding, weights.norm)),
            self._rotary,
            _packed_linear(weights.lm_head),
            len(weights.layers),
            structure.hidden,
            structure.intermediate,
            structure.num_heads,
            structure.num_kv_heads,
            structure.head_dim,
            structure.vocab_size,
            caches[0].block_size,
            len(structure.rotary),
            KINDS.index(structure.activation.kind),
            structure.norms_all_heads,
            structure.activation.alpha,
            structure.activation.limit,
            structure.activation.up_offset,
            structure.epsilon,
            structure.embedding_scale,
            structure.logits_scale,
            structure.logits_softcap,
        )

    def logits(self, batch: Batch) -> Tensor:
        """Stores the keys and values of a step; returns float32 ``[len(batch.logits_rows), vocab_size]``."""
        logits = torch.empty(len(batch.logits_rows), self._weights.structure.vocab_size)
        self._step(ctypes.byref(self._model), ctypes.byref(_build_step(batch, logits)))
        return logits

    def execute_steps(
        self,
        batch: Batch,
        replies: Sequence[MultiStepRow],
        max_steps: int,
        host: Host | None = None,
    ) -> MultiStepOutput:
        """Computes a step, samples from it, and decodes further from the sampled tokens.

        Only C++ releases the GIL here, and operators of PyTorch do not, unless logits are kept: where pages are served,
        each release is a wait of up to 5 ms to get the GIL back.

        Args:
            batch: the first step. Its block tables have blocks for all tokens that ``replies`` may grow to.
            replies: one for each of ``batch.logits_rows``, at least one.
            max_steps: at least 1.
            host: has its part in the sampling of the replies that need Python.
        """
        count = len(replies)
        assert count == len(batch.logits_rows), "each row of logits is sampled"
        vocab_size = self._weights.structure.vocab_size
        if self._logits_memory.size < count * vocab_size:
            self._logits_memory = np.empty(count * vocab_size, np.float32)
        logits = torch.from_numpy(self._logits_memory[: count * vocab_size].reshape(count, vocab_size))
        num_scored = sum([reply.is_scored for reply in replies])
        scored = torch.empty(num_scored, max_steps, vocab_size) if num_scored else None
        requests = PackedRequests(replies, scored, {} if host is None else host.masks)
        tokens, seconds = (ctypes.c_int64 * (max_steps * count))(), (ctypes.c_double * max_steps)()
        callback = None if host is None else HostCallback(host, replies, logits, tokens)
        num_steps = self._steps(
            ctypes.byref(self._model),
            ctypes.byref(_build_step(batch, logits, ahead=max_steps - 1)),
            requests.data,
            len(batch.slots),
            max_steps,
            None if callback is None else callback.function,
            tokens,
            seconds,
        )
        return MultiStepOutput(
            [tokens[at * count : (at + 1) * count] for at in range(num_steps)],
            seconds[:num_steps],
            logits,
            scored,
            None if callback is None else callback.error,
        )


def max_rows() -> int:
    """Returns the most rows of a step that is faster in C++ than through transformers.

    Raises:
        NotCompiled: the C++ code cannot be compiled here.
    """
    return sys.maxsize if load_library().deskmate_has_fast_prefill() else MAX_ROWS_WITHOUT_AVX2


def _build_step(batch: Batch, logits: Tensor, ahead: int = 0) -> _Step:
    """Fills the C++ structure of a step; its block tables cover ``ahead`` more tokens, as far as blocks are there."""
    tables, starts = [], []
    for sequences in batch.sequences:
        table, start = array("i"), array("q")
        for kv_len, blocks in zip(sequences.kv_lens, sequences.block_tables, strict=True):
            start.append(len(table))
            table.extend(blocks[: -(-(kv_len + ahead) // sequences.block_size)])
        tables.append(table)
        starts.append(start)
    query_lens = array("q", batch.sequences[0].query_lens)
    step = _Step(
        *map(_address, (batch.input_ids, batch.position_ids, batch.logits_rows)),
        query_lens.buffer_info()[0],
        _addresses([slots.data_ptr() for slots in batch.slots]),
        _addresses([table.buffer_info()[0] for table in tables]),
        _addresses([start.buffer_info()[0] for start in starts]),
        _adapters(batch),
        _address(logits),
        batch.input_ids.shape[1],
        len(batch.logits_rows),
        len(query_lens),
        torch.get_num_threads(),
        max((_packed(rows.adapter).max_shrunk for rows in batch.adapters), default=0),
    )
    step.held = (batch, tables, starts, query_lens)  # kept alive: the structure holds addresses only
    return step


def _adapters(batch: Batch) -> Any:
    """Returns the addresses of the layers of each row's adapter; None if no row has one."""
    if not batch.adapters:
        return None
    addresses = (ctypes.c_void_p * batch.input_ids.shape[1])()
    for rows in batch.adapters:
        addresses[rows.start : rows.stop] = [_packed(rows.adapter).address] * (rows.stop - rows.start)
    return addresses


def _packed(adapter: LoraAdapter) -> PackedAdapter:
    assert isinstance(adapter.packed, PackedAdapter), "it was loaded for a model that runs here"
    return adapter.packed


def _experts(weights: ExpertWeights, routing: Routing) -> Any:
    """Returns a pointer to the structure, which keeps it alive."""
    packed = [
        (_PackedLinear * len(linears))(*map(_packed_linear, linears)) for linears in (weights.gate_up, weights.down)
    ]
    return ctypes.pointer(
        _Experts(
            *packed,
            _address(weights.router),
            _address(weights.router_bias),
            routing.num_experts,
            routing.per_token,
            routing.intermediate,
            routing.is_normalized,
            routing.scale,
        )
    )


def _packed_linear(product: PackedLinear | None) -> _PackedLinear:
    if product is None:
        return _PackedLinear()
    parts = (product.weight, product.scales, product.weight_sums, product.bias)
    return _PackedLinear(*map(_address, parts), product.weight.shape[0] * LANES)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(values: Sequence[int]) -> Any:
    return (ctypes.c_void_p * len(values))(*values)
