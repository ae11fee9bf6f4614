"""Prometheus metrics of a remote engine and its servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.outputs import EngineStats
from engine.remote.upstreams import Upstream
from engine.runtime.metrics import EngineMetrics


class RemoteMetrics(EngineMetrics):
    """The metrics of every engine, as far as a remote engine can measure them, and those of each server."""

    def __init__(self, stats: Callable[[], EngineStats], upstreams: Callable[[], Sequence[Upstream]]) -> None:
        super().__init__(stats)
        self.retries = 0
        self.registry.register(_Upstreams(upstreams, self))


class _Upstreams(Collector):
    def __init__(self, upstreams: Callable[[], Sequence[Upstream]], metrics: RemoteMetrics) -> None:
        self._upstreams = upstreams
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        up = GaugeMetricFamily("deskmate_remote_up", "1 for a healthy model server, else 0.", labels=["server"])
        running = GaugeMetricFamily(
            "deskmate_remote_requests_running", "Requests in flight at a model server.", labels=["server"]
        )
        for upstream in self._upstreams():
            up.add_metric([upstream.label], float(upstream.is_healthy))
            running.add_metric([upstream.label], upstream.in_flight)
        retries = CounterMetricFamily(
            "deskmate_remote_retries", "Retries of requests to model servers.", value=self._metrics.retries
        )
        return [up, running, retries]
