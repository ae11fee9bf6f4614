"""CUDA graphs for decode-only steps: a whole forward pass is recorded once and replayed by one call.

A small model's decode takes longer to launch, kernel by kernel, than to compute. A graph replays the same kernels on
the same addresses with the same scalar arguments, so each graph serves one number of rows, its inputs are tensors that
stay in place, and lengths passed as scalars are set to their maximum. A step is copied into those inputs; rows it does
not fill are dummies, one token long, in the null block.

Compare a graph with eager execution only at the same number of rows: rounding depends on shapes.
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
from engine.scheduling.step_plan import StepPlan

Forward = Callable[[Batch, Sequence[Any]], Tensor]
"""Returns the logits of a batch, given the kernel's prepared state for each group of layers."""


class Recorder(Protocol):
    """Records the device work of a computation."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Runs ``compute`` and returns a callable that replays it on the same tensors.

        A replay's result is valid until the next replay.

        Raises:
            RuntimeError: it does something that cannot be recorded, such as reading a number from the device.
        """


class CudaRecorder:
    """Records CUDA graphs into one shared memory pool: record the largest first, and run only one at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Warm up: lazy initialisation of libraries and kernels cannot be recorded.
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
    """Returns the numbers of rows to record: close together for small batches, so that few rows are dummies."""
    return tuple(sorted({size for size in (1, 2, 4, *range(8, max_rows, 8)) if size < max_rows} | {max_rows}))


@dataclass(frozen=True, slots=True)
class _Graph:
    """The graph of one number of rows. It reads ``prepared``, not the batch's ``sequences``."""

    batch: Batch
    prepared: tuple[Any, ...]
    repeat: Callable[[], Tensor]


class DecodeGraphs:
    """Recorded decode steps, one graph per size.

    Args:
        forward: the computation to record.
        kernel: must support :meth:`~engine.execution.attention.base.AttentionKernel.refill`.
        num_groups: groups of layers, each with its own block tables.
        block_size: tokens in a KV block.
        max_model_len: tokens of the longest sequence.
        max_rows: most rows of a recorded step.

    Raises:
        RuntimeError: the model or the kernel does something that cannot be recorded.
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
        """Whether every chunk is a decode: one token that is sampled from, plus draft tokens, which are like one."""
        return plan.num_tokens <= self.sizes[-1] and all(
            len(chunk.token_ids) == 1 and chunk.samples and not chunk.scored for chunk in plan.chunks
        )

    def logits(self, batch: Batch, future_tokens: FutureTokens | None = None) -> Tensor:
        """Returns ``[n, vocab_size]`` for a batch of ``n`` decodes on the host. Valid until the next call."""
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
            if len(sequences.query_lens) < rows:  # draft tokens attend to earlier rows, whose keys are stored first
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
    """Pads to ``size`` sequences with dummies of one token in the null block."""
    missing = size - len(sequences.query_lens)
    return Sequences(
        query_lens=(*sequences.query_lens, *(1,) * missing),
        kv_lens=(*sequences.kv_lens, *(1,) * missing),
        block_tables=(*sequences.block_tables, *((NULL_BLOCK,),) * missing),
        block_size=sequences.block_size,
    )
