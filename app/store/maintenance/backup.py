"""Backups: one file with the whole database, made while the server runs, complete or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, make_url
from sqlalchemy.exc import SQLAlchemyError

from app.errors import MaintenanceError
from app.store.db.database import postgres_engine
from app.store.maintenance import postgres_tools
from app.store.maintenance.migrate import sqlite_file
from app.store.maintenance.snapshot import (
    Progress,
    backup_name,
    copy_database,
    nothing_shown,
    open_live,
    whole_file,
)

#: The tables of the first schema version; a database with all of them is Deskmate's.
REQUIRED_TABLES = frozenset({"alembic_version", "account", "conversation", "message", "turn"})


def back_up(
    url: str,
    folder: Path,
    to: Path | None = None,
    progress: Progress = nothing_shown,
    *,
    snapshot: str | None = None,
) -> Path:
    """Writes a backup of the database at ``url``, which may be in use.

    Args:
        url: from ``AppSettings.resolved_database_url``.
        folder: where the backup goes, under a generated, descriptive name; created if missing.
        to: a new file, or a folder, instead.
        snapshot: that another PostgreSQL connection has exported: the backup holds what that connection sees.

    Returns:
        The file.

    Raises:
        MaintenanceError: there is nothing to back up, or it cannot be written; no file is left.
        StartupError: the URL is not supported.
    """
    source = sqlite_file(url)
    try:
        if to is None:
            folder.mkdir(parents=True, exist_ok=True)
            to = folder
        return _of_file(source, to, progress) if source else _of_postgres(url, to, snapshot)
    except sqlite3.Error as error:
        raise MaintenanceError(f"The database {source} cannot be backed up: {error}. No backup was written.") from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise MaintenanceError(f"{_where(url)} cannot be read: {reason}. No backup was written.") from error
    except OSError as error:
        raise MaintenanceError(
            f"The backup cannot be written to {to or folder}: {error.strerror or error}. No file is left; choose "
            "another place with --to."
        ) from error


def revision_in(connection: sqlite3.Connection) -> str | None:
    """The schema's revision; None if it is not a Deskmate database.

    Raises:
        sqlite3.Error: the file is not SQLite, or damaged.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= REQUIRED_TABLES:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


def _of_file(file: Path, to: Path, progress: Progress) -> Path:
    if not file.exists():
        raise MaintenanceError(f"There is no database at {file} yet, so there is nothing to back up.")
    with closing(open_live(file)) as source:
        revision = revision_in(source)
        if revision is None:
            raise MaintenanceError(f"{file} is not a Deskmate database. Check APP_DATABASE_URL and APP_DATA_DIR.")
        backup = _place(to, backup_name(file.name, revision, "backup"))
        with whole_file(backup) as unfinished:
            copy_database(source, unfinished, progress)
    return backup


def _of_postgres(url: str, to: Path, snapshot: str | None) -> Path:
    engine = postgres_engine(url, connections=1)
    try:
        with engine.connect() as connection:
            revision = revision_at(connection)
    finally:
        engine.dispose()
    if revision is None:
        raise MaintenanceError(f"{_where(url)} is not a Deskmate database, so there is nothing to back up.")
    backup = _place(to, backup_name(make_url(url).database or "postgres", revision, "dump"))
    with whole_file(backup) as unfinished:
        postgres_tools.dump(url, unfinished, snapshot)
    return backup


def revision_at(connection: Connection) -> str | None:
    """The schema's revision; None if it is not a Deskmate database."""
    if not set(inspect(connection).get_table_names()) >= REQUIRED_TABLES:
        return None
    return MigrationContext.configure(connection).get_current_revision()


def _place(to: Path, name: str) -> Path:
    backup = to / name if to.is_dir() else to
    if backup.exists():
        raise MaintenanceError(f"{backup} exists already, and a backup overwrites nothing. Choose another file.")
    if not backup.parent.is_dir():
        raise MaintenanceError(
            f"There is no folder {backup.parent} to put the backup into. Create it, or choose another."
        )
    return backup


def _where(url: str) -> str:
    return f"The database {make_url(url).render_as_string(hide_password=True)}"
