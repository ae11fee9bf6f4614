"""Recorded decodes: what a CUDA graph would repeat, repeated on the processor. Not run on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.execution.capacity
from engine import EngineSettings, SamplingParams
from engine.execution.attention.base import AttentionCall, AttentionKernel, LayerCache, Sequences
from engine.execution.attention.flash import FlashKernel, FlashStep
from engine.execution.attention.sdpa import SdpaKernel
from engine.execution.graphs import graph_sizes
from engine.execution.load import load_model
from engine.execution.runner import Runner
from engine.runtime.engine_core import EngineCore
from engine.scheduling.block_pool import NULL_BLOCK
from engine.scheduling.step_plan import Chunk, StepPlan
from testing.attention import SCALE, make_case
from testing.models import make_model
from testing.recorded_ops import OpRecorder

pytestmark = pytest.mark.usefixtures("single_steps")

PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 10, 11], [40] * 13, [90, 80, 70], [3, 4] * 12]


class RecordableKernel(FlashKernel):
    """FlashAttention's metadata and plain arithmetic, in operations that can be recorded."""

    name = "recordable"
    device_types = frozenset({"cpu"})
    supports_softcap = True
    page_multiple = 1
    dtypes = None  # type: ignore[assignment]

    def forward(self, call: AttentionCall, prepared: FlashStep) -> Tensor:
        query, key_cache, value_cache = call.query, call.cache.keys, call.cache.values
        rows = torch.arange(query.shape[0])
        sequence = torch.searchsorted(prepared.cu_seqlens_q, rows, right=True) - 1
        # Each real kernel reads one of them; here a wrong one shows, whichever it is.
        lengths = (prepared.seqused_k + prepared.cu_seqlens_k.diff()) // 2
        position = lengths[sequence] - (prepared.cu_seqlens_q[sequence + 1] - rows)
        pages = prepared.block_table[sequence].long()
        groups = query.shape[1] // key_cache.shape[2]
        # What kernels must not read beyond max_seqlen_k, this one must not either.
        keys = key_cache[pages].flatten(1, 2)[:, : prepared.max_seqlen_k].repeat_interleave(groups, dim=2)
        values = value_cache[pages].flatten(1, 2)[:, : prepared.max_seqlen_k].repeat_interleave(groups, dim=2)
        scores = torch.einsum("thd,tkhd->thk", query, keys) * call.scale
        if call.softcap:
            scores = call.softcap * (scores / call.softcap).tanh()
        distance = position[:, None] - torch.arange(keys.shape[1])
        hidden = distance < 0
        if call.sliding_window is not None:
            hidden = hidden | (distance >= call.sliding_window)
        probabilities = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
        return torch.einsum("thk,tkhd->thd", probabilities, values)


class AskingKernel(RecordableKernel):
    """Asks the device for a number, as models and kernels may."""

    def forward(self, call: AttentionCall, prepared: FlashStep) -> Tensor:
        assert int(prepared.seqused_k.max()) >= 1
        return super().forward(call, prepared)


@dataclass
class Run:
    replies: list[list[int]]
    recorder: OpRecorder
    core: EngineCore


def run(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    graphs: bool = True,
    kernel: type[AttentionKernel] = RecordableKernel,
    prompts: list[list[int]] = PROMPTS,
    **settings: Any,
) -> Run:
    """Greedy replies to several prompts, of different lengths: the number of decodes changes from step to step."""
    monkeypatch.setattr(engine.execution.capacity, "select_kernel", lambda *_: (kernel(), 4))
    chosen = EngineSettings(
        **{
            "model": str(path),
            "dtype": "float32",
            "device": "cpu",
            "native": False,
            "max_model_len": 64,
            "max_num_seqs": 6,
            "max_batched_tokens": 16,
            "cuda_graphs": graphs,
            **settings,
        }
    )
    recorder = OpRecorder()
    core = EngineCore(load_model(chosen, lambda _stage, _fraction: None), chosen, recorder)
    replies: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=6 + 3 * index, ignore_eos=True)
        core.add(core.request_processor.process(str(index), prompt, core.request_processor.resolve(prompt, params)))
    while core.has_work:
        for delta in core.step().deltas:
            replies.setdefault(delta.request_id, []).extend(delta.token_ids)
    core.check()
    return Run([replies[str(index)] for index in range(len(prompts))], recorder, core)


def test_sizes_are_few_and_end_with_the_largest() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(6) == (1, 2, 4, 6)
    assert graph_sizes(8) == (1, 2, 4, 8)
    assert graph_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert graph_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral", "gpt-neox", "qwen3-moe"])
def test_recorded_decodes_give_the_same_replies(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(tmp_path / "model", family, seed=3, eos=False)
    plain = run(path, monkeypatch, kernel=SdpaKernel, graphs=False)
    recorded = run(path, monkeypatch)
    assert recorded.replies == plain.replies
    assert recorded.recorder.num_recorded == 4
    assert recorded.recorder.num_repeats >= 10
    assert plain.recorder.num_recorded == 0


def test_largest_first_and_the_smallest_that_holds_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(tmp_path / "model", "llama", eos=False)
    recorded: list[int] = []
    repeated: list[int] = []

    class Watching(OpRecorder):
        def record(self, compute):  # type: ignore[no-untyped-def]
            repeat = super().record(compute)
            size = compute.batch.input_ids.shape[1]
            recorded.append(size)

            def watched() -> Tensor:
                repeated.append(size)
                return repeat()

            return watched

    monkeypatch.setattr("tests.engine.execution.test_graphs.OpRecorder", Watching)
    run(path, monkeypatch, prompts=PROMPTS[:1])
    assert recorded == [6, 4, 2, 1]
    assert set(repeated) == {1}
    repeated.clear()
    run(path, monkeypatch, prompts=PROMPTS)
    assert set(repeated) == {1, 2, 4, 6}


def test_a_step_with_a_prompt_or_a_scored_one_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of many decodes and one prompt is executed; the decodes beside it too."""
    path = make_model(tmp_path / "model", "llama", eos=False)
    steps: list[tuple[int, bool]] = []
    execute = Runner.execute

    def watched(runner: Runner, plan):  # type: ignore[no-untyped-def]
        before = recorder.num_repeats
        logits = execute(runner, plan)
        steps.append((max(len(chunk.token_ids) for chunk in plan.chunks), recorder.num_repeats > before))
        return logits

    recorder = OpRecorder()
    monkeypatch.setattr("tests.engine.execution.test_graphs.OpRecorder", lambda: recorder)
    monkeypatch.setattr(Runner, "execute", watched)
    run(path, monkeypatch, prompts=[[7] * 40, [8] * 40])
    assert {repeated for longest, repeated in steps if longest > 1} == {False}
    assert {repeated for longest, repeated in steps if longest == 1} == {True}


def test_refilling_leaves_nothing_of_the_longer_step_before() -> None:
    kernel = RecordableKernel()
    lengths = [3, 4, 9]
    long = make_case(0, block_size=4, lengths=[17], foreign=1e4)
    static = kernel.prepare(_decodes(long.sequences, 33), torch.device("cpu"))
    for seed in range(5):
        case = make_case(seed, block_size=4, lengths=lengths, foreign=1e4)
        sequences = _decodes(case.sequences)
        if len(sequences.kv_lens) != len(long.sequences.kv_lens):
            continue
        kernel.refill(static, sequences)
        assert static.max_seqlen_k == 33
        assert static.block_table[:, 3:].unique().tolist() == [NULL_BLOCK]
        ends = torch.tensor(case.sequences.query_lens).cumsum(0) - 1
        cache = LayerCache(case.key_cache, case.value_cache)
        got = kernel.forward(AttentionCall(case.query[ends], cache, SCALE), static)
        torch.testing.assert_close(got.double(), case.expected(None)[ends], rtol=0, atol=2e-6)


def _decodes(sequences: Sequences, longest: int | None = None) -> Sequences:
    """One query each; as long as they are, or the longest there can be."""
    count = len(sequences.kv_lens)
    kv_lens = sequences.kv_lens if longest is None else (longest,) * count
    tables = sequences.block_tables if longest is None else ((NULL_BLOCK,) * 9,) * count
    return replace(sequences, query_lens=(1,) * count, kv_lens=kv_lens, block_tables=tables)


@pytest.mark.parametrize(
    ("family", "settings", "kernel", "says"),
    [
        ("llama", {}, SdpaKernel, "the attention kernel sdpa does not support them"),
        ("llama", {"batch_invariant": True}, RecordableKernel, "batch invariance"),
        ("llama", {}, AskingKernel, "not permitted when stream is capturing"),
    ],
)
def test_what_cannot_be_recorded_is_executed_and_the_log_says_why(
    family: str,
    settings: dict[str, Any],
    kernel: type[AttentionKernel],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = make_model(tmp_path / "model", family, eos=False)
    with caplog.at_level(logging.WARNING, "engine"):
        served = run(path, monkeypatch, kernel=kernel, **settings)
    assert served.recorder.num_repeats == 0
    assert any("no CUDA graphs" in record.getMessage() and says in record.getMessage() for record in caplog.records)
    assert served.replies == run(path, monkeypatch, kernel=kernel, graphs=False, **settings).replies


def test_draft_tokens_are_replayed_as_decodes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(tmp_path / "model", "gemma2", seed=3, eos=False)
    plain = run(path, monkeypatch, kernel=SdpaKernel, graphs=False)

    class ScriptedProposer:
        """Right but for each third draft token."""

        def propose(self, plan: StepPlan, counts: Sequence[int]) -> list[tuple[int, ...]]:
            drafts = []
            for chunk, count in zip(plan.chunks, counts, strict=True):
                written = chunk.request.num_output_tokens
                to_come = plain.replies[int(chunk.request.id)][written : written + count]
                drafts.append(tuple(token ^ (index % 3 == 2) for index, token in enumerate(to_come)))
            return drafts

        def confirm(self, chunks: Sequence[Chunk]) -> None:
            assert chunks

    executed: list[tuple[bool, bool]] = []
    execute = Runner.execute

    def watched(runner: Runner, plan: StepPlan) -> Tensor:
        before = recorder.num_repeats
        logits = execute(runner, plan)
        executed.append((any(chunk.draft for chunk in plan.chunks), recorder.num_repeats > before))
        return logits

    recorder = OpRecorder()
    monkeypatch.setattr("tests.engine.execution.test_graphs.OpRecorder", lambda: recorder)
    monkeypatch.setattr(Runner, "execute", watched)
    monkeypatch.setattr("engine.execution.speculation.selection.PromptLookup", ScriptedProposer)
    recorded = run(path, monkeypatch, speculation="prompt-lookup", speculative_tokens=3)
    assert recorded.replies == plain.replies
    assert {repeated for drafted, repeated in executed if drafted} == {True}
    stats = recorded.core.stats()
    assert stats.draft_tokens > stats.accepted_draft_tokens > 10
