"""Real servers on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.settings import AppSettings
from app.store.database import postgres_engine, sqlite_engine
from tests.faults.processes import ServerHost, ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="package")
def server_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHost]:
    host = ServerHost(tmp_path_factory.mktemp("servers"))
    yield host
    host.close()


@pytest.fixture
def start(server_host: ServerHost, database_url: str | None, tmp_path: Path) -> Iterator[Start]:
    """Starts servers on the test's database; what the test leaves running is killed."""
    started: list[ServerProcess] = []

    def start_(**options: object) -> ServerProcess:
        started.append(server_host.start(tmp_path / "data", database_url, **options))
        return started[-1]

    yield start_
    for server in started:
        server.end()


@pytest.fixture
def database(database_url: str | None, tmp_path: Path) -> Iterator[Engine]:
    """A way into the test's database beside the server."""
    settings = AppSettings(_env_file=None, data_dir=tmp_path / "data", database_url=database_url)
    url = settings.resolved_database_url
    engine = postgres_engine(url, connections=1) if database_url else sqlite_engine(url, connections=1, read_only=True)
    yield engine
    engine.dispose()
