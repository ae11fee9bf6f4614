"""The door to the database: whole transactions, also for callers that leave; errors a person can read."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, event, select, text, update
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID
from app.errors import StorageUnavailable
from app.settings import AppSettings
from app.store.db import connection_checks, driver, group_commit
from app.store.db.database import Database
from app.store.db.models import Account, Base
from app.store.db.prepared_statements import Prepared
from app.store.maintenance.migrate import migrate
from testing.databases import PostgresServer, create_migrated_file
from tests.app.conftest import add_user
from tests.faults.database_faults import stoppable_postgres


@pytest.fixture
async def database(database_url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(database_url or create_migrated_file(tmp_path / "deskmate.db"))
    yield opened
    await opened.close()


async def name_of(database: Database, user_id: str) -> str:
    return await database.read(lambda session: session.get_one(Account, user_id).name)


class Held:
    """A write that stops half way until it is let go."""

    def __init__(self, *, fail: bool = False) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self._fail = fail

    def __call__(self, session: Session) -> None:
        session.get_one(Account, LOCAL_USER_ID).name = "half"
        session.flush()
        self.begun.set()
        self.go.wait()
        session.get_one(Account, LOCAL_USER_ID).name = "whole"
        if self._fail:
            raise ValueError("no")


@pytest.mark.parametrize(("fail", "name"), [(False, "whole"), (True, "local")])
async def test_a_write_whose_caller_leaves_is_committed_or_rolled_back(
    database: Database, fail: bool, name: str
) -> None:
    held = Held(fail=fail)
    write = asyncio.create_task(database.write(held))
    await asyncio.to_thread(held.begun.wait)
    assert await name_of(database, LOCAL_USER_ID) == "local"  # nobody sees it half done
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    held.go.set()
    await add_user(database)  # SQLite's one writer is free again
    await database.close()  # waits for what has begun
    reopened = Database(database_url_of(database))
    assert await name_of(reopened, LOCAL_USER_ID) == name
    await reopened.close()


def database_url_of(database: Database) -> str:
    return database._writer.url.render_as_string(hide_password=False)


async def test_whatever_the_database_fails_with_can_be_tried_again(database: Database) -> None:
    """A damaged file is no OperationalError; a reply must survive it all the same."""

    def work(_session: Session) -> None:
        raise DatabaseError("UPDATE", {}, sqlite3.DatabaseError("database disk image is malformed"))

    with pytest.raises(StorageUnavailable, match="malformed"):
        await database.write(work)


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
async def test_a_write_that_waits_is_dropped_with_its_caller(database: Database) -> None:
    held = Held()
    first = asyncio.create_task(database.write(held))
    await asyncio.to_thread(held.begun.wait)
    second = asyncio.create_task(add_user(database))
    await asyncio.sleep(0)
    second.cancel()
    held.go.set()
    await first
    count = await database.read(lambda session: session.execute(text("SELECT count(*) FROM account")).scalar_one())
    assert count == 1


@dataclass
class WithRows:
    """A write that uses no objects."""

    work: Callable[[Connection], object]


def ask(session: Session) -> int:
    return int(session.execute(text("SELECT 1")).scalar_one())


class TestWritesThatShareATransaction:
    """On SQLite: all that came while another was running."""

    @pytest.fixture(params=["sqlite"])
    def database_url(self) -> None:
        return None

    @pytest.fixture(autouse=True)
    def no_hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or a machine that is busy enough would share them out over more transactions."""
        monkeypatch.setattr(group_commit, "MAX_TRANSACTION_SECONDS", 60.0)

    @staticmethod
    async def together(database: Database, *works: Callable[[Session], object] | WithRows) -> list[object]:
        held = Held()
        first = asyncio.create_task(database.write(held))
        await asyncio.to_thread(held.begun.wait)
        writes = [
            asyncio.create_task(database.write_rows(work.work) if isinstance(work, WithRows) else database.write(work))
            for work in works
        ]
        await asyncio.sleep(0)
        held.go.set()
        await first
        return await asyncio.gather(*writes, return_exceptions=True)

    async def test_each_has_its_own_outcome(self, database: Database) -> None:
        def rename(session: Session) -> str:
            session.get_one(Account, LOCAL_USER_ID).name = "renamed"
            return "told"

        def refused(session: Session) -> None:
            session.get_one(Account, LOCAL_USER_ID).name = "wrong"
            session.flush()
            raise ValueError("no")

        def broken(session: Session) -> None:
            session.execute(text("INSERT INTO account (id, name) SELECT id, name FROM account"))

        def seen(session: Session) -> str:
            return session.get_one(Account, LOCAL_USER_ID).name

        told, error, constraint, name = await self.together(database, rename, refused, broken, seen)
        assert (told, name) == ("told", "renamed")  # each sees those before it, but not what was undone
        assert isinstance(error, ValueError)
        assert isinstance(constraint, IntegrityError)
        assert await name_of(database, LOCAL_USER_ID) == "renamed"

    async def test_those_without_objects_do_too(self, database: Database) -> None:
        rename = text("UPDATE account SET name = :name")
        read = text("SELECT name FROM account")

        def renamed(connection: Connection) -> str:
            connection.execute(rename, {"name": "renamed"})
            return "told"

        def refused(connection: Connection) -> None:
            connection.execute(rename, {"name": "wrong"})
            raise ValueError("no")

        def broken(connection: Connection) -> None:
            connection.execute(rename, {"name": "wrong"})
            connection.execute(text("INSERT INTO account (id, name) SELECT id, name FROM account"))

        def seen(connection: Connection) -> object:
            return connection.execute(read).scalar_one()

        def added(session: Session) -> str:
            session.get_one(Account, LOCAL_USER_ID).name += " twice"
            return "by objects"

        works: list[Any] = [
            WithRows(renamed),
            WithRows(refused),
            WithRows(seen),
            added,
            WithRows(broken),
            WithRows(seen),
        ]
        told, error, name, by_objects, constraint, last = await self.together(database, *works)
        assert (told, name, by_objects, last) == ("told", "renamed", "by objects", "renamed twice")
        assert isinstance(error, ValueError)
        assert isinstance(constraint, IntegrityError)
        assert await name_of(database, LOCAL_USER_ID) == "renamed twice"

    async def test_where_the_database_fails_those_without_objects_know_too(self, database: Database) -> None:
        def rename(connection: Connection) -> None:
            connection.execute(text("UPDATE account SET name = 'lost'"))

        def full(connection: Connection) -> None:
            connection.exec_driver_sql("ROLLBACK")  # as SQLite itself does where a disk is full
            raise DatabaseError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))

        outcomes = await self.together(database, WithRows(rename), WithRows(full))
        assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 2
        assert await name_of(database, LOCAL_USER_ID) == "whole"
        await database.write_rows(rename)  # and it works again
        assert await name_of(database, LOCAL_USER_ID) == "lost"

    async def test_they_take_one_transaction(self, database: Database) -> None:
        begins: list[object] = []
        event.listen(database._writer, "begin", begins.append)
        assert await self.together(database, *[ask] * 20) == [1] * 20
        assert len(begins) == 2  # with the one before them

    async def test_where_the_database_fails_none_is_there_and_all_know(self, database: Database) -> None:
        def rename(session: Session) -> None:
            session.get_one(Account, LOCAL_USER_ID).name = "lost"

        def full(_session: Session) -> None:
            raise DatabaseError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))

        outcomes = await self.together(database, rename, full)
        assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 2
        assert await name_of(database, LOCAL_USER_ID) == "whole"
        await database.write(rename)  # and it works again
        assert await name_of(database, LOCAL_USER_ID) == "lost"

    async def test_a_commit_that_fails_is_told_to_all(self, database: Database) -> None:
        def rename(session: Session) -> None:
            session.get_one(Account, LOCAL_USER_ID).name = "lost"

        def fail(connection: Connection) -> None:
            if connection.get_nested_transaction() is None and armed:
                raise DatabaseError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

        armed: list[bool] = []
        event.listen(database._writer, "commit", fail)

        def rename_then_arm(session: Session) -> None:
            rename(session)
            armed.append(True)

        outcomes = await self.together(database, rename, rename_then_arm)
        assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 2
        armed.clear()
        assert await name_of(database, LOCAL_USER_ID) == "whole"

    async def test_a_long_one_is_not_waited_for(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(group_commit, "MAX_TRANSACTION_SECONDS", 0.0)
        begins: list[object] = []
        event.listen(database._writer, "begin", begins.append)
        assert await self.together(database, *[ask] * 3) == [1] * 3
        assert len(begins) == 4

    async def test_a_failure_hits_only_the_writes_that_had_started(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_commit, "MAX_BATCH_WRITES", 4)

        def fail(_session: Session) -> None:
            raise DatabaseError("UPDATE", {}, sqlite3.OperationalError("disk I/O error"))

        outcomes = await self.together(database, ask, fail, *[ask] * 9)
        assert [type(outcome) for outcome in outcomes[:2]] == [StorageUnavailable] * 2
        assert outcomes[2:] == [1] * 9

    async def test_a_transaction_takes_no_more_writes_than_its_bound(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_commit, "MAX_BATCH_WRITES", 4)
        begins: list[object] = []
        event.listen(database._writer, "begin", begins.append)
        assert await self.together(database, *[ask] * 9) == [1] * 9
        assert len(begins) == 1 + 3  # the one that the others waited for, and batches of four, four and one

    async def test_a_transaction_that_cannot_begin_fails_all_that_would_have_shared_it(
        self, database: Database
    ) -> None:
        begins: list[object] = []

        def refuse(_connection: object) -> None:
            begins.append(None)
            if len(begins) == 2:
                raise DatabaseError("BEGIN", {}, sqlite3.OperationalError("database is locked"))

        event.listen(database._writer, "begin", refuse)
        outcomes = await self.together(database, *[ask] * 5)
        assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 5
        assert len(begins) == 2
        event.remove(database._writer, "begin", refuse)

    async def test_a_waiting_write_can_be_cancelled_until_it_starts(self, database: Database) -> None:
        ran: list[str] = []
        held = Held()
        first = asyncio.create_task(database.write(held))
        await asyncio.to_thread(held.begun.wait)
        go, started = threading.Event(), threading.Event()

        def block(_session: Session) -> None:
            started.set()
            go.wait(10)

        def note(_session: Session) -> None:
            ran.append("last")

        blocking = asyncio.create_task(database.write(block))
        last = asyncio.create_task(database.write(note))
        await asyncio.sleep(0)
        held.go.set()
        await asyncio.to_thread(started.wait)  # the transaction that both share is under way
        last.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last
        go.set()
        await asyncio.gather(first, blocking)
        await database.write(ask)  # after everything that came before it
        assert ran == []

    async def test_closing_waits_for_all(self, database: Database) -> None:
        held = Held()
        first = asyncio.create_task(database.write(held))
        await asyncio.to_thread(held.begun.wait)
        others = [asyncio.create_task(add_user(database)) for _ in range(3)]
        await asyncio.sleep(0)
        closing_task = asyncio.create_task(database.close())
        await asyncio.sleep(0.05)
        held.go.set()
        await asyncio.gather(first, *others, closing_task)
        reopened = Database(database_url_of(database))
        count = await reopened.read(lambda session: session.execute(text("SELECT count(*) FROM account")).scalar_one())
        assert count == 4
        await reopened.close()


async def test_what_a_failed_write_did_is_gone(database: Database) -> None:
    def work(session: Session) -> None:
        session.get_one(Account, LOCAL_USER_ID).name = "wrong"
        session.flush()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.write(work)
    assert await name_of(database, LOCAL_USER_ID) == "local"


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
async def test_sqlite_is_set_up_to_keep_what_it_was_given(database: Database) -> None:
    def pragmas(session: Session) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "query_only")
        return {name: session.execute(text(f"PRAGMA {name}")).scalar_one() for name in names}

    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}
    assert await database.write(pragmas) == expected | {"query_only": 0}
    assert await database.read(pragmas) == expected | {"query_only": 1}
    with pytest.raises(StorageUnavailable, match=r"cannot be used right now .*readonly") as failure:
        await database.read(lambda session: session.execute(text("DELETE FROM account")))
    assert "DELETE" not in failure.value.message  # the reason, not the statement


@pytest.mark.parametrize("database_url", [None], ids=["sqlite"])
async def test_a_write_has_the_lock_before_it_reads(database: Database, tmp_path: Path) -> None:
    """Or another program could write between its reading and its writing, and it would be refused."""

    def work(session: Session) -> None:
        session.get_one(Account, LOCAL_USER_ID)
        other = closing(sqlite3.connect(tmp_path / "deskmate.db", timeout=0))
        with other as connection, pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.execute("BEGIN IMMEDIATE")
        session.get_one(Account, LOCAL_USER_ID).name = "written"

    await database.write(work)
    assert await name_of(database, LOCAL_USER_ID) == "written"


async def test_connections_the_server_drops_are_replaced(postgres: PostgresServer) -> None:
    database = Database(postgres.migrated())
    kill = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()")
    for _ in range(2):
        await asyncio.gather(*(database.ping() for _ in range(8)))
        with pytest.raises(StorageUnavailable):  # its own connection dies under it
            await database.write(lambda session: session.execute(kill).all())
    await asyncio.gather(*(database.ping() for _ in range(8)))
    await database.close()


@pytest.mark.parametrize("paused", [False, True], ids=["in use", "after a pause"])
async def test_after_a_restart_of_the_server_at_most_the_first_use_fails(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    url = postgres.migrated()
    database = Database(url)
    held = threading.Barrier(8)  # eight connections are open afterwards
    await asyncio.gather(*(database.read_rows(lambda _connection: held.wait(timeout=30)) for _ in range(8)))
    monkeypatch.setattr(connection_checks, "PING_AFTER_SECONDS", 0.0 if paused else 3600.0)
    with closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as other:
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        other.execute(f"{kill} AND pid <> pg_backend_pid()")
    if not paused:
        with pytest.raises(StorageUnavailable):
            await database.write_rows(lambda connection: BY_KEY.rows(connection, KEY))
    await asyncio.gather(*(database.ping() for _ in range(8)))
    await asyncio.gather(*(database.read_rows(lambda connection: BY_KEY.rows(connection, KEY)) for _ in range(8)))
    await database.close()


def rename(session: Session) -> None:
    session.get_one(Account, LOCAL_USER_ID).name = "renamed"


def rename_rows(connection: Connection) -> None:
    Prepared(_NAME).run(connection, _NAMES[0])


@pytest.mark.slow
async def test_after_a_restart_of_the_server_all_reads_succeed_and_one_write_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though none of the connections has rested for long enough to be pinged."""
    monkeypatch.setattr(connection_checks, "PING_AFTER_SECONDS", 3600.0)
    with stoppable_postgres() as server:
        url = AppSettings(_env_file=None, database_url=server.url).resolved_database_url
        migrate(url)
        database = Database(url)
        together = threading.Barrier(8)  # as many connections, each used once
        reads_together = True

        @event.listens_for(database._writer, "checkout")  # after it was pinged, if it was
        def wait_for_the_others(*_: object) -> None:
            if reads_together:
                together.wait(timeout=30)

        async def read_all() -> None:
            nonlocal reads_together
            reads_together = True
            of_objects = [database.read(lambda session: session.get_one(Account, LOCAL_USER_ID).name) for _ in range(4)]
            of_rows = [database.read_rows(lambda connection: BY_KEY.row(connection, KEY)) for _ in range(4)]
            await asyncio.gather(*of_objects, *of_rows)
            reads_together = False

        await read_all()
        server.crash()
        server.start()
        await read_all()
        assert caplog.text.count("is retried") == 8
        # One that was opened again before another was found lost is pinged once more: here, so that no write does it.
        await read_all()
        writes: list[Callable[[], Awaitable[None]]] = [
            lambda: database.write(rename),
            lambda: database.write_rows(rename_rows),
        ]
        for write in writes:
            server.crash()
            server.start()
            with pytest.raises(StorageUnavailable):
                await write()
            await asyncio.gather(*(write() for _ in range(8)))
            await read_all()
        assert caplog.text.count("is retried") == 8
        await database.close()


async def test_a_connection_that_was_in_use_when_another_was_lost_is_pinged(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_checks, "PING_AFTER_SECONDS", 3600.0)
    database = Database(postgres.migrated())
    in_use, go = threading.Barrier(8), threading.Event()

    def hold(_connection: Connection) -> None:
        in_use.wait(timeout=30)
        go.wait(timeout=30)

    def end_all(connection: Connection) -> None:
        in_use.wait(timeout=30)
        own_last = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid = pg_backend_pid()"
        driver.fetch(connection, f"SELECT pg_terminate_backend(pid) FROM ({own_last}) AS one")

    holding = [asyncio.create_task(database.read_rows(hold)) for _ in range(7)]
    with pytest.raises(StorageUnavailable):
        await database.write_rows(end_all)
    go.set()
    await asyncio.gather(*holding)
    await asyncio.gather(*(database.write_rows(rename_rows) for _ in range(8)))
    await database.close()


@pytest.mark.parametrize("of_rows", [False, True], ids=["objects", "rows"])
async def test_a_read_begins_anew_once_and_a_write_never(postgres: PostgresServer, of_rows: bool) -> None:
    database = Database(postgres.migrated())
    runs: list[str] = []

    def die(session: Session | Connection) -> None:
        runs.append("run")
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    for run, number in (
        (database.read_rows if of_rows else database.read, 2),
        (database.write_rows if of_rows else database.write, 1),
    ):
        runs.clear()
        with pytest.raises(StorageUnavailable):
            await run(die)
        assert len(runs) == number
    await database.close()


async def test_a_connection_in_use_is_not_pinged_each_time(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres.migrated())
    await database.ping()
    monkeypatch.setattr(connection_checks, "PING_AFTER_SECONDS", 3600.0)
    monkeypatch.setattr(database._reader.dialect, "do_ping", lambda _connection: pytest.fail("pinged"))
    for _ in range(3):
        await database.ping()
        await database.read_rows(lambda connection: BY_KEY.rows(connection, KEY))
    await database.close()


_ACCOUNTS = Base.metadata.tables["account"]
KEY = {"key": LOCAL_USER_ID}
BY_KEY = Prepared(select(_ACCOUNTS.c.name).where(_ACCOUNTS.c.id == bindparam("key")))
_NAME = update(_ACCOUNTS).where(_ACCOUNTS.c.id == bindparam("key")).values(name=bindparam("value"))
_NAMES = [{"key": LOCAL_USER_ID, "value": name} for name in ("one", "other")]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda connection: Prepared(_NAME).run(connection, _NAMES[0]), id="one"),
        pytest.param(lambda connection: Prepared(_NAME).run_each(connection, _NAMES), id="many"),
        pytest.param(lambda connection: connection.execute(_NAME, _NAMES), id="many of SQLAlchemy's"),
    ],
)
async def test_a_process_that_stands_still_in_a_transaction_holds_up_nobody(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, change: Callable[[Connection], object]
) -> None:
    monkeypatch.setattr("app.store.db.database.IDLE_TRANSACTION_SECONDS", 1)
    database = Database(postgres.migrated())
    begun, go = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        change(connection)
        begun.set()
        go.wait()
        connection.execute(text("SELECT 1"))

    standing_still = asyncio.create_task(database.write_rows(work))
    await asyncio.to_thread(begun.wait)
    try:
        await database.write_rows(lambda connection: Prepared(_NAME).run(connection, _NAMES[1]))
    finally:
        go.set()
    with pytest.raises(StorageUnavailable):
        await standing_still
    assert await name_of(database, LOCAL_USER_ID) == "other"
    await database.close()
