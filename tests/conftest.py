"""Both databases; and how processes share the tests (``make test`` starts two): all of the browser's on one, those that
kill servers together, others file by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import PostgresServer, postgres_server

TESTS = Path(__file__).parent
TOGETHER = {TESTS / "e2e": "browser", TESTS / "faults": "faults"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = TOGETHER.get(item.path.parent, item.path.stem)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """For ``AppSettings``: a fresh database of each kind."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.migrated()
    yield url
    server.drop(url)
