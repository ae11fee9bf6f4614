"""Services over a scripted engine, on both databases."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
import typer.main

from app.domain.ids import new_id
from app.services import container as services_module
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.db.models import Account
from app.templates.files import read_templates
from testing.databases import create_migrated_file
from testing.fake_engine import FakeEngine

CHECKPOINT_SECONDS = 0.05


@pytest.fixture(scope="session", autouse=True)
def cache_templates() -> Iterator[None]:
    """They are a third of what a start takes, and the same each time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(services_module, "read_templates", cache(read_templates))
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_commands() -> Iterator[None]:
    """Typer makes all commands anew for each that is given, which takes as long as most of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def drop_handlers_of_closed_streams() -> None:
    """A program that an earlier test ran left its log handler, whose stream was that test's captured one."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler.stream.closed:
            root.removeHandler(handler)


@pytest.fixture
def settings(database_url: str | None, tmp_path: Path) -> AppSettings:
    """For a new database, which needs no migration."""
    if database_url is None:
        create_migrated_file(tmp_path / "data" / "deskmate.db")
    return AppSettings(
        _env_file=None,
        data_dir=tmp_path / "data",
        database_url=database_url,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        shutdown_seconds=5,
        auto_titles=False,
    )


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


Open = Callable[[], Awaitable[Services]]


@pytest.fixture
async def open_services(settings: AppSettings, engine: FakeEngine) -> AsyncIterator[Open]:
    """Opens services as often as a test asks; closes what the test has not."""
    opened: list[Services] = []

    async def open_() -> Services:
        services = await Services.open(settings, engine)
        opened.append(services)
        return services

    yield open_
    for services in opened:
        await services.close()


@pytest.fixture
async def services(open_services: Open) -> Services:
    return await open_services()


@pytest.fixture
async def stranger(services: Services) -> str:
    """The id of another user."""
    return await add_user(services.database)


async def add_user(database: Database) -> str:
    user_id = new_id()
    await database.write(lambda session: session.add(Account(id=user_id, name=user_id, created_at=datetime.now(UTC))))
    return user_id
