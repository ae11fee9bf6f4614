"""Servers with a fake engine: one for all tests of a module, and a desk with people of each role for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from app.domain.roles import UserRole
from testing.knowledge import ScriptedSearch, passage
from tests.app.api.secret_sources import SECRET
from tests.app.desk import Desk, desk
from tests.app.live_server import RunningApp, live_server, reset_engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path / "data", gradio=False) as opened:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await opened.add(name, role)
        yield opened


@pytest.fixture
def search(here: Desk) -> ScriptedSearch:
    """A collection that only Ben may use."""
    here.live.engine._info = replace(here.live.engine.info, num_parameters=3_000_000_000)
    here.services.sources.retriever = found = ScriptedSearch(passage(SECRET), members={"bens": {here.ids["ben"]}})
    return found
