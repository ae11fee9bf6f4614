"""Prometheus metrics of the engine. Names mirror vLLM's, under ``deskmate_``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.outputs import EngineState, EngineStats, FinishReason, Timings
from engine.runtime.utilisation import StepLoad, UtilisationMeter

# Seconds. Token gaps start at a millisecond; whole replies end at minutes.
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
REPLY_BUCKETS = (0.1, 0.3, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480)


class EngineMetrics:
    """Histograms, observed as events happen, and counters and gauges, read from ``stats`` at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self.meter = UtilisationMeter()
        self._busy_seconds = 0.0
        self._time_to_first_token = Histogram(
            "deskmate_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._token_gaps = _TokenGaps()
        self.registry.register(self._token_gaps)
        self._queue_time = Histogram(
            "deskmate_request_queue_time_seconds",
            "Seconds from a request's arrival to its first step.",
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._e2e_latency = Histogram(
            "deskmate_e2e_request_latency_seconds",
            "Seconds from a request's arrival to its last token.",
            buckets=REPLY_BUCKETS,
            registry=self.registry,
        )
        self._success = Counter(
            "deskmate_request_success",
            "Finished requests by reason.",
            ["finished_reason"],
            registry=self.registry,
        )
        gauges: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
            "num_requests_running": ("Requests in the running batch.", lambda now: now.num_requests_running),
            "num_requests_waiting": ("Requests in the queue.", lambda now: now.num_requests_waiting),
            "kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1.", lambda now: now.kv_cache_usage),
            "device_busy_perc": (
                "Share of the last minute in which a step was computed, 0 to 1.",
                lambda now: now.utilisation.device_busy,
            ),
            "batch_occupancy_perc": (
                "Requests in a step as a share of max_num_seqs, mean of the last minute, 0 to 1.",
                lambda now: now.utilisation.batch_occupancy,
            ),
            "batch_tokens_perc": (
                "Tokens in a step as a share of max_batched_tokens, mean of the last minute, 0 to 1.",
                lambda now: now.utilisation.token_occupancy,
            ),
        }
        for name, (help_text, read) in gauges.items():
            gauge = Gauge(f"deskmate_{name}", help_text, registry=self.registry)
            gauge.set_function(lambda read=read: read(stats()))  # type: ignore[misc]
        self.registry.register(_Counters(stats, self))

    @property
    def busy_seconds(self) -> float:
        """Total seconds in which steps were computed."""
        return self._busy_seconds

    def observe_step(self, load: StepLoad) -> None:
        self.meter.observe_step(load)
        self._busy_seconds += load.seconds

    def observe_token_gaps(self, seconds: Sequence[float]) -> None:
        if seconds:
            self.meter.observe_token_gaps(len(seconds), sum(seconds))
            self._token_gaps.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        self.meter.observe_first_token(seconds)
        self._time_to_first_token.observe(seconds)

    def observe_finished(self, reason: FinishReason, timings: Timings) -> None:
        self._success.labels(reason.value).inc()
        self._queue_time.observe(timings.queue_seconds)
        self._e2e_latency.observe(timings.total_seconds)


class _TokenGaps(Collector):
    """Histogram of the gaps between tokens. Observing only counts, for it runs for every token; scraping builds it."""

    def __init__(self) -> None:
        self._counts = [0] * (len(GAP_BUCKETS) + 1)
        self._seconds = 0.0

    def observe(self, seconds: Sequence[float]) -> None:
        for gap in seconds:
            self._counts[bisect_left(GAP_BUCKETS, gap)] += 1
        self._seconds += sum(seconds)

    def collect(self) -> list[Metric]:
        bounds = [*map(floatToGoString, GAP_BUCKETS), "+Inf"]
        return [
            HistogramMetricFamily(
                "deskmate_inter_token_latency_seconds",
                "Seconds between consecutive tokens of a reply.",
                buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
                sum_value=self._seconds,
            )
        ]


class _Counters(Collector):
    """Counters and the engine's state, read from ``stats`` and ``metrics`` at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats], metrics: EngineMetrics) -> None:
        self._stats = stats
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        now = self._stats()
        totals: dict[str, tuple[str, float]] = {
            "prompt_tokens": ("Prompt tokens, cached ones included.", now.prompt_tokens),
            "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", now.prompt_tokens),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", now.cached_prompt_tokens),
            "generation_tokens": ("Generated tokens.", now.generation_tokens),
            "num_preemptions": ("Requests preempted to free KV blocks, and recomputed.", now.num_preemptions),
            "engine_steps": ("Forward passes.", now.num_steps),
            "spec_decode_num_draft_tokens": ("Draft tokens verified.", now.draft_tokens),
            "spec_decode_num_accepted_tokens": ("Draft tokens accepted.", now.accepted_draft_tokens),
            "device_busy_seconds": ("Seconds in which steps were computed.", self._metrics.busy_seconds),
            "engine_restarts": ("Restarts after a failed step.", now.num_restarts),
        }
        states = GaugeMetricFamily("deskmate_engine_state", "1 for the current state, else 0.", labels=["state"])
        for state in EngineState:
            states.add_metric([state.value], float(state is now.state))
        return [states] + [
            CounterMetricFamily(f"deskmate_{name}", help_text, value=value)
            for name, (help_text, value) in totals.items()
        ]
