"""Compares the engine's decisions, step by step, with recorded traces: plans, blocks, tokens, ends, counters.

A trace changes only when a decision does. After an intended change, review the diff and record the traces again with
``python -m tests.engine.runtime.test_traces``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import engine.execution.capacity
from engine import EngineSettings, FinishReason, SamplingParams
from engine.execution.load import load_model
from engine.execution.steps import multi_step
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_processor import StepOutput
from engine.sampling import gpu
from engine.sampling.sampler import Sampler
from engine.scheduling import coalescing
from engine.scheduling.step_plan import StepPlan
from testing.core_requests import GREEDY, MAX_LEN, ON_DEVICE, ON_HOST, prompts_for
from testing.models import make_model
from testing.scripted_runner import Script, ScriptedClock, ScriptedDevice
from tests.engine.execution.test_graphs import RecordableKernel

TRACES = Path(__file__).parent / "traces"
BLOCK = 4
MODES = ("sequential", "multi_step", "overlapped", "speculative")
NUM_REQUESTS = 16
FAILING_STEP = 40
ENDS = tuple(reason.value for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE))


def load(path: Path) -> LoadedModel:
    """Loads a tiny model for its tokenizer and the shape of its cache; its weights are never used."""
    settings = EngineSettings(
        model=str(make_model(path, "llama", seed=3, eos=False)), dtype="float32", device="cpu", native=False
    )
    return load_model(settings, lambda _stage, _fraction: None)


class Recorder:
    """Runs a random scenario in one mode and records the engine's decisions."""

    def __init__(self, model: LoadedModel, mode: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._model = model
        self._mode = mode
        self._rng = random.Random(seed)
        self._clock = ScriptedClock()
        self._device = ScriptedDevice(clock=self._clock) if mode == "overlapped" else None
        self._script = Script(
            model.vocab_size,
            self._clock,
            self._device,
            failing_steps=frozenset({FAILING_STEP}),
            broken={"r3": 2, "r9": 3},
            is_native=mode == "multi_step",
        )
        self._monkeypatch = monkeypatch
        self._budget = self._rng.choice([6, 9, 24])
        self._num_blocks = MAX_LEN // BLOCK + self._rng.choice([8, 12, 30])
        self.lines: list[str] = []
        self.seen = Counter[str]()

    def run(self) -> list[str]:
        with ExitStack() as stack:
            stack.enter_context(self._script.installed(self._monkeypatch))
            if self._device is not None:
                stack.enter_context(self._device.guarded(self._monkeypatch))
            self._run_scenario()
        return self.lines

    def _make_core(self) -> EngineCore:
        settings = EngineSettings(
            max_model_len=MAX_LEN,
            max_num_seqs=5,
            max_batched_tokens=self._budget,
            num_kv_blocks=self._num_blocks,
            kv_block_size=BLOCK,
            device="cpu",
            cuda_graphs=False,
            speculation="prompt-lookup" if self._mode == "speculative" else "off",
        )
        core = EngineCore(self._model, settings, readback=self._device)
        core._scheduler._clock = self._clock
        if self._device is not None:
            core.strategy.sampler.sampler = Sampler(gpu)
        return core

    def _run_scenario(self) -> None:
        rng, core = self._rng, self._make_core()
        prompts = prompts_for(rng)
        in_flight: set[str] = set()
        to_come = NUM_REQUESTS
        while to_come or core.has_work:
            while to_come and (not core.has_work or rng.random() < 0.3):
                to_come -= 1
                name, prompt = f"r{to_come}", rng.choice(prompts)
                params = self._choose_params()
                deadline = 0.004 if rng.random() < 0.1 else None
                self._add(core, name, prompt, params, deadline)
                in_flight.add(name)
            if in_flight and rng.random() < 0.05:
                name = rng.choice(sorted(in_flight))
                if core.abort(name):
                    self.seen["aborts"] += 1
                    self._write(abort=name)
                in_flight.discard(name)
            core = self._step(core)
            core.check()
        assert core.stats().kv_cache_usage == 0
        self._write(metrics=_metrics(core))

    def _choose_params(self) -> SamplingParams:
        """Half of them are greedy and long, so that multi-step decoding and draft tokens are used."""
        rng = self._rng
        if rng.random() < 0.5:
            ends = rng.random() < 0.3
            return replace(GREEDY, max_tokens=rng.randint(20, 40), stop_token_ids=(11,) if ends else ())
        return replace(rng.choice(ON_DEVICE if rng.random() < 0.7 else ON_HOST), seed=rng.getrandbits(32))

    def _add(
        self, core: EngineCore, name: str, prompt: list[int], params: SamplingParams, deadline: float | None
    ) -> None:
        core.add(
            core.request_processor.process(
                name, prompt, core.request_processor.resolve(prompt, params), deadline=deadline
            )
        )
        chosen = {key: value for key, value in asdict(params).items() if value != getattr(SamplingParams(), key)}
        self._write(add=name, prompt=prompt, params=_short(chosen), deadline=deadline)

    def _step(self, core: EngineCore) -> EngineCore:
        """Runs one step. Returns the core that goes on: a new one after a failed step."""
        self._script.plans.clear()
        try:
            result = core.step()
        except RuntimeError as error:
            self.seen["failed steps"] += 1
            plans = [_plan(*each) for each in self._script.plans]
            failed, others = core.evacuate()
            self._write(
                error=str(error),
                plans=plans,
                failed=[one.request.id for one in failed],
                others=[one.request.id for one in others],
            )
            if self._device is not None:
                self._device.unread = 0  # pending readbacks are dropped with the core
            core = self._make_core()
            for one in others:
                core.add(one)
            return core
        self._count(result)
        stats = core.stats()
        self._write(
            at=round(self._clock.now - 1000, 6),
            plans=[_plan(*each) for each in self._script.plans],
            deltas=[_delta(delta) for delta in result.deltas],
            failures=[[name, type(error).__name__] for name, error in result.failures],
            running=stats.num_requests_running,
            waiting=stats.num_requests_waiting,
            free=core._pool.num_free,
            preemptions=stats.num_preemptions,
        )
        self.seen["preemptions"] = max(self.seen["preemptions"], stats.num_preemptions)
        self.seen["prefix hits"] += sum((delta.cached_prompt_tokens or 0) > 0 for delta in result.deltas)
        return core

    def _count(self, result: StepOutput) -> None:
        for how, plan in self._script.plans:
            self.seen[how] += 1
            self.seen["drafts"] += sum(bool(chunk.draft) for chunk in plan.chunks)
        self.seen.update(type(error).__name__ for _name, error in result.failures)
        for delta in result.deltas:
            if delta.finish_reason is not None:
                self.seen[delta.finish_reason.value] += 1

    def _write(self, **what: Any) -> None:
        kept = {key: value for key, value in what.items() if value not in (None, [], ())}
        self.lines.append(json.dumps(kept, separators=(",", ":"), ensure_ascii=False))


def _plan(how: str, plan: StepPlan) -> dict[str, Any]:
    chunks = []
    for chunk in plan.chunks:
        one = [chunk.request.id, chunk.start, chunk.end, list(chunk.block_tables[0])]
        chunks.append([*one, list(chunk.draft)] if chunk.draft else one)
    copies = [[copy.source, copy.destination, copy.num_rows] for copy in plan.copies]
    return {"how": how, "chunks": chunks} | ({"copies": copies} if copies else {})


def _delta(delta: Any) -> list[Any]:
    name = delta.request_id if delta.index == 0 else f"{delta.request_id}/{delta.index}"
    if delta.progress is not None:
        return [name, "progress", delta.progress.processed, delta.progress.total]
    told: list[Any] = [name, list(delta.token_ids)]
    if delta.cached_prompt_tokens is not None:
        told.append({"cached": delta.cached_prompt_tokens})
    if delta.finish_reason is not None:
        timings = {key: round(value, 6) for key, value in asdict(delta.timings).items() if value}
        told.append({"end": delta.finish_reason.value, "by": delta.stop_reason, "timings": timings})
    return told


def _short(params: dict[str, Any]) -> dict[str, Any]:
    """Abbreviates what a reader of a trace would have to skip."""
    return {key: f"{len(value)} tokens" if key == "stop_token_ids" else value for key, value in params.items()}


def _metrics(core: EngineCore) -> dict[str, float]:
    """The metrics that Prometheus would scrape, without those that depend on wall-clock time."""
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): round(sample.value, 6)
        for family in core.metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_perc", "_created", "_bucket")) and sample.value
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Patches the engine for the scenarios, see :func:`patch_engine`."""
    with monkeypatch.context() as patch:
        patch_engine(patch)
        yield patch


def patch_engine(patch: pytest.MonkeyPatch) -> None:
    """Replaces the kernel by a recordable one; multi-step calls have the limits that the traces were recorded with."""
    patch.setattr(engine.execution.capacity, "select_kernel", lambda *_: (RecordableKernel(), BLOCK))
    patch.setattr(gpu, "FIRST_CANDIDATES", 3)  # so that some tokens sampled on the device turn out to be wrong
    patch.setattr(coalescing, "MAX_HOLD_SECONDS", 0.025)
    patch.setattr(multi_step, "MAX_STEPS", 4)


CASES = [(mode, seed) for mode in MODES for seed in (1, 2, 3)]


@pytest.mark.parametrize(("mode", "seed"), CASES)
def test_decisions_are_the_recorded_ones(model: LoadedModel, mode: str, seed: int, patched: pytest.MonkeyPatch) -> None:
    recorded = (TRACES / f"{mode}-{seed}.jsonl").read_text(encoding="utf-8").splitlines()
    lines = Recorder(model, mode, seed, patched).run()
    for number, (now, then) in enumerate(zip(lines, recorded, strict=False), 1):
        assert json.loads(now) == json.loads(then), f"line {number}"
    assert len(lines) == len(recorded)


def test_the_traces_hold_what_they_are_for() -> None:
    recorded = json.loads((TRACES / "seen.json").read_text(encoding="utf-8"))
    of_all_modes = ("aborts", "preemptions", "prefix hits", "failed steps", "LogitsError", *ENDS)
    of_one = {"sequential": "computed", "multi_step": "several", "overlapped": "launched", "speculative": "drafts"}
    for mode in MODES:
        seen = sum((Counter(recorded[f"{mode}-{seed}"]) for each, seed in CASES if each == mode), Counter[str]())
        assert [what for what in (*of_all_modes, of_one[mode]) if not seen[what]] == [], mode


def record() -> None:
    """Records all traces again."""
    seen: dict[str, dict[str, int]] = {}
    TRACES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        model = load(Path(folder) / "llama")
        patch_engine(patch)
        for mode, seed in CASES:
            recorder = Recorder(model, mode, seed, patch)
            (TRACES / f"{mode}-{seed}.jsonl").write_text("\n".join(recorder.run()) + "\n", encoding="utf-8")
            seen[f"{mode}-{seed}"] = dict(sorted(recorder.seen.items()))
    (TRACES / "seen.json").write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
