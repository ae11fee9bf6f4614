"""Several processes on one PostgreSQL, each with an engine of its own; here they share a test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import select, text

from app.domain.ids import LOCAL_USER_ID as ME
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.models import Turn
from app.store.db.notifications import Channel
from app.turns.events import TurnEnd, TurnEvent, TurnText
from testing.fake_engine import FakeEngine

#: A clock on which nothing comes that a test waits for: it times out before.
SLOW = {"checkpoint_seconds": 60.0, "lease_seconds": 600.0}
QUICK = {"checkpoint_seconds": 0.05, "lease_seconds": 600.0}


@dataclass
class Process:
    services: Services
    engine: FakeEngine = field(repr=False)

    async def read(self, turn_id: str) -> list[TurnEvent]:
        return [event async for event in self.services.turns.events(ME, turn_id)]

    async def content(self, message_id: str) -> str:
        return (await self.services.conversations.get_message(ME, message_id)).content

    async def turn(self, turn_id: str) -> Turn:
        return await self.services.database.read(lambda session: session.get_one(Turn, turn_id))

    async def listening(self) -> int:
        """Wait until it receives notifications; returns the process id of the server's end."""
        pids = select(text("pid")).select_from(text("pg_stat_activity"))
        last = list(Channel)[-1].value  # of those that it listens to, one after another
        mine = pids.where(text(f"datname = current_database() AND query LIKE 'LISTEN \"{last}\"'"))
        mine = mine.where(text("application_name = :name")).params(name=application_name(self.services.settings))
        return await until(lambda: self.services.database.read(lambda session: session.scalar(mine)))

    async def end_listening(self) -> None:
        pid = await self.listening()
        await self.services.database.read(lambda session: session.scalar(text(f"SELECT pg_terminate_backend({pid})")))


Found = TypeVar("Found")
Start = Callable[..., Awaitable[Process]]


def application_name(settings: AppSettings) -> str:
    return settings.data_dir.name


@asynccontextmanager
async def processes(url: str, folder: Path) -> AsyncIterator[Start]:
    """Starts processes on the database at ``url``, with the settings it is given; ends them all."""
    started: list[Process] = []

    async def start(**settings: Any) -> Process:
        name = f"deskmate-{len(started)}"
        opening = f"{url}{'&' if '?' in url else '?'}application_name={name}"
        values: dict[str, Any] = (
            QUICK | {"data_dir": folder / name, "shutdown_seconds": 0, "auto_titles": False} | settings
        )
        engine = FakeEngine()
        services = await Services.open(AppSettings(_env_file=None, database_url=opening, **values), engine)
        started.append(Process(services, engine))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            await process.services.close()


async def until(look: Callable[[], Awaitable[Found | None]]) -> Found:
    """Look until there is something."""
    while not (found := await look()):  # noqa: ASYNC110 (the database tells nobody)
        await asyncio.sleep(0.01)
    return found


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnText))


def end_of(events: list[TurnEvent]) -> TurnEnd:
    assert isinstance(events[-1], TurnEnd)
    return events[-1]
