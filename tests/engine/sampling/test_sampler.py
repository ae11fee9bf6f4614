"""The sampler against a plain reference in numpy and against transformers' own processors: all its arithmetics, that of
NumPy, the one in C++, and the GPU's, which computes here too."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import engine.sampling.sampler
from engine.errors import LogitsError
from engine.execution.native.build import NotCompiled
from engine.execution.native.sampling import NativeSampling, check_size
from engine.sampling import cpu, gpu
from engine.sampling.async_sampler import sample_async
from engine.sampling.grammar import TokenMask
from engine.sampling.sampler import Sampler, SamplingBackend, SamplingRow, uniform
from engine.sampling_params import SamplingParams

DEFAULTS = SamplingParams.from_generation_config(GenerationConfig())
ARITHMETICS: dict[str, SamplingBackend] = {"host": cpu, "device": gpu}


@pytest.fixture(scope="module")
def native() -> NativeSampling:
    try:
        return NativeSampling()
    except NotCompiled as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module", params=[*ARITHMETICS, "native"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "native":
        return Sampler(request.getfixturevalue("native"))
    return Sampler(ARITHMETICS[request.param])


def adjusted(sampler: Sampler, logits: Tensor, row: SamplingRow) -> Tensor:
    return torch.as_tensor(sampler.backend_for(logits).adjust(logits, [row]))


def make_row(
    *,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    seed: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    name: str = "r",
    **params: Any,
) -> SamplingRow:
    prompt, output = prompt or [], output or []
    return SamplingRow(
        name,
        SamplingParams(**params).with_defaults(DEFAULTS),
        seed=seed,
        token_ids=prompt + output,
        num_prompt_tokens=len(prompt),
        stop_token_ids=stop_token_ids,
    )


def held_to(bits: NDArray[np.uint8] | None, vocab_size: int, banned: Sequence[int] = (), **params: Any) -> SamplingRow:
    """A greedy row that is held to a grammar."""
    row = make_row(temperature=0, **params)
    row.grammar, row.adjusts_logits = cast(Any, MaskGrammar(bits, vocab_size, banned)), True
    return row


class MaskGrammar:
    """A grammar of given bits, or one that does not hold yet and bans some tokens."""

    def __init__(self, bits: NDArray[np.uint8] | None, vocab_size: int, banned: Sequence[int] = ()) -> None:
        self._mask = None if bits is None else TokenMask(bits, vocab_size)
        self._banned = np.array(banned, dtype=np.int64)

    def matcher_at(self, token_ids: Sequence[int], num_prompt_tokens: int) -> Any:
        return None if self._mask is None else self

    def allowed(self) -> TokenMask:
        assert self._mask is not None
        return self._mask

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        return self._banned


def reference_scores(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int], banned: frozenset[int]
) -> np.ndarray:
    """Bias, penalties and bans by the textbook, in float64, one token at a time."""
    assert params.repetition_penalty is not None
    assert params.presence_penalty is not None
    assert params.frequency_penalty is not None
    x = logits.astype(np.float64).copy()
    for token, bias in (params.logit_bias or {}).items():
        x[token] += bias
    for token in set(prompt) | set(output):
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token in set(output):
        x[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    if len(output) < params.min_tokens:
        x[list(banned)] = -np.inf
    return x


def reference_probabilities(x: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Temperature and filters by the textbook. No ties are expected."""
    assert params.top_p is not None
    assert params.min_p is not None
    assert params.typical_p is not None
    assert params.top_n_sigma is not None
    if params.temperature == 0:
        return np.eye(x.size)[int(x.argmax())]
    if params.top_n_sigma > 0:
        x = np.where(x < x.max() - params.top_n_sigma * x[np.isfinite(x)].std(), -np.inf, x)
    x = x / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    ranking = [int(token) for token in np.argsort(-p, kind="stable")]
    if params.top_k:
        ranking = ranking[: params.top_k]
    mass = p[ranking].sum()
    nucleus, before = list[int](), 0.0
    for token in ranking:
        if nucleus and before >= params.top_p * mass and params.top_p < 1:
            break
        nucleus.append(token)
        before += p[token]
    kept = [token for token in nucleus if p[token] >= params.min_p * p.max()]
    if params.typical_p < 1:
        q = p[kept] / p[kept].sum()
        with np.errstate(divide="ignore"):
            log_q = np.log(q)
        entropy = -(q[q > 0] * log_q[q > 0]).sum()
        order = np.argsort(np.abs(-log_q - entropy), kind="stable")
        before = np.cumsum(q[order]) - q[order]
        kept = [kept[index] for index in order[: max(1, int((before < params.typical_p).sum()))]]
    filtered = np.zeros_like(p)
    filtered[kept] = p[kept]
    return filtered / filtered.sum()


GRID = 4000


def exact_probabilities(sampler: Sampler, logits: Tensor, row: SamplingRow, points: int = GRID) -> np.ndarray:
    """What the sampler draws from, read off its draws: the noise is swept over a grid of so many points."""
    noise = (np.arange(points) + 0.5) / points
    sweep = iter(noise.tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.sampling.sampler, "uniform", lambda _seed, _position: next(sweep))
        tokens = sampler.sample(logits.expand(points, -1), [row] * points)
    return np.bincount(tokens, minlength=logits.shape[-1]) / points


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.5, 5.0]),
        "top_k": st.sampled_from([0, 1, 2, 5, 30, 1000]),
        "top_p": st.sampled_from([0.0, 1e-6, 0.3, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "typical_p": st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
        "top_n_sigma": st.sampled_from([0.0, 0.3, 1.0, 2.5, 100.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.7]),
        "logit_bias": st.sampled_from([{0: 4.0}, {1: -100.0, 7: 2.5}, {3: 100.0}]),
        "min_tokens": st.sampled_from([0, 3, 10]),
    },
)
TOKENS = st.lists(st.integers(0, 39), max_size=12)


_given_parameters = given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([40, 700]), asked=PARAMS, prompt=TOKENS, output=TOKENS
)


@pytest.mark.slow
@_given_parameters
@settings(max_examples=8)
def test_the_distribution_is_the_textbooks(
    sampler: Sampler, seed: int, vocab: int, asked: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    check_distribution(sampler, seed, vocab, asked, prompt, output)


@pytest.mark.full
@_given_parameters
@settings(max_examples=100)
def test_the_distribution_is_the_textbooks_a_hundred_times(
    sampler: Sampler, seed: int, vocab: int, asked: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    check_distribution(sampler, seed, vocab, asked, prompt, output)


def check_distribution(
    sampler: Sampler, seed: int, vocab: int, asked: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    banned = frozenset({0, 5})
    row = make_row(prompt=prompt, output=output, stop_token_ids=banned, **asked)
    params = SamplingParams(**asked).with_defaults(DEFAULTS)
    scores = reference_scores(logits[0].numpy(), params, prompt, output, banned)
    np.testing.assert_allclose(adjusted(sampler, logits, row)[0].numpy(), scores, rtol=1e-5, atol=1e-4)
    expected = reference_probabilities(scores, params)
    got = exact_probabilities(sampler, logits, row)
    # A sweep over n grid points counts a token's share to within one point at each end of its interval.
    assert np.abs(got - expected).max() <= 2 / GRID
    assert not got[expected == 0].any()


def reference_cumulative(scores: Tensor, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Everything sorted, in float64: where each token's share of the noise ends, in the order of the vocabulary."""
    x = scores.double().numpy() / temperature
    p = np.exp(x - x.max())
    ranked = np.sort(p)[::-1]
    if top_k:
        ranked = ranked[ranked >= ranked[min(top_k, len(p)) - 1]]
    before = np.cumsum(ranked) - ranked
    lowest = ranked[max(1, int((before < top_p * ranked.sum()).sum())) - 1]
    kept = np.where(p >= lowest, p, 0)
    return np.cumsum(kept) / kept.sum()


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([30, 513, 3072, 20_000]),
    spread=st.sampled_from([0.0, 0.4, 3.0, 20.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperature=st.sampled_from([0.3, 0.7, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 40, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
)
def test_draws_are_those_of_a_vocabulary_sorted_in_float64(
    sampler: Sampler,
    seed: int,
    vocab: int,
    spread: float,
    dtype: torch.dtype,
    temperature: float,
    top_k: int,
    top_p: float,
) -> None:
    """Flat distributions and peaked ones, with equal scores and without."""
    logits = (torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)
    rows = [
        make_row(seed=seed, output=[0] * position, temperature=temperature, top_k=top_k, top_p=top_p)
        for position in range(8)
    ]
    tokens = sampler.sample(logits.expand(len(rows), -1), rows)
    # In fp32 the token that completes a nucleus may be the one before or behind, where the share ends just there.
    borders = [0.0] if top_p == 1 else [-1e-6, 1e-6]
    possible = [reference_cumulative(logits[0], temperature, top_k, top_p + border) for border in borders]
    for row, token in zip(rows, tokens, strict=True):
        noise = uniform(row.seed, row.position)
        begins = [0.0 if token == 0 else float(cumulative[token - 1]) for cumulative in possible]
        ends = [float(cumulative[token]) for cumulative in possible]
        assert any(begin < end and begin - 1e-6 <= noise <= end + 1e-6 for begin, end in zip(begins, ends, strict=True))


@pytest.mark.parametrize("spread", [0.0, 0.4, 4.0])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"top_p": 0.9},
        {"top_k": 40, "top_p": 0.9},
        {"min_p": 0.05},
        {"typical_p": 0.8},
        {"top_n_sigma": 1.2},
        {"top_n_sigma": 2.7, "top_k": 40, "top_p": 0.9},
        {"top_n_sigma": 2.2, "typical_p": 0.8},
    ],
)
def test_all_arithmetics_draw_the_same_tokens(sampler: Sampler, asked: dict[str, Any], spread: float) -> None:
    logits = (torch.randn(40, 9000, generator=torch.Generator().manual_seed(4)) * spread).bfloat16()
    rows = [make_row(seed=seed, output=[1] * seed, temperature=0.7, **asked) for seed in range(len(logits))]
    assert sampler.sample(logits, rows) == Sampler(cpu).sample(logits, rows)


@pytest.mark.slow
def test_rows_of_all_kinds_are_drawn_in_cpp_as_numpy_draws_them(native: NativeSampling) -> None:
    """Vocabularies that fill no vector, banned tokens, equal scores, weights that vanish, and filters of all kinds."""
    rng = np.random.default_rng(1)
    for number in range(300):
        vocab = int(rng.choice([1, 5, 40, 257, 3072]))
        logits = torch.from_numpy(rng.normal(size=(8, vocab)).astype(np.float32) * rng.choice([0.3, 3.0, 30.0]))
        if number % 3 == 0:
            logits = logits.round()
        if number % 4 == 0:
            logits[:, rng.integers(0, vocab, size=vocab // 3)] = -torch.inf
        rows = [
            make_row(
                seed=int(rng.integers(2**62)),
                temperature=float(rng.choice([0.02, 0.6, 1.0, 9.0])),
                top_k=int(rng.choice([0, 1, 2, 40, 200, 5000])),
                top_p=float(rng.choice([1.0, 0.99, 0.9, 0.3])),
                min_p=float(rng.choice([0.0, 0.05])),
                typical_p=float(rng.choice([1.0, 1.0, 0.9])),
                top_n_sigma=float(rng.choice([0.0, 0.0, 0.7, 2.3])),
            )
            for _ in range(len(logits))
        ]
        if logits.isfinite().any(1).all():
            assert Sampler(native).sample(logits, rows) == Sampler(cpu).sample(logits, rows)


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.3, 3.0, 300.0]),
    top_k=st.sampled_from([1, 3, 50, 180, 1000]),
    top_p=st.sampled_from([None, 0.5, 0.95]),
    min_p=st.sampled_from([None, 0.2]),
    temperature=st.sampled_from([0.02, 0.7, 10.0]),
    half=st.booleans(),
)
def test_candidates_of_top_k_are_drawn_from_as_if_all_tokens_were_looked_at(
    seed: int, spread: float, top_k: int, top_p: float | None, min_p: float | None, temperature: float, half: bool
) -> None:
    """Weights that are equal though their scores are not (at a high temperature), and many that vanish (at a low)."""
    logits = torch.randn(3001, generator=torch.Generator().manual_seed(seed)) * spread
    scores = (logits.bfloat16() if half else logits).float().numpy()
    row = make_row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    highest = float(scores.max())
    with np.errstate(over="ignore"):
        for noise in (0.0, 0.3, 0.7, 1 - 2.0**-53):
            drawn = cpu._draw(scores, highest, row, noise)
            assert drawn == cpu._draw_among(scores, highest, row, noise)


@given(
    seed=st.integers(0, 2**32 - 1),
    top_k=st.sampled_from([None, 1, 3, 50, 300, 5000]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.95]),
    min_p=st.sampled_from([None, 0.01, 0.2]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    half=st.booleans(),
)
def test_the_filters_keep_what_transformers_keeps(
    seed: int, top_k: int | None, top_p: float | None, min_p: float | None, temperature: float, half: bool
) -> None:
    """Few candidates and many (more than are ranked at first), without ties and, in bfloat16, with many."""
    logits = torch.randn(2, 3000, generator=torch.Generator().manual_seed(seed)) * 2
    if half:
        logits = logits.bfloat16()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p and not half:  # transformers cuts a nucleus amid equal tokens wherever its sort left them
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(None, logits.float()) > -np.inf

    row = make_row(
        temperature=temperature, top_k=top_k, top_p=None if half else top_p, min_p=min_p, name="transformers"
    )
    scaled = (logits.float() - logits.float().amax(-1, keepdim=True)) / temperature
    weights = np.exp(scaled.numpy())
    on_host = np.stack([each >= cpu._lowest_kept(each, each.sum(dtype=float), row) for each in weights])
    kept = torch.zeros_like(expected)
    if row.is_ranked:
        values, ids = gpu._survivors(scaled, [row, row])
        kept.scatter_(1, ids, values > -np.inf)
    else:
        kept = scaled >= gpu._floor([row, row], scaled)
    # In fp32 the last token of a nucleus may fall on either side of the border; never more than that one.
    borderline = 1 if top_p and not half else 0
    assert int((kept != expected).sum(-1).max()) <= borderline
    assert int((torch.from_numpy(on_host) != expected).sum(-1).max()) <= borderline


@given(
    seed=st.integers(0, 2**32 - 1),
    typical_p=st.sampled_from([0.05, 0.2, 0.5, 0.9, 0.99]),
    top_k=st.sampled_from([None, 3, 50]),
    min_p=st.sampled_from([None, 0.05]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_typical_p_keeps_what_transformers_keeps(
    seed: int, typical_p: float, top_k: int | None, min_p: float | None, temperature: float
) -> None:
    """In a batch where others ask for none, or for another share."""
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(seed)) * 2
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    before = warpers(None, logits) > -np.inf
    warpers.append(TypicalLogitsWarper(typical_p))
    expected = warpers(None, logits) > -np.inf
    expected[1] = before[1]

    row = make_row(temperature=temperature, top_k=top_k, min_p=min_p, typical_p=typical_p)
    rows = [row, make_row(temperature=temperature, top_k=top_k, min_p=min_p), row]
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    if row.is_ranked:
        values, ids = gpu._survivors(scaled, rows)
    else:
        values = scaled.masked_fill(scaled < gpu._floor(rows, scaled), -torch.inf)
        ids = torch.arange(1000).expand(3, -1)
    values = gpu._keep_typical(values, rows)
    kept = torch.zeros_like(expected).scatter_(1, ids, values > -np.inf)
    # Transformers reckons in fp32: the token that completes the share may be one further or one less.
    assert int((kept != expected).sum(-1).max()) <= 1

    weights = np.exp(scaled[0].numpy())
    weights[weights < cpu._lowest_kept(weights, weights.sum(dtype=float), row)] = 0
    on_host = torch.from_numpy(cpu._typical(weights, typical_p) > 0)
    assert int((on_host != expected[0]).sum()) <= 1


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([2, 7, 40, 513]),
    top_n_sigma=st.sampled_from([0.31, 1.0, 1.7, 3.3]),
    num_banned=st.sampled_from([0, 1, 5]),
    bias=st.sampled_from([0.0, 4.0]),
)
@settings(max_examples=20)
def test_top_n_sigma_keeps_what_its_paper_keeps_at_every_temperature(
    sampler: Sampler, seed: int, vocab: int, top_n_sigma: float, num_banned: int, bias: float
) -> None:
    """The deviation is that of the scores after the bias, of which banned tokens are no part."""
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed))
    banned = frozenset(range(min(num_banned, vocab - 1)))
    scores = logits[0].double().numpy().copy()
    scores[vocab - 1] += bias
    scores[list(banned)] = -np.inf
    lowest = scores.max() - top_n_sigma * scores[np.isfinite(scores)].std()
    if np.abs(scores - lowest).min() < 1e-6:
        return  # a border case: bias is added in float32
    kept = scores >= lowest
    asked: dict[str, Any] = {"top_n_sigma": top_n_sigma, "logit_bias": {vocab - 1: bias}}
    asked |= {"min_tokens": 1, "stop_token_ids": banned} if banned else {}
    # So hot that every kept token has a share that the grid shows.
    points = 8 * vocab
    share = exact_probabilities(sampler, logits, make_row(temperature=10, **asked), points)
    np.testing.assert_array_equal(share > 0, kept)
    share = exact_probabilities(sampler, logits, make_row(temperature=0.2, **asked), points)
    assert not share[~kept].any()
    share = exact_probabilities(sampler, logits, make_row(temperature=10, **asked | {"top_n_sigma": -1}), points)
    np.testing.assert_array_equal(share > 0, np.isfinite(scores))


@pytest.mark.parametrize("asked", [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}])
def test_top_n_sigma_leaves_few_candidates_and_ranking_more_is_not_needed(asked: dict[str, Any]) -> None:
    """Fewer tokens than top-k keeps, and than are ranked at first: the asynchronous sampler's tokens are final."""
    logits = torch.randn(30, 4000, generator=torch.Generator().manual_seed(7))
    rows = [make_row(seed=seed, output=[1], top_n_sigma=0.4 + seed % 3, **asked) for seed in range(len(logits))]
    assert 1 < (logits[0] > logits[0].max() - 0.4 * logits[0].std()).sum() < 40
    sampled = sample_async(logits, rows, [uniform(row.seed, row.position) for row in rows])
    few = [index for index, row in enumerate(rows) if row.top_n_sigma < 1]
    assert bool(sampled.final[few].all())
    expected = Sampler(cpu).sample(logits, rows)
    final = [index for index in range(len(rows)) if sampled.final[index]]
    assert [sampled.tokens[index].item() for index in final] == [expected[index] for index in final]


@given(
    seed=st.integers(0, 2**32 - 1),
    penalty=st.sampled_from([0.7, 1.1, 2.0]),
    prompt=st.lists(st.integers(0, 99), min_size=1, max_size=200),
    output=st.lists(st.integers(0, 99), max_size=200),
)
def test_the_repetition_penalty_is_transformers(
    sampler: Sampler, seed: int, penalty: float, prompt: list[int], output: list[int]
) -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(seed))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    row = make_row(prompt=prompt, output=output, repetition_penalty=penalty)
    torch.testing.assert_close(adjusted(sampler, logits, row), expected)


def test_penalties_grow_with_the_reply(sampler: Sampler) -> None:
    """One row lives through a reply: what it counted step by step is what a new row counts at once."""
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    asked: dict[str, Any] = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    row = make_row(prompt=[1, 2, 2, 3], **asked)
    reply = np.random.default_rng(0).integers(0, 300, 400).tolist()
    for position, token in enumerate(reply):
        cast(list[int], row.token_ids).append(token)
        if position % 37 == 0 or position == len(reply) - 1:
            fresh = make_row(prompt=[1, 2, 2, 3], output=reply[: position + 1], **asked)
            torch.testing.assert_close(adjusted(sampler, logits, row), adjusted(sampler, logits, fresh))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_draws_the_same_alone_and_in_any_company(sampler: Sampler, dtype: torch.dtype) -> None:
    choices = itertools.product([0, 0.8, 1.3], [0, 4, 900], [0.4, 0.99, 1.0], [0, 0.1], [1.0, 0.6], [1.0, 1.2])
    rows = [
        make_row(
            name=str(number), seed=number, prompt=[1, 2], output=[3] * (number % 5), stop_token_ids=frozenset({4}),
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
            repetition_penalty=repetition, top_n_sigma=(0, 0, 1.1, 3.1)[number % 4],
            min_tokens=number % 4, logit_bias={number: 3.0} if number % 3 else None,
        )
                for number, (temperature, top_k, top_p, min_p, typical_p, repetition) in enumerate(choices)
    ]  # fmt: skip
    logits = (torch.randn(len(rows), 2000, generator=torch.Generator().manual_seed(3)) * 2).to(dtype)
    untouched = logits.clone()
    alone = [sampler.sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    for seed in range(3):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()[: 20 + 30 * seed]
        together = sampler.sample(logits[order], [rows[index] for index in order])
        assert together == [alone[index] for index in order]
    assert torch.equal(logits, untouched)


def test_the_noise_depends_on_seed_and_position_alone(sampler: Sampler) -> None:
    logits = torch.zeros(1, 5000)

    def draw(seed: int, position: int, prompt_length: int) -> int:
        row = make_row(prompt=[1] * prompt_length, output=[2] * position, seed=seed)
        return sampler.sample(logits, [row])[0]

    assert draw(7, 3, 10) == draw(7, 3, 99)
    drawn = {draw(seed, position, 1) for seed in (0, 1, 2**63 - 1) for position in range(20)}
    assert len(drawn) >= 55


def test_the_noise_is_uniform_and_unrelated_between_neighbours() -> None:
    grid = np.array([[uniform(seed, position) for position in range(100)] for seed in range(100)])
    assert grid.min() >= 0.0
    assert grid.max() < 1.0
    counts, _ = np.histogram(grid, bins=50, range=(0, 1))
    assert chi_square(counts, np.full(50, grid.size / 50)) < 95  # 1e-4 quantile of 49 degrees of freedom
    for one, other in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.04


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.05, "temperature": 1.5}])
def test_draws_follow_the_distribution(sampler: Sampler, asked: dict[str, Any]) -> None:
    logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(9))
    params = SamplingParams(**asked).with_defaults(DEFAULTS)
    expected = reference_probabilities(logits[0].numpy(), params)
    rows = [make_row(seed=seed, **asked) for seed in range(5000)]
    counts = np.bincount(sampler.sample(logits.expand(len(rows), -1), rows), minlength=60)
    support = expected > 0
    assert counts[~support].sum() == 0
    assert chi_square(counts[support], expected[support] * len(rows)) < support.sum() + 4 * np.sqrt(2 * support.sum())


def test_equal_scores_are_all_kept_by_top_k_and_drawn_alike(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 5.0, 1.0]])
    share = exact_probabilities(sampler, logits, make_row(top_k=2))
    np.testing.assert_allclose(share, [0, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-3)


def test_equally_likely_tokens_are_all_in_a_nucleus_that_one_would_fill(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 9.0, 9.0, 9.0, 1.0]])
    share = exact_probabilities(sampler, logits, make_row(top_p=0.2))
    np.testing.assert_allclose(share, [0, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-3)


@pytest.mark.slow
def test_more_equal_scores_than_are_ranked_at_first(sampler: Sampler) -> None:
    logits = torch.zeros(1, 3000)
    share = exact_probabilities(sampler, logits, make_row(top_k=5))
    assert (share > 0).sum() == 3000


def test_one_token_left_is_taken_whatever_the_noise(sampler: Sampler) -> None:
    logits = torch.full((1, 50), -torch.inf)
    logits[0, 17] = -3.0
    for asked in (
        {}, {"top_k": 10}, {"top_p": 0.5}, {"min_p": 0.5}, {"typical_p": 0.5}, {"temperature": 0}, {"top_p": 0},
        {"top_n_sigma": 0.5},
    ):  # fmt: skip
        assert exact_probabilities(sampler, logits, make_row(**asked))[17] == 1.0


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("asked", [{}, {"top_k": 3}])
def test_the_ends_of_the_noise_never_reach_an_impossible_token(
    sampler: Sampler, noise: float, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.sampling.sampler, "uniform", lambda _seed, _position: noise)
    logits = torch.tensor([[-torch.inf, 0.3, 0.7, 0.1, -torch.inf]])
    assert sampler.sample(logits, [make_row(**asked)])[0] == (1 if noise == 0 else 3)


@pytest.mark.parametrize("count", [3, 200, 1500])
def test_rounding_does_not_carry_a_draw_beyond_the_last_weight(count: int) -> None:
    weights = np.zeros(count, dtype=np.float32)
    weights[: count // 3] = 0.1
    total = float(weights.sum(dtype=np.float64))
    assert cpu._first_beyond(weights, total * (1 + 1e-9)) == count // 3 - 1


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 0.0])
def test_a_tiny_temperature_takes_the_likeliest(sampler: Sampler, temperature: float) -> None:
    logits = torch.tensor([[1.0, 900.0, 899.0]])
    assert sampler.sample(logits, [make_row(temperature=temperature)]) == [1]


def test_the_end_is_banned_before_min_tokens_and_allowed_from_there(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    for length, expected in ((0, 2), (1, 2), (2, 1)):
        row = make_row(prompt=[0], output=[0] * length, temperature=0, min_tokens=2, stop_token_ids=frozenset({1}))
        assert sampler.sample(logits, [row]) == [expected]


@pytest.mark.parametrize("broken", [[torch.nan, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]])
@pytest.mark.parametrize("asked", [{}, {"temperature": 0}, {"top_k": 1}, {"repetition_penalty": 2.0}])
def test_unusable_logits_name_the_request(sampler: Sampler, broken: list[float], asked: dict[str, Any]) -> None:
    logits = torch.tensor([[0.0, 1.0], broken, [1.0, 0.0]])
    rows = [make_row(name=name, **asked) for name in ("req-1", "req-2", "req-3")]
    with pytest.raises(LogitsError, match="req-2") as caught:
        sampler.sample(logits, rows)
    assert caught.value.request_ids == ("req-2",)


def test_rows_and_logits_must_match(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="2 rows"):
        sampler.sample(torch.zeros(1, 5), [make_row(), make_row()])
    assert sampler.sample(torch.zeros(0, 5), []) == []


def test_a_packed_row_that_is_not_as_long_as_the_c_structure_is_refused() -> None:
    with pytest.raises(AssertionError, match="8 bytes, the C\\+\\+ structure 16"):
        check_size(struct.Struct("@d"), 16)


@pytest.mark.parametrize("vocab_size", [1, 7, 8, 9, 64, 301, 4099])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_grammars_leave_exactly_their_tokens(sampler: Sampler, vocab_size: int, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(vocab_size)
    logits = torch.as_tensor(generator.normal(size=(6, vocab_size)), dtype=dtype)
    logits[0, 0] = -np.inf
    before = logits.clone()
    shares = [0.0, 0.5, 1.0, 0.98]  # of the tokens that may follow
    expected, rows = before.double().numpy().copy(), []
    for index, share in enumerate(shares):
        allowed = generator.random(vocab_size) < share
        allowed[generator.integers(vocab_size)] = True
        bits = np.packbits(allowed, bitorder="little")
        # Whole words of 32 bits, as llguidance makes them; those behind the vocabulary mean nothing.
        bits = np.append(bits, np.full(-len(bits) % 4, 0xFF, dtype=np.uint8))
        rows.append(held_to(bits, vocab_size, logit_bias={0: 3.0} if index == 1 else None))
        if index == 1:
            expected[index, 0] += 3.0
        expected[index, ~allowed] = -np.inf
    rows += [held_to(None, vocab_size, [vocab_size // 2]), make_row(temperature=0)]
    expected[4, vocab_size // 2] = -np.inf
    backend = sampler.backend_for(logits)
    for _ in range(2):  # nothing is left of the last step
        scores = torch.as_tensor(backend.adjust(logits, rows)).double().numpy()
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert torch.equal(logits, before)


def test_a_mask_of_too_few_tokens_is_refused(native: NativeSampling) -> None:
    with pytest.raises(ValueError, match="mask of 32 tokens"):
        native.adjust(torch.zeros(1, 40), [held_to(np.full(4, 0xFF, dtype=np.uint8), 32)])
