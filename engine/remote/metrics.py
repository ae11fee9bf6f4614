"""What a remote engine measures about the servers it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.outputs import EngineStats
from engine.remote.upstreams import Upstream
from engine.runtime.metrics import EngineMetrics


class RemoteMetrics(EngineMetrics):
    """Those of every engine, as far as they can be seen from here, and one line for each server."""

    def __init__(self, stats: Callable[[], EngineStats], upstreams: Callable[[], Sequence[Upstream]]) -> None:
        super().__init__(stats)
        self.retries = 0
        self.registry.register(_Upstreams(upstreams, self))


class _Upstreams(Collector):
    def __init__(self, upstreams: Callable[[], Sequence[Upstream]], metrics: RemoteMetrics) -> None:
        self._upstreams = upstreams
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        up = GaugeMetricFamily("deskmate_remote_up", "1 for a model server that is well, 0 else.", labels=["server"])
        running = GaugeMetricFamily(
            "deskmate_remote_requests_running", "Requests that a model server is answering for us.", labels=["server"]
        )
        for upstream in self._upstreams():
            up.add_metric([upstream.label], float(upstream.is_healthy))
            running.add_metric([upstream.label], upstream.in_flight)
        retries = CounterMetricFamily(
            "deskmate_remote_retries", "Requests sent to a model server again.", value=self._metrics.retries
        )
        return [up, running, retries]
