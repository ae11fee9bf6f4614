"""A running server with a fake engine, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.app.live_server import RunningApp, live_server, reset_engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server
