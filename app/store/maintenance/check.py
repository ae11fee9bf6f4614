"""Inspects a database without changing it: schema revision, damage, broken invariants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from app.errors import StartupError
from app.store.db.database import open_snapshot
from app.store.maintenance.integrity import broken_rules
from app.store.maintenance.migrate import alembic_config, cannot_open, known_revisions, sqlite_file
from app.store.maintenance.writable_folder import file_exists


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The result of :func:`inspect_database`."""

    revision: str | None  #: the schema's revision; None if there is no schema yet
    wanted: str  #: the revision that this program needs
    known: bool  #: this program can read ``revision`` or upgrade it
    damage: str | None  #: SQLite's ``quick_check`` finding; None if none (PostgreSQL is not checked)

    @property
    def current(self) -> bool:
        return self.revision == self.wanted


def inspect_database(url: str, *, whole: bool = True) -> DatabaseState:
    """Reads the state of the database at ``url``. A SQLite file that does not exist is not created.

    Args:
        url: from ``AppSettings.resolved_database_url``.
        whole: check for damage too, which reads all of a SQLite file.

    Raises:
        StartupError: the database cannot be opened or read.
    """
    script = ScriptDirectory.from_config(alembic_config())
    wanted = script.get_current_head() or ""
    file = sqlite_file(url)
    if file is not None and not file_exists(file):
        return DatabaseState(None, wanted, known=True, damage=None)
    with _read(url) as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
        damage = None
        if file is not None and whole:
            verdict = str(connection.execute(text("PRAGMA quick_check(1)")).scalar_one())
            damage = None if verdict == "ok" else verdict
    return DatabaseState(revision, wanted, revision is None or revision in known_revisions(), damage)


def describe_database(url: str) -> str:
    """Describes the database in one sentence.

    Raises:
        StartupError: the database cannot be used.
    """
    state = inspect_database(url)
    if state.damage is not None:
        raise StartupError(f"The database is damaged ({state.damage}). Restore a backup from the data folder.")
    if not state.known:
        raise StartupError(
            f"The database was written by a newer version of Deskmate (its schema is {state.revision}, this version "
            f"knows {state.wanted}). Start the newer version, or restore a backup from before it."
        )
    if state.revision is None:
        return "empty; created at the first start"
    if not state.current:
        return f"at schema {state.revision}; upgraded to {state.wanted} at the next start, after a backup"
    return f"in order, at schema {state.revision}"


def inspect_history(url: str) -> list[str]:
    """Broken invariants of the history in the database at ``url``, as sentences; empty if there are none.

    Raises:
        StartupError: the database cannot be opened or read.
    """
    file = sqlite_file(url)
    if file is not None and not file_exists(file):
        return []
    with _read(url) as connection:
        return broken_rules(connection) if inspect(connection).has_table("turn") else []


@contextmanager
def _read(url: str) -> Iterator[Connection]:
    try:
        with open_snapshot(url) as connection:
            yield connection
    except SQLAlchemyError as error:
        raise cannot_open(url, error) from error
