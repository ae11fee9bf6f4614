"""Both databases; and how processes share the tests (``make test`` starts three): all of the browser's on one, those
that kill servers together, others file by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.databases import PostgresServer, postgres_server

# A busy machine may take its time.
hypothesis.settings.register_profile("deskmate", deadline=None)
hypothesis.settings.load_profile("deskmate")

TESTS = Path(__file__).parent
TOGETHER = {"tests/e2e": "browser", "tests/faults": "faults"}


class ByRoom(LoadScopeScheduling):
    """What shares a browser or servers stays in one process, everything else goes file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return TOGETHER.get(file.rpartition("/")[0], file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByRoom:
    config.option.loadscopereorder = False  # by size; here the order is that of the items
    return ByRoom(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser's tests take one process all the time, so they come first."""
    items.sort(key=lambda item: TESTS / "e2e" not in item.path.parents)


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
