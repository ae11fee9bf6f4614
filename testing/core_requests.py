"""Runs requests through an engine core and records their deltas, one at a time or many at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from engine import FinishReason, SamplingParams
from engine.execution.steps.sequential import SequentialSteps
from engine.outputs import TokenLogprobs
from engine.runtime.engine_core import EngineCore
from engine.runtime.output_processor import StepOutput

MAX_LEN = 64
MAX_REPLY_TOKENS = 16  #: tokens of a reply
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_REPLY_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=MAX_REPLY_TOKENS, ignore_eos=True, seed=5)

#: Parameters that the device can sample on its own.
ON_DEVICE = (
    GREEDY,
    SAMPLED,
    replace(SAMPLED, top_p=0.8),
    replace(SAMPLED, top_k=7),
    replace(SAMPLED, top_k=40, top_p=0.9, min_p=0.01),
    replace(SAMPLED, typical_p=0.7),
    replace(GREEDY, max_tokens=1),
    replace(SAMPLED, max_tokens=2, top_p=0.5),
)
#: Parameters that need the earlier tokens, or scores, on the host.
ON_HOST = (
    replace(GREEDY, repetition_penalty=1.3),
    replace(SAMPLED, presence_penalty=0.5),
    replace(SAMPLED, logit_bias={7: 3.0}),
    replace(GREEDY, min_tokens=4, stop_token_ids=tuple(range(200))),
    replace(GREEDY, logprobs=2),
    replace(GREEDY, prompt_logprobs=1),
    replace(SAMPLED, n=3),
)
#: Several of them at once.
TOGETHER = (
    replace(
        SAMPLED, repetition_penalty=1.1, presence_penalty=-0.3, frequency_penalty=0.7, logit_bias={7: 3.0, 9: -1.0}
    ),
    replace(SAMPLED, repetition_penalty=1.2, bad_words=("a", "e"), logprobs=1),
)


def compute_sequentially(core: EngineCore) -> None:
    """Makes a core compute one step at a time, whatever it could do."""
    core._strategy = SequentialSteps(core.strategy.scheduler, core.strategy.runner, core.strategy.sampler)


def add(core: EngineCore, name: str, prompt: Sequence[int], params: SamplingParams, **options: Any) -> None:
    core.add(core.request_processor.process(name, prompt, core.request_processor.resolve(prompt, params), **options))


@dataclass
class ReaderRecord:
    """The deltas, finish reasons and failures that the readers received."""

    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # (request id, reply index) -> token ids
    reasons: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    logprobs: dict[tuple[str, int], list[TokenLogprobs]] = field(default_factory=dict)
    text: str = ""  # of all replies together

    def add(self, result: StepOutput) -> None:
        for delta in result.deltas:
            assert delta.request_id not in self.failures
            key = (delta.request_id, delta.index)
            assert key not in self.reasons
            self.tokens.setdefault(key, []).extend(delta.token_ids)
            self.logprobs.setdefault(key, []).extend(delta.logprobs)
            self.text += delta.text
            if delta.finish_reason is not None:
                self.reasons[key] = delta.finish_reason
        for request_id, error in result.failures:
            assert request_id not in self.failures
            self.failures[request_id] = type(error).__name__


def finish(core: EngineCore, record: ReaderRecord | None = None) -> ReaderRecord:
    record = record or ReaderRecord()
    while core.has_work:
        record.add(core.step())
        core.check()
    assert core.stats().kv_cache_usage == 0
    return record


def are_close(found: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> bool:
    """Whether both score the same tokens alike, but for rounding."""
    return [_ids(scores) for scores in found] == [_ids(scores) for scores in expected] and all(
        own.logprob is not None and other.logprob is not None and abs(own.logprob - other.logprob) < 1e-4
        for one, another in zip(found, expected, strict=True)
        for own, other in zip((one.token, *one.top), (another.token, *another.top), strict=True)
    )


def _ids(scores: TokenLogprobs) -> list[int | None]:
    return [scores.token.token_id, scores.rank, *(one.token_id for one in scores.top)]


class AdjustableClock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


def prompts_for(rng: random.Random) -> list[list[int]]:
    """Makes random prompts, some with a common prefix."""
    stem = [rng.randrange(3, 300) for _ in range(30)]
    prompts = [stem[: rng.randint(1, 30)] + [rng.randrange(3, 300) for _ in range(rng.randint(0, 9))] for _ in range(4)]
    return [*prompts, [rng.randrange(3, 300) for _ in range(rng.randint(1, 40))]]


def run_scenario(
    rng: random.Random,
    core: EngineCore,
    clock: AdjustableClock,
    expect: Callable[[list[int], SamplingParams], ReaderRecord],
) -> Counter[str]:
    """Adds requests that stop, are aborted, miss their deadline and preempt each other, all at random.

    Args:
        rng: source of all randomness.
        core: the engine core.
        clock: the core's clock.
        expect: returns the record of a request that runs alone.

    Returns:
        How often each event happened.
    """
    prompts = prompts_for(rng)
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    record, seen = ReaderRecord(), Counter[str]()
    to_come = 14
    while to_come or core.has_work:
        while to_come and (not core.has_work or rng.random() < 0.3):
            to_come -= 1
            name, prompt = f"r{to_come}", rng.choice(prompts)
            params = rng.choice(ON_DEVICE if rng.random() < 0.8 else ON_HOST)
            if params.max_tokens == MAX_REPLY_TOKENS and params.n == 1 and rng.random() < 0.4:
                whole = expect(prompt, params).tokens["r", 0]
                params = replace(params, stop_token_ids=(*params.stop_token_ids, rng.choice(whole)))
            asked[name] = prompt, params
            add(core, name, prompt, params, deadline=1000.0 if rng.random() < 0.1 else None)
        if rng.random() < 0.04:
            clock.ahead += 2000.0
        if asked and rng.random() < 0.06:
            name = rng.choice(sorted(asked))
            if core.abort(name):
                seen["aborts"] += 1
                del asked[name]
                core.check()
        record.add(core.step())
        core.check()
    assert core.stats().kv_cache_usage == 0
    for name, (prompt, params) in asked.items():
        if name in record.failures:
            assert record.failures[name] == "DeadlineError"
            continue
        alone = expect(prompt, params)
        for index in range(params.n):
            tokens, context = record.tokens.get((name, index), []), f"{name}, {params}"
            if record.reasons[name, index] is FinishReason.DEADLINE:
                seen["deadlines"] += 1
                assert tokens == alone.tokens["r", index][: len(tokens)], context
            else:
                seen["stops"] += record.reasons[name, index] is FinishReason.STOP
                assert tokens == alone.tokens["r", index], context
                assert record.reasons[name, index] == alone.reasons["r", index], context
    seen["preemptions"] += core.stats().num_preemptions
    seen["prefix hits"] += core.stats().cached_prompt_tokens
    return seen
