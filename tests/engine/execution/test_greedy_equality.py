"""In fp32 the engine says token for token what ``transformers.generate`` says, whatever happens around a request.

The tiny models' weights are drawn wide, so that every token depends on what the cache holds; the mutation checks
at the end prove that the comparison sees one wrong row of it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import EngineSettings, FinishReason, SamplingParams
from engine.execution.attention.base import AttentionCall
from engine.execution.attention.cpu import CpuKernel
from engine.execution.load import load_model
from engine.execution.native import decoder, eligibility
from engine.model.loaded_model import LoadedModel
from engine.runtime.engine_core import EngineCore
from engine.scheduling.block_pool import NULL_BLOCK
from engine.scheduling.cache_layout import CacheLayout, blocks_for_sequence
from testing.models import FAMILIES, WINDOW, make_model
from testing.native import needs_compiler
from testing.reference import TIE_MARGIN, Comparison, Reference, ReferenceReply

MAX_LEN = 96
LONGEST = 20  #: reply


@dataclass(frozen=True)
class Pair:
    """The same weights twice: in the engine, and untouched in transformers."""

    name: str
    model: LoadedModel
    reference: Reference


def load_pair(name: str, path: Path, *, native: bool = False) -> Pair:
    """With ``native``, short steps run in C++."""
    settings = EngineSettings(model=str(path), dtype="float32", device="cpu", native=native)
    return Pair(name, load_model(settings, lambda _stage, _fraction: None), Reference(path))


#: Different enough that a check which sees a defect in these sees it in all; the rest is in the long tests.
TYPICAL = {"llama", "gemma2", "mistral-window", "gpt-neox", "qwen3-moe"}
#: One with a window and one without: what happens around a request is the same for all others.
EVERY_EVENT = {"llama", "mistral-window"}


def slow_unless_every_event(families: Iterable[str], *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param(name, marks=[*marks, *([] if name in EVERY_EVENT else [pytest.mark.slow])]) for name in families
    ]


@pytest.fixture(scope="module", params=slow_unless_every_event(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family = request.param
    path = tmp_path_factory.mktemp("models") / family
    return load_pair(family, make_model(path, family, seed=list(FAMILIES).index(family), eos=False))


@pytest.fixture(
    scope="module",
    params=slow_unless_every_event(("llama", "qwen2", "qwen3", "mistral-window"), needs_compiler),
)
def native_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family = request.param
    path = tmp_path_factory.mktemp("native") / family
    made = make_model(path, family, seed=list(FAMILIES).index(family), eos=False, vocab_size=397)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eligibility, "max_rows", lambda: 0)  # keeps the module, for steps of many rows
        pair = load_pair(family, made, native=True)
    assert pair.model.decoder is not None
    return pair


typical_families = pytest.mark.parametrize(
    "pair",
    [
        *slow_unless_every_event(name for name in FAMILIES if name in TYPICAL),
        *(pytest.param(name, marks=pytest.mark.full) for name in FAMILIES if name not in TYPICAL),
    ],
    indirect=True,
    scope="module",
)


def make_core(pair: Pair, *, num_kv_blocks: int | None = None, block_size: int = 4, **settings: Any) -> EngineCore:
    blocks = num_kv_blocks or 4 * MAX_LEN // block_size
    return EngineCore(
        pair.model,
        EngineSettings(max_model_len=MAX_LEN, num_kv_blocks=blocks, kv_block_size=block_size, **settings),
    )


def submit(core: EngineCore, name: str, prompt: list[int], max_tokens: int) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    core.add(core.request_processor.process(name, prompt, core.request_processor.resolve(prompt, params)))


def run_to_end(core: EngineCore, name: str) -> list[int]:
    """The tokens of one request; others may run beside it."""
    tokens: list[int] = []
    while True:
        for delta in core.step().deltas:
            if delta.request_id == name:
                tokens += delta.token_ids
                if delta.finish_reason is not None:
                    return tokens


# -- whatever happens around it ---------------------------------------------------------------------------


def prompts_for(pair: Pair, rng: random.Random) -> list[list[int]]:
    """Prompts that begin alike, some of them the next turn of another one's conversation."""
    vocab = pair.model.vocab_size

    def noise(length: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(length)]

    stem = noise(40)
    prompts = [stem[: rng.randint(1, 40)] + noise(rng.randint(0, 12)) for _ in range(5)]
    prompts.append(noise(rng.randint(1, 50)))
    for prompt in prompts[:2]:
        reply = pair.reference.greedy(prompt, LONGEST).token_ids
        prompts.append([*prompt, *reply, *noise(rng.randint(1, 5))])
    return prompts


def run_scenario(pair: Pair, seed: int, comparison: Comparison) -> Counter[str]:
    """Requests arrive, run together, are aborted, and are put out by each other, all at random."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    max_num_seqs = rng.randint(1, 6)
    spare = rng.choice([0, 0, 20 // block_size, 400 // block_size])
    budget = max_num_seqs + rng.choice([0, 1, 4, 20, 300])
    windows = CacheLayout.of(pair.model.layers).windows
    core = make_core(
        pair,
        block_size=block_size,
        num_kv_blocks=blocks_for_sequence(windows, MAX_LEN, budget, block_size) + 1 + spare,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=budget,
    )
    prompts = prompts_for(pair, rng)
    for prompt in prompts:
        pair.reference.greedy(prompt, LONGEST)  # once, whatever is asked for
    asked: dict[str, tuple[list[int], int]] = {}
    got: dict[str, list[int]] = {}
    live: set[str] = set()
    seen: Counter[str] = Counter()
    to_come = 16
    while to_come or core.has_work:
        while to_come and (not core.has_work or rng.random() < 0.3):
            to_come -= 1
            name = f"r{to_come}"
            prompt, max_tokens = rng.choice(prompts), rng.choice([1, 8, LONGEST])
            asked[name], got[name] = (prompt, max_tokens), []
            live.add(name)
            submit(core, name, prompt, max_tokens)
        if live and rng.random() < 0.03:
            name = rng.choice(sorted(live))
            assert core.abort(name)
            live.remove(name)
            seen["aborts"] += 1
        deltas = core.step().deltas
        seen["mixed steps"] += any(d.progress for d in deltas) and any(d.token_ids for d in deltas)
        seen["shared steps"] += len(deltas) > 1
        for delta in deltas:
            assert delta.request_id in live
            seen["partial hits"] += bool((delta.cached_prompt_tokens or 0) % block_size)
            if delta.progress is not None:
                seen["partial prefills"] += 1
                # What was computed of this prompt stays in the prefix cache, and nothing else may.
                if rng.random() < 0.2 and core.abort(delta.request_id):
                    live.remove(delta.request_id)
                    seen["aborts"] += 1
            got[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.finish_reason is FinishReason.LENGTH
                live.remove(delta.request_id)
                comparison.check(
                    got[delta.request_id],
                    pair.reference.greedy(*asked[delta.request_id]),
                    context=f"{pair.name}, seed {seed}, {delta.request_id}",
                )
                del asked[delta.request_id]
        core.check()
        seen["blocks given back"] += any(NULL_BLOCK in table for r in core._scheduler.requests for table in r.tables)
    for name, (prompt, max_tokens) in asked.items():  # the aborted ones
        expected = pair.reference.greedy(prompt, max_tokens)
        comparison.check(got[name], expected, finished=False, context=f"{pair.name}, seed {seed}, {name}")
    stats = core.stats()
    assert stats.kv_cache_usage == 0
    seen["preemptions"] += stats.num_preemptions
    seen["prefix hits"] += stats.cached_prompt_tokens
    return seen


def check_scenarios(pair: Pair, seeds: Sequence[int]) -> None:
    comparison = Comparison()
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += run_scenario(pair, seed, comparison)
    assert comparison.tokens > 50 * len(seeds)
    assert comparison.ties <= 1 + comparison.tokens // 2000
    if len(seeds) == 1:
        return
    # The scenarios must have been what they are for.
    events = ["aborts", "preemptions", "prefix hits", "partial hits", "partial prefills", "mixed steps", "shared steps"]
    if pair.model.needs.sliding_window:
        events.append("blocks given back")
    for event in events:
        assert seen[event] >= 3, (event, seen)


def seeds_for(pair: Pair) -> Sequence[int]:
    return (1, 9, 12) if pair.name in EVERY_EVENT else (9,)  # the three hold every event


def test_replies_are_transformers_replies_whatever_happens(pair: Pair) -> None:
    check_scenarios(pair, seeds_for(pair))


@pytest.mark.slow
@pytest.mark.usefixtures("single_steps")
@pytest.mark.parametrize("max_rows", [MAX_LEN * 4, 3])
def test_steps_in_cpp_say_the_same_alone_and_among_others(
    native_pair: Pair, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, and then only those of few rows: both kinds of steps read what the other kind has stored."""
    monkeypatch.setattr(decoder, "max_rows", lambda: max_rows)
    check_scenarios(native_pair, seeds_for(native_pair))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_steps_in_cpp_say_the_same_at_length(native_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "max_rows", lambda: 6)
    check_scenarios(native_pair, range(200, 220))


@pytest.mark.parametrize("part", ["keys", "values"])
def test_steps_in_cpp_read_the_cache(native_pair: Pair, part: str) -> None:
    assert num_noticed(native_pair, part, enough=4) == 4


@pytest.mark.full
@pytest.mark.timeout(900)
def test_replies_are_transformers_replies_whatever_happens_at_length(pair: Pair) -> None:
    check_scenarios(pair, range(100, 140 if pair.name in EVERY_EVENT else 115))


def test_an_end_of_sequence_ends_the_same_reply(tmp_path: Path) -> None:
    """A model with many end tokens ends most replies by itself: ours end at the same one, for the same reason."""
    ends = list(range(10, 40))
    pair = load_pair("llama", make_model(tmp_path / "model", "llama", seed=21, eos=ends))
    core = make_core(pair)
    rng = random.Random(0)
    reasons: Counter[FinishReason] = Counter()
    for number in range(10):
        prompt = [rng.randrange(pair.model.vocab_size) for _ in range(5)]
        params = SamplingParams(temperature=0, max_tokens=16)
        core.add(core.request_processor.process(str(number), prompt, core.request_processor.resolve(prompt, params)))
        deltas = [delta for _ in range(16) for delta in core.step().deltas]
        tokens = [token for delta in deltas for token in delta.token_ids]
        Comparison().check(tokens, pair.reference.greedy(prompt, 16))
        reason = FinishReason.STOP if tokens[-1] in ends else FinishReason.LENGTH
        assert deltas[-1].finish_reason is reason
        assert deltas[-1].stop_reason is None
        reasons[reason] += 1
    assert reasons[FinishReason.STOP] >= 3
    assert reasons[FinishReason.LENGTH] >= 1


# -- the comparison notices -------------------------------------------------------------------------------


def corrupt(core: EngineCore, name: str, layer: int, part: str, position: int) -> None:
    """Overwrite one row of the cache with noise of its own size."""
    request = core._scheduler.get(name)
    assert request is not None
    assert position < request.num_computed_tokens
    size = core.stats().kv_block_size
    rows = getattr(core.strategy.runner.layers[layer], part)
    table = request.tables[core.strategy.runner._group_of_layer[layer]]
    row = rows[table[position // size], position % size]
    generator = torch.Generator().manual_seed(layer * 1000 + position)
    row.copy_(torch.randn(row.shape, generator=generator) * row.std())


def prompt_of(pair: Pair, length: int) -> list[int]:
    return [(7 * index + 3) % pair.model.vocab_size for index in range(length)]


def is_noticed(pair: Pair, layer: int, part: str, position: int, *, prompt_length: int = 12) -> bool:
    """Corrupt a row early in a reply and see whether the comparison of the whole reply fails."""
    prompt, max_tokens = prompt_of(pair, prompt_length), 32
    core = make_core(pair)
    submit(core, "r", prompt, max_tokens)
    tokens = [token for _ in range(2) for delta in core.step().deltas for token in delta.token_ids]
    corrupt(core, "r", layer, part, position)
    tokens += run_to_end(core, "r")
    try:
        Comparison().check(tokens, pair.reference.greedy(prompt, max_tokens))
    except AssertionError:
        return True
    return False


def num_noticed(pair: Pair, part: str, *, enough: int) -> int:
    """How many of eight rows are noticed when they are corrupted; the count ends at ``enough``."""
    rows = [(layer, position) for position in (1, 4, 7, 10) for layer in range(2)]
    noticed = (row for row in rows if is_noticed(pair, row[0], part, row[1]))
    return len(list(itertools.islice(noticed, enough)))


@pytest.mark.slow
@typical_families
@pytest.mark.parametrize("part", ["keys", "values"])
def test_one_corrupted_row_turns_the_comparison_red(pair: Pair, part: str) -> None:
    # No head may ever look at a position again, so a few rows go unnoticed; most must not.
    assert num_noticed(pair, part, enough=4) == 4


def is_red(pair: Pair, prompt_length: int = 12) -> bool:
    """A reply alone differs from the reference."""
    prompt = prompt_of(pair, prompt_length)
    core = make_core(pair)
    submit(core, "r", prompt, 32)
    tokens = run_to_end(core, "r")
    try:
        Comparison().check(tokens, pair.reference.greedy(prompt, 32))
    except AssertionError:
        return True
    return False


@typical_families
def test_wrong_positions_turn_the_comparison_red(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of one step is given the position behind its own."""
    logits = LoadedModel.logits

    def misplacing(wrong_step: int) -> Callable[..., Tensor]:
        step = itertools.count()

        def misplaced(model: LoadedModel, ids: Tensor, positions: Tensor, *rest: Any) -> Tensor:
            return logits(model, ids, positions + (next(step) == wrong_step), *rest)

        return misplaced

    noticed = []
    for wrong_step in (1, 3, 5, 7):
        monkeypatch.setattr(LoadedModel, "logits", misplacing(wrong_step))
        noticed.append(is_red(pair))
    assert sum(noticed) >= 2


@typical_families
@pytest.mark.parametrize("wrong_layer", [0, 1])
def test_a_mask_that_is_one_key_short_turns_the_comparison_red(
    pair: Pair, wrong_layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer does not see the earliest key that it should."""
    forward = CpuKernel.forward

    def blinkered(kernel: CpuKernel, call: AttentionCall, prepared: Any) -> Tensor:
        number = next(numbers)
        if number >= 2 and number % 2 == wrong_layer:  # the prompt is read with the right mask
            visible = prepared[0].num_keys
            call = replace(call, sliding_window=min(visible, call.sliding_window or visible) - 1)
        return forward(kernel, call, prepared)

    monkeypatch.setattr(CpuKernel, "forward", blinkered)
    for prompt_length in (12, 7, 20, 30):  # in one of them somebody looks there
        numbers = itertools.count()
        if is_red(pair, prompt_length):
            return
    pytest.fail("nobody noticed")


@typical_families
def test_a_corrupted_row_in_the_prefix_cache_turns_the_next_reply_red(pair: Pair) -> None:
    """A prefix hit really reads the cache."""
    prompt = prompt_of(pair, 13)
    expected = pair.reference.greedy(prompt, 20)
    core = make_core(pair)
    submit(core, "first", prompt, 20)
    core.step()
    corrupt(core, "first", 0, "values", 5)
    run_to_end(core, "first")
    submit(core, "second", prompt, 20)
    with pytest.raises(AssertionError, match="which leads by"):
        Comparison().check(run_to_end(core, "second"), expected)
    assert core.stats().cached_prompt_tokens == 12
    core._pool.reset_prefix_cache()
    submit(core, "third", prompt, 20)
    Comparison().check(run_to_end(core, "third"), expected)


@pytest.mark.slow
@typical_families
def test_rows_beyond_the_window_do_not_matter_any_more(pair: Pair) -> None:
    """What no later query may see must not change what is said; where there is no window, it must."""
    for index, layer in enumerate(pair.model.layers):
        length = (layer.sliding_window or WINDOW) + 4
        beyond = [is_noticed(pair, index, "values", position, prompt_length=length) for position in range(4)]
        assert any(beyond) == (layer.sliding_window is None), (index, beyond)


def test_the_tie_rule_excuses_ties_and_nothing_else() -> None:
    expected = ReferenceReply(token_ids=(1, 2, 3), leads=(0.5, TIE_MARGIN / 2, 0.5))
    comparison = Comparison()
    comparison.check([1, 2, 3], expected)
    comparison.check([1, 9, 9], expected)
    assert comparison.ties == 1
    for wrong in ([9, 2, 3], [1, 2, 9], [1, 2], [1, 2, 3, 4]):
        with pytest.raises(AssertionError):
            comparison.check(wrong, expected)
    comparison.check([1, 2], expected, finished=False)
