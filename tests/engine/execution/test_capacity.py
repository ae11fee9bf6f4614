"""The cache's default size follows the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineSettings
from engine.execution import capacity
from engine.execution.capacity import DEFAULT_CPU_CACHE_SHARE, cache_bytes_per_token, plan_capacity
from engine.execution.load import load_model
from engine.model.memory_limit import CONTAINER_CACHE_SHARE
from testing.models import make_model


def test_a_containers_memory_is_for_this_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(model=str(make_model(tmp_path / "llama")), device="cpu", native=False)
    model = load_model(settings, lambda _stage, _fraction: None)
    free = 2**20
    monkeypatch.setattr(capacity, "available_memory", lambda _device: free)
    for limit, share in ((None, DEFAULT_CPU_CACHE_SHARE), (2 * free, CONTAINER_CACHE_SHARE)):
        monkeypatch.setattr(capacity, "host_memory_limit", lambda limit=limit: limit)
        plan = plan_capacity(model, settings)
        taken = plan.num_blocks * plan.block_size * cache_bytes_per_token(model, plan.layout, "auto", plan.block_size)
        assert share * free * 0.9 < taken <= share * free
