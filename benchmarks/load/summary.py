"""Summarises a load test: latencies, throughput, goodput, errors, and whether the client kept up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.client import RequestOutcome
from benchmarks.quantiles import quantile

PERCENTILES = (50, 95, 99)
LATE_SECONDS = 0.05
"""Seconds after its planned time beyond which a request counts as sent late, that is, delayed by the client."""


@dataclass(frozen=True)
class GoodputSLO:
    """Latency limits, in seconds, for a reply to count in the goodput."""

    first_token: float
    per_token: float


def summarize(outcomes: Sequence[RequestOutcome], limits: GoodputSLO) -> dict[str, Any]:
    """Summarises outcomes in milliseconds, tokens and requests per second.

    Failed requests have no latencies; in the goodput they count as not good.
    """
    answered = [one for one in outcomes if one.error is None]
    sent = [one.sent - one.planned for one in outcomes if one.sent is not None]
    span = max((one.finished or one.planned for one in outcomes), default=0.0) - min(
        (one.planned for one in outcomes), default=0.0
    )
    good = sum(_is_good(one, limits) for one in answered)
    tokens = sum(_tokens(one) for one in answered)
    return {
        "requests": len(outcomes),
        "answered": len(answered),
        "errors": dict(Counter(one.error for one in outcomes if one.error is not None).most_common()),
        "seconds": round(span, 3),
        "requests_per_s": _per_second(len(answered), span),
        "output_tokens_per_s": _per_second(tokens, span),
        "goodput_requests_per_s": _per_second(good, span),
        "good_share": round(good / len(outcomes), 4) if outcomes else 0.0,
        "ttft_ms": spread([one.times[0] - one.planned for one in answered]),
        "itl_ms": spread([gap for one in answered for gap in _gaps(one)]),
        "tpot_ms": spread([per for one in answered if (per := per_token(one)) is not None]),
        "e2e_ms": spread([one.finished - one.planned for one in answered if one.finished is not None]),
        "output_tokens": tokens,
        "tokens_counted_by": "server" if all(one.tokens is not None for one in answered) else "pieces of text",
        "prompt_tokens": sum(one.prompt_tokens or 0 for one in answered),
        "cached_prompt_tokens": sum(one.cached_tokens or 0 for one in answered),
        "client": {
            "late": sum(delay > LATE_SECONDS for delay in sent),
            "never_sent": len(outcomes) - len(sent),
            "delay_ms": spread(sent),
        },
    }


def per_token(outcome: RequestOutcome) -> float | None:
    """Returns seconds per token after the first; None for a reply of one token."""
    tokens = _tokens(outcome)
    return (outcome.times[-1] - outcome.times[0]) / (tokens - 1) if tokens > 1 else None


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Returns mean, percentiles and maximum in milliseconds of values in seconds."""
    if not values:
        return None
    found = {f"p{percentile}": round(1000 * quantile(values, percentile / 100), 3) for percentile in PERCENTILES}
    return {"mean": round(1000 * sum(values) / len(values), 3), **found, "max": round(1000 * max(values), 3)}


def _is_good(outcome: RequestOutcome, limits: GoodputSLO) -> bool:
    per = per_token(outcome)
    return outcome.times[0] - outcome.planned <= limits.first_token and (per is None or per <= limits.per_token)


def _tokens(outcome: RequestOutcome) -> int:
    """Returns the server's token count, or else the number of text pieces, of which there may be fewer."""
    return outcome.tokens if outcome.tokens is not None else len(outcome.times)


def _gaps(outcome: RequestOutcome) -> list[float]:
    return [after - before for before, after in itertools.pairwise(outcome.times)]


def _per_second(count: float, span: float) -> float:
    return round(count / span, 3) if span > 0 else 0.0
