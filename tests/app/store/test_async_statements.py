"""Single statements of PostgreSQL on the event loop: whole ones, also for callers that leave and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from sqlalchemy import Integer, bindparam, func, literal, select, update
from sqlalchemy.exc import IntegrityError

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import StorageUnavailable
from app.store.db import database as database_module
from app.store.db.database import STATEMENT_CONNECTIONS, Database
from app.store.db.models import Account, table_of
from app.store.db.prepared_statements import Prepared
from testing.databases import PostgresServer
from testing.waiting import eventually

_ACCOUNT = table_of(Account)
_RENAME = update(_ACCOUNT).where(_ACCOUNT.c.id == bindparam("key")).values(name=bindparam("name"))
RENAME = Prepared(_RENAME.returning(_ACCOUNT.c.id))
SLEEP = Prepared(select(func.pg_sleep(bindparam("seconds")), func.pg_backend_pid()))
NEXT_NUMBER = Prepared(select(literal(1) + bindparam("number", type_=Integer)))


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.migrated()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = Database(url)
    yield opened
    await opened.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Another client of the database."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


@contextmanager
def locked_account(url: str) -> Iterator[None]:
    """Locks the account, as a transaction of another process."""
    with psycopg.connect(url.replace("+psycopg", "")) as holder:
        holder.execute("SELECT 1 FROM account WHERE id = %s FOR UPDATE", (ME,))
        yield


def is_waiting(other: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Whether a statement waits for a lock."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return other.execute(query).fetchone() is not None


def name_of_me(other: psycopg.Connection[tuple[object, ...]]) -> object:
    (name,) = other.execute("SELECT name FROM account WHERE id = %s", (ME,)).fetchone() or (None,)
    return name


async def rename(database: Database, name: str) -> object:
    return await database.write_statement(RENAME, {"key": ME, "name": name})


def sleeping(other: psycopg.Connection[tuple[object, ...]]) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    (count,) = other.execute(query).fetchone() or (0,)
    assert isinstance(count, int)
    return count


def end_connections(other: psycopg.Connection[tuple[object, ...]], condition: str = "true") -> None:
    other.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE datname = current_database() AND pid != pg_backend_pid() AND {condition}"
    )


async def test_a_statement_is_committed_at_once(
    database: Database, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert await rename(database, "ben") == [(ME,)]
    assert name_of_me(other) == "ben"
    assert await database.write_statement(RENAME, {"key": new_id(), "name": "ada"}) == []
    assert await database.write_statement(Prepared(_RENAME), {"key": ME, "name": "ada"}) == []
    assert name_of_me(other) == "ada"
    assert await database.read_statement(NEXT_NUMBER, {"number": 2}) == [(3,)]


async def test_a_wrong_value_is_an_error_of_its_statement_alone(database: Database) -> None:
    account = {"id": ME, "name": "twice", "created_at": datetime.now(UTC)}
    twice = Prepared(_ACCOUNT.insert().values({name: bindparam(name) for name in account}).returning(_ACCOUNT.c.id))
    for _ in range(STATEMENT_CONNECTIONS + 1):
        with pytest.raises(IntegrityError) as raised:
            await database.write_statement(twice, account)
        assert isinstance(raised.value.orig, psycopg.errors.UniqueViolation)
        assert "twice" not in str(raised.value)  # what users have written is not logged
    assert await rename(database, "ben") == [(ME,)]


async def test_a_row_that_stays_locked_is_unavailable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_LIMIT_LOCK_WAITS", "SET lock_timeout = 50")
    database = Database(url)
    with locked_account(url), pytest.raises(StorageUnavailable, match="lock timeout"):
        await rename(database, "ben")
    assert await rename(database, "ada") == [(ME,)]
    await database.close()


async def test_a_caller_that_leaves_does_not_end_its_statement(
    url: str, database: Database, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    with locked_account(url):
        renamed = asyncio.create_task(rename(database, "ben"))
        await eventually(lambda: is_waiting(other))
        renamed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renamed
    await eventually(lambda: name_of_me(other) == "ben")


async def test_closing_waits_for_what_is_under_way(url: str, other: psycopg.Connection[tuple[object, ...]]) -> None:
    database = Database(url)
    with locked_account(url):
        renamed = asyncio.create_task(rename(database, "ben"))
        await eventually(lambda: is_waiting(other))
        closed = asyncio.create_task(database.close())
        await asyncio.sleep(0)
    await closed
    assert await renamed == [(ME,)]
    with pytest.raises(StorageUnavailable, match="shutting down"):
        await rename(database, "ada")


async def test_more_statements_than_connections_wait(
    database: Database, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    sleeps = [
        asyncio.create_task(database.read_statement(SLEEP, {"seconds": 0.3})) for _ in range(STATEMENT_CONNECTIONS + 3)
    ]
    await eventually(lambda: sleeping(other) == STATEMENT_CONNECTIONS)
    pids = {rows[0][1] for rows in await asyncio.gather(*sleeps)}
    assert len(pids) == STATEMENT_CONNECTIONS


async def test_connections_that_the_server_has_ended_are_not_used(
    database: Database, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    sleeps = (database.read_statement(SLEEP, {"seconds": 0.1}) for _ in range(STATEMENT_CONNECTIONS))
    await asyncio.gather(*sleeps)
    end_connections(other)
    for number in range(STATEMENT_CONNECTIONS):
        assert await rename(database, f"ben {number}") == [(ME,)]


async def test_a_read_whose_connection_is_lost_is_repeated_and_a_write_is_not(
    database: Database, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    read = asyncio.create_task(database.read_statement(SLEEP, {"seconds": 0.3}))
    await eventually(lambda: sleeping(other) == 1)
    end_connections(other, "wait_event = 'PgSleep'")
    assert len(await read) == 1
    written = asyncio.create_task(database.write_statement(SLEEP, {"seconds": 60}))
    await eventually(lambda: sleeping(other) == 1)
    end_connections(other, "wait_event = 'PgSleep'")
    with pytest.raises(StorageUnavailable):
        await written
    assert await rename(database, "ben") == [(ME,)]


async def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with pytest.raises(StorageUnavailable):
        await database.read_statement(NEXT_NUMBER, {"number": 1})
    await database.close()


def test_each_event_loop_has_connections_of_its_own(url: str) -> None:
    database = Database(url)
    for number in range(2):
        assert asyncio.run(database.read_statement(NEXT_NUMBER, {"number": number})) == [(number + 1,)]
    asyncio.run(database.close())
