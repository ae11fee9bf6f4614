"""Migrates a database to this version's schema: one process at a time, after a backup, and never backwards."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from app.errors import StartupError
from app.store.db.database import postgres_engine, sqlite_engine
from app.store.maintenance.snapshot import backup_name, copy_database, open_live, whole_file
from app.store.maintenance.writable_folder import require_writable_database

_log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parents[3] / "migrations"
#: Supported options of a SQLite URL. Others would select another file, or one that cannot be written.
_SQLITE_OPTIONS = frozenset({"timeout", "cached_statements"})
#: Key of PostgreSQL's advisory lock.
MIGRATION_LOCK = 0x6465736B  # "desk": any number that no other program on the server uses


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The result of :func:`migrate`."""

    before: str | None  #: the revision found; None for a new database
    after: str
    backup: Path | None  #: the copy made before an upgrade of a SQLite file


def migrate(url: str, *, backup: bool = True) -> MigrationResult:
    """Creates the database at ``url`` or migrates it to this version's schema. Blocks; run it before serving.

    Two processes that start together migrate one after the other. A migration that fails or is
    killed leaves the database unchanged.

    Args:
        url: from ``AppSettings.resolved_database_url``, claimed by this process
            (:mod:`app.store.maintenance.process_lock`).
        backup: copy a SQLite file first; False if the file is a copy itself.

    Raises:
        StartupError: the database cannot be opened or written, belongs to another program, or has a newer schema.
    """
    file = sqlite_file(url)
    if file is not None:
        require_writable_database(file)
    engine = sqlite_engine(url, connections=1) if file else postgres_engine(url, connections=1)
    try:
        with engine.begin() as connection:
            if file is None:
                # Blocks other migrations until this transaction ends; on SQLite, BEGIN IMMEDIATE does.
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            return _upgrade(connection, file, backup)
    except SQLAlchemyError as error:
        raise cannot_open(url, error) from error
    finally:
        engine.dispose()


def cannot_open(url: str, error: SQLAlchemyError) -> StartupError:
    """The error for a database that does not answer, or is not one."""
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    where = sqlite_file(url) or make_url(url).render_as_string(hide_password=True)
    return StartupError(f"The database {where} cannot be opened: {reason}. Check APP_DATABASE_URL and APP_DATA_DIR.")


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite URL; None for PostgreSQL.

    Raises:
        StartupError: the URL is neither, or names a SQLite database that is not a file.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError if the port is not a number
        raise StartupError(_UNKNOWN_URL) from error
    if parsed.drivername == "postgresql+psycopg":
        return None
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise StartupError(_UNKNOWN_URL)
    if unknown := set(parsed.query) - _SQLITE_OPTIONS:
        raise StartupError(
            f"APP_DATABASE_URL has an option that is not supported for SQLite: {min(unknown)}. Remove it."
        )
    if not parsed.database or parsed.database == ":memory:":
        raise StartupError(
            "APP_DATABASE_URL names a SQLite database in memory, which would be lost on exit. "
            "Name a file, such as sqlite:////var/lib/deskmate/deskmate.db."
        )
    return Path(parsed.database)


_UNKNOWN_URL = (
    "APP_DATABASE_URL is not a database this program knows. Use sqlite:////path/to/deskmate.db or "
    "postgresql://user:password@host/name, or leave it out."
)


def known_revisions() -> frozenset[str]:
    """The schema revisions that this program can read or upgrade."""
    return frozenset(one.revision for one in ScriptDirectory.from_config(alembic_config()).walk_revisions())


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, for an open connection."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _upgrade(connection: Connection, file: Path | None, wanted: bool) -> MigrationResult:
    config = alembic_config(connection)
    script = ScriptDirectory.from_config(config)
    head = script.get_current_head()
    assert head is not None
    before = MigrationContext.configure(connection).get_current_revision()
    if before == head:
        return MigrationResult(before, head, None)
    where = file or "this database"
    if before is None and set(inspect(connection).get_table_names()) - {"alembic_version"}:
        raise StartupError(
            f"{where} contains tables of another program. Point APP_DATABASE_URL or APP_DATA_DIR at an empty place."
        )
    if before is not None and before not in known_revisions():
        raise StartupError(
            f"{where} was written by a newer version of Deskmate (its schema is {before}, this version knows "
            f"{head}). Start the newer version, or restore a backup from before it."
        )
    backup = None
    if wanted and file is not None and before is not None:
        backup = _back_up(file, before)
        _log.info("database backed up to %s", backup)
    command.upgrade(config, "head")
    _log.info("database migrated from %s to %s", before or "nothing", head)
    return MigrationResult(before, head, backup)


def _back_up(file: Path, revision: str) -> Path:
    """Copies the database's committed state, completely or not at all."""
    backup = file.with_name(backup_name(file.name, revision, "backup"))
    try:
        with whole_file(backup) as unfinished, closing(open_live(file)) as source:
            copy_database(source, unfinished)
    except (sqlite3.Error, OSError) as error:
        raise StartupError(
            f"The database must be upgraded, and its backup {backup} could not be written: {error}. "
            "Nothing was changed. Free disk space and start again."
        ) from error
    return backup
