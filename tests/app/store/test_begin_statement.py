"""PostgreSQL takes a message sent in one statement, which stores what the transaction would, and refuses as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, select

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus, ReplyStats
from app.errors import Conflict, NotFound
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import TurnOutcome
from app.store.chat.turn_contexts import BUSY, MOVED_ON
from app.store.chat.turn_records import NotBegun, TurnRecords
from app.store.db import driver
from app.store.db.async_statements import AsyncStatements
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, Turn, table_of
from testing.databases import PostgresServer
from testing.turns import new_turn
from testing.waiting import eventually
from tests.app.conftest import add_user

SETTINGS = ChatSettings(system_prompt='"Größe" \\ \n', temperature=0.25)
ENDED = TurnOutcome(text="answer", status=MessageStatus.COMPLETE, token_ids=(1, -2))
OF_THIS_RUN = {"id", "conversation_id", "message_id", "tip_message_id", "parent_id", "lease_until"}


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Database]:
    opened = Database(postgres.migrated())
    yield opened
    await opened.close()


@pytest.fixture
async def stranger(database: Database) -> str:
    return await add_user(database)


@pytest.fixture
def records(database: Database) -> TurnRecords:
    return TurnRecords(database, new_id(), lease_seconds=60)


def following(turn: NewTurn) -> NewTurn:
    """The next message of its conversation."""
    text = 'quoted "text" \\u0000 \n€'
    new = replace(new_turn(), title=None, parent_id=turn.message_id, text=text, settings=SETTINGS)
    return replace(new, conversation_id=turn.conversation_id, save_settings=True, seed=7)


async def stored(database: Database, turn: NewTurn) -> dict[str, list[dict[str, Any]]]:
    """What is stored of its conversation, but for ids and times."""

    def work(connection: Connection) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for model, key in ((Conversation, "id"), (Message, "conversation_id"), (Turn, "conversation_id")):
            table = table_of(model)
            rows = connection.execute(select(table).where(table.c[key] == turn.conversation_id).order_by(table.c.id))
            found[table.name] = [
                {name: value for name, value in row.items() if name not in OF_THIS_RUN and not name.endswith("_at")}
                for row in rows.mappings()
            ]
        return found

    return await database.read_rows(work)


async def test_it_stores_what_the_transaction_stores(
    database: Database, records: TurnRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for at_once in (True, False):
        monkeypatch.setattr(database, "is_postgres", at_once)
        first = new_turn()
        await records.begin(ME, first)
        monkeypatch.setattr(database, "is_postgres", True)
        assert await records.finish(ME, first.turn_id, ENDED)
        monkeypatch.setattr(database, "is_postgres", at_once)
        await records.begin(ME, following(first))
        kept.append(await stored(database, first))
    by_statement, by_transaction = kept
    assert by_statement == by_transaction
    assert [row["position"] for row in by_statement["message"]] == [0, 1, 2, 3]


async def test_it_is_one_statement(database: Database, records: TurnRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    fetch, run, write = driver.fetch, driver.run, AsyncStatements.write
    monkeypatch.setattr(driver, "fetch", lambda *given: (sent.append(given[1]), fetch(*given))[1])
    monkeypatch.setattr(driver, "run", lambda *given: (sent.append(given[1]), run(*given))[1])
    monkeypatch.setattr(AsyncStatements, "write", lambda *given: (sent.append(given[1]), write(*given))[1])
    first = new_turn()
    await records.begin(ME, first)
    await records.checkpoint(ME, first.turn_id, "ans")
    await records.finish(ME, first.turn_id, ENDED)
    await records.begin(ME, following(first))
    assert len(sent) == 4, sent


async def test_it_refuses_as_the_transaction_does(records: TurnRecords) -> None:
    first = new_turn()
    await records.begin(ME, first)
    with pytest.raises(Conflict, match=BUSY):
        await records.begin(ME, following(first))
    await records.finish(ME, first.turn_id, ENDED)
    with pytest.raises(NotFound):
        await records.begin(new_id(), following(first))
    second = following(first)
    await records.begin(ME, second)
    await records.finish(ME, second.turn_id, ENDED)
    with pytest.raises(Conflict, match=MOVED_ON):
        await records.begin(ME, following(first))
    await records.delete_conversation(ME, first.conversation_id)
    with pytest.raises(NotFound):
        await records.begin(ME, following(second))


async def test_of_many_at_once_one_begins(database: Database, records: TurnRecords) -> None:
    others = [TurnRecords(database, new_id(), lease_seconds=60) for _ in range(7)]
    last = new_turn()
    await records.begin(ME, last)
    for _ in range(5):
        await records.finish(ME, last.turn_id, ENDED)
        nexts = [following(last) for _ in (records, *others)]
        outcomes = await asyncio.gather(
            *(one.begin(ME, new) for one, new in zip((records, *others), nexts, strict=True)), return_exceptions=True
        )
        begun = [new for new, outcome in zip(nexts, outcomes, strict=True) if isinstance(outcome, datetime)]
        assert len(begun) == 1
        assert {str(outcome) for outcome in outcomes if not isinstance(outcome, datetime)} <= {BUSY}
        (last,) = begun
        records = (records, *others)[nexts.index(last)]
        others = [TurnRecords(database, new_id(), lease_seconds=60) for _ in range(7)]


async def test_a_later_column_that_goes_on_meanwhile_is_in_the_way(database: Database, records: TurnRecords) -> None:
    """No unique index tells: its column is another one than a new reply's."""
    first = replace(new_turn(), comparison_id=new_id())
    second = replace(first, turn_id=new_id(), message_id=new_id(), text=None, title=None, comparison_column=1)
    await records.begin_comparison(ME, [first, second])
    await records.finish(ME, first.turn_id, ENDED)
    await records.finish(ME, second.turn_id, ENDED)
    chosen = replace(new_turn(), title=None, parent_id=second.message_id, conversation_id=first.conversation_id)
    url = database._writer.url.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        where = (first.conversation_id,)
        other.execute("UPDATE conversation SET tip_message_id = %s WHERE id = %s", (second.message_id, *where))
        other.commit()
        other.execute("SELECT 1 FROM conversation WHERE id = %s FOR NO KEY UPDATE", where)
        begun = asyncio.create_task(records.begin(ME, chosen))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as observer:
            await eventually(lambda: observer.execute(waiting).fetchone() != (0,))
        other.execute("UPDATE turn SET status = 'running' WHERE id = %s", (second.turn_id,))
        other.execute("UPDATE conversation SET updated_at = now() WHERE id = %s", where)
        other.commit()
        with pytest.raises(Conflict, match=BUSY):
            await begun


async def test_a_conversation_that_has_changed_since_it_was_read_gets_no_message(
    database: Database, records: TurnRecords
) -> None:
    first = new_turn()
    read_as_of = await records.begin(ME, first)
    await records.finish(ME, first.turn_id, ENDED)
    before = await stored(database, first)
    for moment in (read_as_of + timedelta(microseconds=1), read_as_of - timedelta(microseconds=1)):
        with pytest.raises(NotBegun):
            await records.begin_unread(ME, following(first), read_as_of=moment, max_running=None)
    with pytest.raises(NotBegun):
        await records.begin_unread(new_id(), following(first), read_as_of=read_as_of, max_running=None)
    assert await stored(database, first) == before
    second = following(first)
    read_as_of = await records.begin_unread(ME, second, read_as_of=read_as_of, max_running=None)
    await records.finish(ME, second.turn_id, ENDED)
    await records.begin_unread(ME, following(second), read_as_of=read_as_of, max_running=0)


async def test_a_reply_that_goes_on_elsewhere_meanwhile_is_a_change(database: Database, records: TurnRecords) -> None:
    """Also if it has ended again before the statement sees it: its text is another one."""
    first = new_turn()
    read_as_of = await records.begin(ME, first)
    await records.finish(ME, first.turn_id, ENDED)
    url = database._writer.url.render_as_string(hide_password=False).replace("+psycopg", "")
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as observer:
        resumed = "UPDATE conversation SET updated_at = now() WHERE id = %s"
        other.execute(resumed, (first.conversation_id,))
        begun = asyncio.create_task(records.begin_unread(ME, following(first), read_as_of=read_as_of, max_running=9))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await eventually(lambda: observer.execute(waiting).fetchone() != (0,))
        other.commit()
        with pytest.raises(NotBegun):
            await begun


async def test_the_users_running_replies_are_limited(database: Database, records: TurnRecords, stranger: str) -> None:
    begin = partial(records.begin_unread, read_as_of=None)
    for user in (ME, stranger, stranger):
        await begin(user, new_turn(), max_running=2)
    refused = new_turn()
    with pytest.raises(NotBegun):
        await begin(ME, refused, max_running=0)
    assert await stored(database, refused) == {"conversation": [], "message": [], "turn": []}
    last = new_turn()
    await begin(ME, last, max_running=1)
    await records.finish(ME, last.turn_id, ENDED)
    with pytest.raises(NotBegun):
        await begin(ME, following(last), max_running=0)
    await begin(ME, following(last), max_running=1)


async def test_a_turn_begins_once(records: TurnRecords) -> None:
    first = new_turn()
    await records.begin_unread(ME, first, read_as_of=None, max_running=9)
    await records.finish(ME, first.turn_id, ENDED)
    again = replace(new_turn(), turn_id=first.turn_id)
    with pytest.raises(Conflict):
        await records.begin_unread(ME, again, read_as_of=None, max_running=9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, 5e-324])
async def test_each_number_is_stored_as_it_is(database: Database, records: TurnRecords, value: float) -> None:
    turn = new_turn()
    await records.begin(ME, turn)
    stats = ReplyStats(
        prompt_tokens=2**60,
        cached_prompt_tokens=None,
        completion_tokens=1,
        ttft_ms=0.1,
        itl_ms=value,
        tokens_per_second=1.0,
        finish_reason="stop",
    )
    await records.finish(ME, turn.turn_id, replace(ENDED, stats=stats))
    stored = await database.read(lambda session: session.scalar(select(Turn.itl_ms).where(Turn.id == turn.turn_id)))
    assert stored == value or (stored is not None and stored != stored and value != value)
