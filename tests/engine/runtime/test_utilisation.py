"""The numbers of the last minute, by hand and from an engine that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import Histogram, generate_latest

from engine import Engine, EngineSettings, SamplingParams
from engine.outputs import EngineStats
from engine.runtime.metrics import GAP_BUCKETS, EngineMetrics
from engine.runtime.utilisation import StepLoad, UtilisationMeter
from testing.models import make_model


class Clock:
    def __init__(self) -> None:
        self.now = 100.5

    def __call__(self) -> float:
        return self.now


def load(seconds: float, sequences: float, tokens: float = 0.0) -> StepLoad:
    return StepLoad(seconds, sequences, tokens, prompt_tokens=6, generated_tokens=2)


def test_an_engine_that_did_nothing_has_no_means() -> None:
    now = UtilisationMeter(Clock()).read()
    assert (now.device_busy, now.batch_occupancy, now.generation_tokens_per_second) == (0, 0, 0)
    assert now.time_to_first_token_seconds is None
    assert now.inter_token_latency_seconds is None


def test_shares_and_rates_of_a_young_engine_count_from_its_start() -> None:
    clock = Clock()
    meter = UtilisationMeter(clock)
    for second in range(4):
        clock.now = 101.5 + second
        meter.observe_step(load(0.25, sequences=0.5 + 0.1 * second, tokens=0.1))
    meter.observe_first_token(0.2)
    meter.observe_first_token(0.4)
    meter.observe_token_gaps(2, 0.1)
    now = meter.read()
    assert now.device_busy == pytest.approx(0.25)
    assert now.batch_occupancy == pytest.approx(0.65)
    assert now.token_occupancy == pytest.approx(0.1)
    assert now.prompt_tokens_per_second == pytest.approx(6)
    assert now.generation_tokens_per_second == pytest.approx(2)
    assert now.time_to_first_token_seconds == pytest.approx(0.3)
    assert now.inter_token_latency_seconds == pytest.approx(0.05)


def test_what_is_older_than_the_window_is_forgotten_also_when_its_slot_comes_round() -> None:
    clock = Clock()
    meter = UtilisationMeter(clock)
    meter.observe_step(load(0.5, sequences=1.0))
    meter.observe_first_token(9.0)
    clock.now += 61
    meter.observe_step(load(0.6, sequences=0.5))
    now = meter.read()
    assert now.batch_occupancy == pytest.approx(0.5)
    assert now.device_busy == pytest.approx(0.01)
    assert now.time_to_first_token_seconds is None
    clock.now += 3600
    assert meter.read().device_busy == 0


async def test_a_working_engine_says_what_it_used(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", eos=False)
    settings = EngineSettings(model=str(model), dtype="float32", max_num_seqs=2, max_batched_tokens=64)
    async with Engine(settings) as engine:
        assert engine.stats().utilisation.device_busy == 0, "warming up is not work"
        async for delta in engine.complete(list(range(20, 52)), SamplingParams(max_tokens=11, ignore_eos=True)):
            if delta.timings is not None:
                took = delta.timings.total_seconds
        stats = engine.stats()
        used = stats.utilisation
        assert stats.num_steps == 11
        assert used.batch_occupancy == pytest.approx(0.5)
        assert used.token_occupancy == pytest.approx((32 + 10) / 64 / 11)
        assert 0 < used.device_busy <= 1
        assert used.prompt_tokens_per_second / used.generation_tokens_per_second == pytest.approx(32 / 11)
        assert used.time_to_first_token_seconds is not None
        assert used.inter_token_latency_seconds is not None
        assert used.inter_token_latency_seconds * 10 <= took, "each of ten gaps is counted once"
        read = engine.registry.get_sample_value
        assert read("deskmate_batch_occupancy_perc") == pytest.approx(0.5)
        assert (read("deskmate_device_busy_seconds_total") or 0) > 0
        assert read("deskmate_engine_restarts_total") == 0


def test_token_gaps_are_a_histogram_like_prometheus_own() -> None:
    metrics = EngineMetrics(EngineStats.nothing)
    own = Histogram("own", "Kept by the client library.", buckets=GAP_BUCKETS, registry=metrics.registry)
    gaps = [0.0, 0.0004, 0.001, 0.0011, 0.04, 0.05, 2.5, 2.6, 100.0]
    metrics.observe_token_gaps(gaps[:4])
    metrics.observe_token_gaps([])
    metrics.observe_token_gaps(gaps[4:])
    for gap in gaps:
        own.observe(gap)
    lines = generate_latest(metrics.registry).decode().splitlines()
    kept = [line for line in lines if line.startswith(("own_bucket", "own_sum", "own_count"))]
    assert len(kept) == len(GAP_BUCKETS) + 3
    for line in kept:
        assert line.replace("own", "deskmate_inter_token_latency_seconds", 1) in lines
