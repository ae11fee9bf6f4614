"""Real servers on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.settings import AppSettings
from app.store.db.database import postgres_engine, sqlite_engine
from tests.faults.processes import ServerHost, ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="package")
def server_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHost]:
    host = ServerHost(tmp_path_factory.mktemp("servers"))
    yield host
    host.close()


@pytest.fixture
def launch(server_host: ServerHost, database_url: str | None, tmp_path: Path) -> Iterator[Start]:
    """Makes servers on the test's database begin to start; what the test leaves running is killed."""
    launched: list[ServerProcess] = []

    def launch_(**options: Any) -> ServerProcess:
        launched.append(server_host.launch(tmp_path / "data", database_url, **options))
        return launched[-1]

    yield launch_
    for server in launched:
        server.end()


@pytest.fixture
def start(launch: Start) -> Start:
    """The same, and they are ready."""

    def start_(**options: Any) -> ServerProcess:
        server = launch(**options)
        server.wait_until_ready()
        return server

    return start_


@pytest.fixture
def database(database_url: str | None, tmp_path: Path) -> Iterator[Engine]:
    """A way into the test's database beside the server."""
    settings = AppSettings(_env_file=None, data_dir=tmp_path / "data", database_url=database_url)
    url = settings.resolved_database_url
    engine = postgres_engine(url, connections=1) if database_url else sqlite_engine(url, connections=1, read_only=True)
    yield engine
    engine.dispose()
