"""What replies in flight write is gathered: few transactions, and nobody pays for another one's fate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus
from app.errors import StorageUnavailable
from app.services.container import Services
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import LeaseStatus, TurnOutcome
from app.store.chat.turn_records import TurnRecords
from app.store.db.database import Database
from testing.turns import new_turn

REPLIES = 50
ENDED = TurnOutcome(text="one two", status=MessageStatus.COMPLETE, token_ids=(1, 2))


class Transactions:
    """Counts those of a database; ``fail`` is raised instead of the next one."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fail: Exception | None = None
        for name in ("write_rows", "write_statement"):
            monkeypatch.setattr(database, name, self._counted(getattr(database, name)))

    def _counted(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*given: Any) -> Any:
            self.count += 1
            if self.fail is not None:
                failure, self.fail = self.fail, None
                raise failure
            return await write(*given)

        return counted


@pytest.fixture
async def database(services: Services) -> AsyncIterator[Database]:
    """Another way into the services' database, on which nothing runs by itself."""
    opened = Database(services.settings.resolved_database_url)
    yield opened
    await opened.close()


@pytest.fixture
def records(database: Database) -> TurnRecords:
    return TurnRecords(database, new_id(), lease_seconds=60)


async def begun(records: TurnRecords) -> NewTurn:
    turn = new_turn()
    await records.begin(ME, turn)
    return turn


async def texts(records: TurnRecords, turns: list[NewTurn]) -> list[tuple[str, str]]:
    found = [await records.get(ME, turn.turn_id) for turn in turns]
    return [(record.text, record.status) for record in found]


async def test_many_at_once_are_few_transactions(
    services: Services, database: Database, records: TurnRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [await begun(records) for _ in range(REPLIES)]
    transactions = Transactions(database, monkeypatch)
    written = await asyncio.gather(
        *(records.checkpoint(ME, turn.turn_id, f"{number} words") for number, turn in enumerate(turns))
    )
    assert written == [LeaseStatus.RUNNING] * REPLIES
    assert await texts(records, turns) == [(f"{number} words", "streaming") for number in range(REPLIES)]
    # Some end while others go on, and one has nothing new.
    assert (
        await asyncio.gather(
            *(records.finish(ME, turn.turn_id, replace(ENDED, text=turn.turn_id)) for turn in turns[1:30]),
            records.checkpoint(ME, turns[0].turn_id, None),
            *(records.checkpoint(ME, turn.turn_id, "more") for turn in turns[30:]),
        )
        == [True] * 29 + [LeaseStatus.RUNNING] * 21
    )
    assert transactions.count <= 4
    expected = [("0 words", "streaming"), *((turn.turn_id, "complete") for turn in turns[1:30])]
    assert await texts(records, turns) == expected + [("more", "streaming")] * 20
    listed = (await services.conversations.list(ME, limit=REPLIES)).items
    assert {item.id for item in listed if item.unread} == {turn.conversation_id for turn in turns[1:30]}


async def test_what_is_not_to_be_written_keeps_nothing_else_back(
    records: TurnRecords, services: Services, stranger: str
) -> None:
    mine, deleted, another, stopped = [await begun(records) for _ in range(4)]
    await records.delete_conversation(ME, deleted.conversation_id)
    await records.request_stop(ME, stopped.turn_id)
    others = TurnRecords(services.database, new_id(), lease_seconds=60)
    assert await others.finish(ME, mine.turn_id, ENDED) is False
    leaving = asyncio.create_task(records.checkpoint(ME, another.turn_id, "whoever leaves writes nothing"))
    written = asyncio.gather(
        records.checkpoint(ME, deleted.turn_id, "gone"),
        records.checkpoint(stranger, another.turn_id, "not theirs"),
        records.checkpoint(ME, mine.turn_id, "mine"),
        records.checkpoint(ME, stopped.turn_id, "to be stopped"),
    )
    await asyncio.sleep(0)
    leaving.cancel()
    assert list(await written) == [LeaseStatus.LOST, LeaseStatus.LOST, LeaseStatus.RUNNING, LeaseStatus.STOP_REQUESTED]
    assert leaving.cancelled()
    assert await texts(records, [mine, another, stopped]) == [
        ("mine", "streaming"),
        ("", "streaming"),
        ("to be stopped", "streaming"),
    ]


async def test_a_transaction_that_fails_is_told_to_all_and_the_next_one_works(
    database: Database, records: TurnRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [await begun(records) for _ in range(3)]
    transactions = Transactions(database, monkeypatch)
    transactions.fail = StorageUnavailable("the disk is full")
    told = await asyncio.gather(
        *(records.checkpoint(ME, turn.turn_id, "lost") for turn in turns), return_exceptions=True
    )
    assert [str(one) for one in told] == ["the disk is full"] * 3
    assert all(await asyncio.gather(*(records.finish(ME, turn.turn_id, ENDED) for turn in turns)))
    assert await texts(records, turns) == [("one two", "complete")] * 3
