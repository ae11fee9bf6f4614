"""kill -9 while replies are streaming, again and again on one history: nothing that was acknowledged is missing."""

from __future__ import annotations

import asyncio
import random

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from app.store.db.models import Turn
from tests.faults.conftest import Start
from tests.faults.ledger import Ledger
from tests.faults.users import SimulatedUser, client, watch

PEOPLE = 4
MAX_MORE_KILLS = 20
"""Until one has cut a reply short, which is then continued: the last of a few may have cut none."""


async def swept(database: Engine) -> None:
    """Wait until nobody believes any more that a dead process is writing. On SQLite that is known at the start."""
    for _ in range(2000):
        with Session(database) as session:
            if not session.scalar(select(func.count()).where(Turn.status == "running")):
                return
        assert database.dialect.name != "sqlite", "the replies of a dead process are still being written, it says"
        await asyncio.sleep(0.01)
    raise AssertionError("the replies of a dead process are never ended")


async def kill_again_and_again(
    start: Start, launch: Start, database: Engine, *, seed: int, kills: int, begin_fails: float = 0.3
) -> None:
    """Four people chat, and the server dies under them again and again.

    Args:
        begin_fails: how often the next server dies too, while it starts.
    """
    dice = random.Random(seed)
    ledger = Ledger()
    people = [SimulatedUser(ledger, random.Random(dice.random())) for _ in range(PEOPLE)]
    server = start()
    for kill in range(kills + MAX_MORE_KILLS):
        if kill >= kills and any(map(ledger.can_continue, ledger.replies.values())):
            break
        print(f"seed {seed}, kill {kill}")  # shown where the test fails
        async with client(server.url) as http:
            tasks = [asyncio.create_task(person.live(http)) for person in people]
            watching = asyncio.create_task(watch(http, ledger))
            # In the middle of replies, between them, and sometimes when all of them are just asked for.
            heard = asyncio.create_task(ledger.wait_until_streamed(dice.choice([0, *[dice.randint(1, 2500)] * 4])))
            await asyncio.wait([heard, watching, *tasks], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(dice.uniform(0, 0.02))
            server.kill()
            heard.cancel()
            await asyncio.gather(*tasks)
            await watching
        assert ledger.in_flight() or ledger.unanswered, "nothing was under way"
        if dice.random() < begin_fails:
            next_one = launch()
            await asyncio.sleep(dice.uniform(0, 0.15))
            next_one.kill()
        server = start()
        await swept(database)
        with Session(database) as session:
            ledger.check(session)
    assert ledger.kept, "replies are saved while they are written"
    async with client(server.url) as http:
        continued = await asyncio.gather(*[person.finish(http) for person in people])
    assert sum(continued)
    with Session(database) as session:
        ledger.check(session)


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True)
async def test_three_kills(start: Start, launch: Start, database: Engine) -> None:
    await kill_again_and_again(start, launch, database, seed=1, kills=3)


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_fifty_kills(start: Start, launch: Start, database: Engine) -> None:
    await kill_again_and_again(start, launch, database, seed=2, kills=50)
