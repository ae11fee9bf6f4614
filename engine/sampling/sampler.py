"""Samples tokens from logits for a mixed batch, each row with its own parameters.

The order is that of transformers and vLLM: logit bias; repetition, presence and frequency penalty; bans (of ending
before ``min_tokens``, of words); temperature; top-k; top-p; min-p; typical-p. Top-n-sigma, which they do not have,
comes after the bans, as in llama.cpp. A greedy row takes the likeliest token after the bans.

A token is sampled by inverting the cumulative distribution, in vocabulary order, at one uniform number per row. That
number depends only on the row's seed and position, so the noise of a reply is the same whatever else runs in the
batch, after a preemption, and on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EveryTokenBannedError, LogitsError
from engine.parameter_table import PARAMETERS, Group
from engine.sampling import cpu, gpu
from engine.sampling.grammar import GrammarMatcher, ReplyGrammar, TokenMask, unset_bits
from engine.sampling.penalties import TokenCounts
from engine.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by less only loses precision (vLLM draws the line here too)."""

_HOST_FILTERS = {
    name: parameter.neutral
    for name, parameter in PARAMETERS.items()
    if parameter.group is Group.FILTERS and not parameter.is_native
}
"""Filters that the C++ sampler does not apply, and their neutral values."""
_NO_TOKENS = np.empty(0, dtype=np.int64)


class TokenBan(Protocol):
    """Bans tokens from one reply."""

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> NDArray[np.int64]:
        """Returns the token ids that may not follow. ``token_ids``: prompt and reply; may only grow between calls."""
        ...


class SamplingRow:
    """One request's sampling state, created once when the request arrives.

    Args:
        request_id: shown in errors.
        params: every field the sampler reads is set (see ``SamplingParams.with_defaults``).
        seed: seed of the noise, 0 to 2**63 - 1.
        token_ids: prompt, then reply. The row keeps this list and reads it at each step, so it must be the request's
            own growing list.
        num_prompt_tokens: where the reply starts in ``token_ids``.
        stop_token_ids: tokens that end the reply; banned while it is shorter than ``params.min_tokens``.
        bans: further bans; not shared with other rows, because they follow this reply's text.
        grammar: holds the reply to a form.
    """

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        *,
        seed: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        bans: Sequence[TokenBan] = (),
        grammar: ReplyGrammar | None = None,
    ) -> None:
        self.request_id = request_id
        self.seed = seed
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.min_tokens = params.min_tokens
        self.stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._bans = tuple(bans)
        self.grammar = grammar
        self.temperature = _resolved(params.temperature, "temperature")
        self.is_greedy = self.temperature < GREEDY_BELOW
        self.top_k = int(_resolved(params.top_k, "top_k"))
        self.top_p = _resolved(params.top_p, "top_p")
        self.min_p = _resolved(params.min_p, "min_p")
        self.typical_p = _resolved(params.typical_p, "typical_p")
        self.top_n_sigma = _resolved(params.top_n_sigma, "top_n_sigma")
        self.repetition_penalty = _resolved(params.repetition_penalty, "repetition_penalty")
        self.presence_penalty = _resolved(params.presence_penalty, "presence_penalty")
        self.frequency_penalty = _resolved(params.frequency_penalty, "frequency_penalty")
        bias = params.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self.bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        #: bans, or a grammar, say what may come next
        self.is_banned = bool(bans or grammar)
        #: the C++ sampler applies all of its filters
        self.is_native = all(getattr(params, name) == neutral for name, neutral in _HOST_FILTERS.items())
        self.is_ranked = self.top_k > 0 or self.top_p < 1  #: its filters need the likeliest tokens in order
        self.num_candidates = gpu.FIRST_CANDIDATES  #: tokens that the async sampler ranks at first
        penalized = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        self._counts = TokenCounts() if penalized else None
        #: the row's scores may differ from the model's
        self.adjusts_logits = bool(bias or penalized or bans or grammar or (self.min_tokens and stop_token_ids))

    @property
    def needs_python(self) -> bool:
        """Whether the C++ sampler cannot sample its tokens without Python in between."""
        return self.is_banned or not self.is_native

    @property
    def position(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def banned(self) -> NDArray[np.int64]:
        """Returns the token ids that may not come next."""
        banned, mask = self.bans()
        return banned if mask is None else np.concatenate([banned, unset_bits(mask)])

    def bans(self) -> tuple[NDArray[np.int64], TokenMask | None]:
        """Returns what may not come next: token ids, and the grammar's mask; None where no grammar holds yet."""
        parts = [ban.banned(self.token_ids, self.num_prompt_tokens) for ban in self._bans]
        if self.position < self.min_tokens:
            parts.append(self.stop_ids)
        mask = None
        if self.grammar is not None:
            matcher = self.matcher
            if matcher is None:
                parts.append(self.grammar.banned(self.token_ids, self.num_prompt_tokens))
            else:
                mask = matcher.allowed()
        if len(parts) < 2:
            return parts[0] if parts else _NO_TOKENS, mask
        return np.concatenate(parts), mask

    @property
    def matcher(self) -> GrammarMatcher | None:
        """The matcher of the reply's grammar, advanced to the newest token; None where no grammar holds yet."""
        return None if self.grammar is None else self.grammar.matcher_at(self.token_ids, self.num_prompt_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the reply's grammar leaves nothing that could follow."""
        return self.grammar is not None and self.grammar.is_complete(self.token_ids, self.num_prompt_tokens)

    @property
    def counts(self) -> TokenCounts | None:
        """Up-to-date counts of the tokens so far; None if nothing is penalized."""
        if self._counts is not None:
            self._counts.update(self.token_ids, self.num_prompt_tokens)
        return self._counts


class SamplingBackend(Protocol):
    """The sampler's operations for one kind of device. Scores are of the backend's own type."""

    def adjust(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Any:
        """Returns scores ``[n, vocab_size]``: the logits with each row's bias, penalties and bans."""
        ...

    def likeliest(self, scores: Any) -> tuple[list[int], list[float]]:
        """Returns the likeliest token of each row, and its score, which is NaN if any score of the row is."""
        ...

    def draw(
        self, scores: Any, highest: Sequence[float], rows: Sequence[SamplingRow], uniform_numbers: Sequence[float]
    ) -> list[int]:
        """Samples one token for each row.

        Args:
            scores: ``[n, vocab_size]``.
            highest: the maximum of each row.
            rows: ``n`` rows, none greedy.
            uniform_numbers: one number for each row, in [0, 1).
        """
        ...


class Sampler:
    """Samples tokens for a batch. Stateless: all state lives in the rows.

    Args:
        backend: None selects the backend by the logits' device.
    """

    def __init__(self, backend: SamplingBackend | None = None) -> None:
        self._backend = backend

    def backend_for(self, logits: Tensor) -> SamplingBackend:
        return self._backend or (cpu if logits.device.type == "cpu" else gpu)

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """Samples the next token of each row.

        Args:
            logits: ``[len(rows), vocab_size]``, any floating dtype, computed with in fp32; left unchanged.
            rows: one for each row of ``logits``.

        Returns:
            ``len(rows)`` token ids.

        Raises:
            LogitsError: a row holds NaN or +inf, or nothing but -inf; names the requests.
            EveryTokenBannedError: every token of a row is banned; names the requests.
        """
        if logits.shape[0] != len(rows):
            raise ValueError(f"{len(rows)} rows need as many rows of logits (got {logits.shape[0]})")
        if not rows:
            return []
        backend = self.backend_for(logits)
        scores = backend.adjust(logits, rows)
        tokens, highest = backend.likeliest(scores)
        # The maximum of a row is finite if and only if the row has a token to take and neither NaN nor +inf.
        if not all(map(math.isfinite, highest)):
            _raise_unusable([index for index, value in enumerate(highest) if not math.isfinite(value)], logits, rows)
        random = [index for index, row in enumerate(rows) if not row.is_greedy]
        if random:
            chosen = backend.draw(
                scores if len(random) == len(rows) else scores[random],
                [highest[index] for index in random],
                [rows[index] for index in random],
                [uniform(rows[index].seed, rows[index].position) for index in random],
            )
            for index, token in zip(random, chosen, strict=True):
                tokens[index] = token
        return tokens


def uniform(seed: int, position: int) -> float:
    """Returns the noise of one sampled token, in [0, 1), from (seed, position) alone.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) used as a
    counter-based generator: the seed is mixed once, then element ``position`` of the stream that starts there is
    computed directly. The upper 53 bits make the number.
    """
    return (_mix64(_mix64(seed) + (position + 1) * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53


def _mix64(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def _raise_unusable(unusable: Sequence[int], logits: Tensor, rows: Sequence[SamplingRow]) -> NoReturn:
    """Raises the error for rows without a usable token, depending on whether the model or the bans are the cause."""
    defective = [index for index in unusable if not math.isfinite(float(logits[index].max()))]
    broken = tuple(rows[index].request_id for index in defective or unusable)
    if not defective:
        raise EveryTokenBannedError(
            f"No token can come next in {', '.join(broken)}: all are banned, by forbidden words, bad words, "
            "structured output or min_tokens. Forbid less.",
            request_ids=broken,
        )
    raise unusable_scores_error(broken)


def unusable_scores_error(request_ids: tuple[str, ...]) -> LogitsError:
    """Makes the error for requests whose logits hold NaN or +inf, or only -inf."""
    return LogitsError(
        f"The model produced no usable scores for {', '.join(request_ids)} (NaN or infinity). "
        "The weights may be damaged, or the number format too small for this model: try ENGINE_DTYPE=float32.",
        request_ids=request_ids,
    )


def _resolved(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"{name} is not set: the sampler needs params completed by SamplingParams.with_defaults")
    return value
