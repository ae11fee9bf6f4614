"""What one user asks for at the API does not come before everybody else's replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.domain.roles import UserRole
from tests.app.desk import Desk, desk


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, gradio=False, concurrent_replies=3) as running:
        yield running


async def test_a_priority_below_0_is_for_admins(here: Desk) -> None:
    body = {"model": "fake", "prompt": "hi", "priority": -1000}
    agent, admin = await here.add("ann", UserRole.AGENT), await here.add("ada", UserRole.ADMIN)
    answer = await agent.post("/v1/completions", json=body)
    assert answer.status_code == 403
    assert "Only admins" in answer.json()["error"]["message"]
    assert (await agent.post("/v1/completions", json={**body, "priority": 1000})).status_code == 200
    assert (await admin.post("/v1/completions", json=body)).status_code == 200


async def test_n_replies_count_as_n(here: Desk) -> None:
    agent = await here.add("ann", UserRole.AGENT)
    answer = await agent.post("/v1/completions", json={"model": "fake", "prompt": "hi", "n": 4})
    assert answer.status_code in (400, 422)
    assert "asks for 4 replies at a time; your limit is 3" in answer.json()["error"]["message"]
    assert (await agent.post("/v1/completions", json={"model": "fake", "prompt": "hi", "n": 3})).status_code == 200
    prompts = {"model": "fake", "prompt": ["hi", "ho"], "n": 2}
    assert (await agent.post("/v1/completions", json=prompts)).status_code in (400, 422)
