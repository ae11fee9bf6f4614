"""CUDA graphs for steps that only decode: a whole forward is recorded once and launched by one call.

A small model's decode takes longer to launch, kernel by kernel, than to compute. A recorded graph repeats the very
kernels on the very addresses with the very numbers it was recorded with, so a graph belongs to one number of rows,
its inputs are tensors that stay where they are, and lengths that are numbers are the longest there can be. A step
is written into those inputs; rows it does not fill are dummies, one token long, that live in the null block.

Whoever compares a graph with eager execution must do so at the same number of rows: rounding follows shapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.device.host_to_device import overwrite
from engine.execution.attention.base import AttentionKernel, Sequences
from engine.execution.batch import Batch, FutureTokens
from engine.scheduling.block_pool import NULL_BLOCK
from engine.scheduling.scheduler import StepPlan

Forward = Callable[[Batch, Sequence[Any]], Tensor]
"""Logits of a batch, given what the kernel prepared for each group of layers."""


class Recorder(Protocol):
    """Records what a computation does on the device."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run ``compute``, and return what repeats it on the same tensors; the result is good until the next repeat.

        Raises:
            RuntimeError: it does something that cannot be recorded, such as asking the device for a number.
        """


class CudaRecorder:
    """Records CUDA graphs into one pool of memory, which they share: largest first, and only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Lazy set-up of libraries and kernels must be over: it cannot be recorded.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = compute()

        def repeat() -> Tensor:
            graph.replay()
            return output

        return repeat


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows to record: few dummies for few chats, few graphs for many."""
    return tuple(sorted({size for size in (1, 2, 4, *range(8, max_rows, 8)) if size < max_rows} | {max_rows}))


@dataclass(frozen=True, slots=True)
class _Graph:
    """One number of rows. ``sequences`` of the batch are not looked at: what was prepared from them is."""

    batch: Batch
    prepared: tuple[Any, ...]
    repeat: Callable[[], Tensor]


class DecodeGraphs:
    """Recorded decodes.

    Args:
        forward: what is recorded.
        kernel: must be able to :meth:`~engine.execution.attention.base.AttentionKernel.refill`.
        num_groups: of layers, each with block tables of its own.
        block_size: tokens in a KV block.
        max_model_len: longest sequence.
        max_rows: most rows.

    Raises:
        RuntimeError: the model or the kernel does what cannot be recorded.
    """

    @torch.inference_mode()
    def __init__(
        self,
        forward: Forward,
        kernel: AttentionKernel,
        recorder: Recorder,
        device: torch.device,
        *,
        num_groups: int,
        block_size: int,
        max_model_len: int,
        max_rows: int,
    ) -> None:
        self._kernel = kernel
        self.sizes = graph_sizes(max_rows)
        graphs: list[_Graph] = []
        for size in reversed(self.sizes):
            zeros = torch.zeros(1, size, dtype=torch.int64, device=device)
            table = (NULL_BLOCK,) * -(-max_model_len // block_size)
            longest = Sequences((1,) * size, (max_model_len,) * size, (table,) * size, block_size)
            batch = Batch(
                input_ids=zeros,
                position_ids=zeros.clone(),
                slots=tuple(zeros[0].clone() for _ in range(num_groups)),
                logits_rows=torch.arange(size, device=device),
                sequences=(longest,) * num_groups,
                lengths=None,
            )
            prepared = tuple(kernel.prepare(longest, device) for _ in range(num_groups))
            for step in prepared:
                kernel.refill(step, _padded(Sequences((), (), (), block_size), size))
            compute = _Recordable(forward, batch, prepared)
            graphs.append(_Graph(batch, prepared, recorder.record(compute)))
        self._graphs = graphs[::-1]

    def can_run(self, plan: StepPlan) -> bool:
        """Every chunk is one token that is sampled from, and guesses, of which each is like one."""
        return plan.num_tokens <= self.sizes[-1] and all(
            len(chunk.token_ids) == 1 and chunk.samples and not chunk.scored for chunk in plan.chunks
        )

    def logits(self, batch: Batch, future_tokens: FutureTokens | None = None) -> Tensor:
        """``[n, vocab_size]`` for a batch of ``n`` decodes on the host. Good until the next call."""
        rows = batch.input_ids.shape[1]
        at = bisect_left(self.sizes, rows)
        graph, size = self._graphs[at], self.sizes[at]
        empty = (0, size - rows)
        overwrite(graph.batch.input_ids, F.pad(batch.input_ids, empty))
        if future_tokens is not None:
            future_tokens.write_to(graph.batch.input_ids)
        overwrite(graph.batch.position_ids, F.pad(batch.position_ids, empty))
        for slots, step in zip(graph.batch.slots, batch.slots, strict=True):
            overwrite(slots, F.pad(step, empty, value=NULL_BLOCK))
        for prepared, sequences in zip(graph.prepared, batch.sequences, strict=True):
            if len(sequences.query_lens) < rows:  # guesses look at what stands before them, which is in the cache first
                sequences = sequences.token_by_token()
            self._kernel.refill(prepared, _padded(sequences, size))
        return graph.repeat()[:rows]


@dataclass(frozen=True, slots=True)
class _Recordable:
    forward: Forward
    batch: Batch
    prepared: tuple[Any, ...]

    def __call__(self) -> Tensor:
        return self.forward(self.batch, self.prepared)


def _padded(sequences: Sequences, size: int) -> Sequences:
    """With dummies of one token in the null block."""
    missing = size - len(sequences.query_lens)
    return Sequences(
        query_lens=(*sequences.query_lens, *(1,) * missing),
        kv_lens=(*sequences.kv_lens, *(1,) * missing),
        block_tables=(*sequences.block_tables, *((NULL_BLOCK,),) * missing),
        block_size=sequences.block_size,
    )
