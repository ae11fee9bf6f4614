"""Restores a backup: checked first, with nothing overwritten, all or nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from app.errors import MaintenanceError
from app.store.db.database import postgres_engine
from app.store.maintenance import postgres_tools
from app.store.maintenance.backup import REQUIRED_TABLES, revision_in
from app.store.maintenance.migrate import MIGRATION_LOCK, known_revisions, migrate, sqlite_file
from app.store.maintenance.snapshot import (
    Progress,
    beside,
    copy_database,
    nothing_shown,
    open_at_rest,
    open_live,
    sync,
    whole_file,
)

_SQLITE = b"SQLite format 3\0"
_PG_DUMP = b"PGDMP"
_BESIDE = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of :func:`restore`."""

    revision: str  #: the backup's schema
    now: str  #: the schema after the upgrade
    aside: Path | None  #: where the previous database was moved; None if there was none


def restore(url: str, backup: Path, progress: Progress = nothing_shown) -> RestoreResult:
    """Replaces the database at ``url`` by ``backup``, migrated to this version's schema.

    Args:
        url: from ``AppSettings.resolved_database_url``, claimed by this process
            (:mod:`app.store.maintenance.process_lock`).
        backup: a file of :func:`app.store.maintenance.backup.back_up`, or the backup made by an upgrade.

    Raises:
        MaintenanceError: the file is not a backup, is damaged or newer than this program, or cannot be restored.
            The present database is unchanged.
        StartupError: the URL is not supported, or the database cannot be opened.
    """
    file = sqlite_file(url)
    try:
        with backup.open("rb") as opened:
            beginning = opened.read(len(_SQLITE))
        if beginning.startswith(_PG_DUMP):
            if file is not None:
                raise MaintenanceError(
                    f"{backup} is a backup of a PostgreSQL database. Set APP_DATABASE_URL to an empty one "
                    "(postgresql://...) and restore it there."
                )
            return _into_postgres(url, backup)
        if beginning != _SQLITE:
            raise MaintenanceError(f"{backup} is not a Deskmate backup.")
        if file is None:
            raise MaintenanceError(
                f"{backup} is a backup of a SQLite database. Restore it to a file with --database-url "
                "sqlite:////path/to/deskmate.db, then move it here with deskmate db copy."
            )
        # SQLite names the companion files after the database file itself, not after a link to it.
        return _into_file(file.resolve(), backup, progress)
    except OSError as error:
        raise MaintenanceError(
            f"{backup} cannot be restored: {error.strerror or error}. The present database is unchanged."
        ) from error


def _into_file(file: Path, backup: Path, progress: Progress) -> RestoreResult:
    if file.exists() and file.samefile(backup):
        raise MaintenanceError(f"{backup} is the present database itself, not a backup of it.")
    with whole_file(file) as unfinished:
        try:
            with closing(open_at_rest(backup)) as source:
                revision = _known(backup, revision_in(source))
                copy_database(source, unfinished, progress)
        except sqlite3.Error as error:
            raise MaintenanceError(
                f"{backup} cannot be restored: {error}. The present database is unchanged; try an older backup."
            ) from error
        now = _upgraded(unfinished)
        aside = _keep(file, unfinished)
    return RestoreResult(revision, now, aside)


def _upgraded(unfinished: Path) -> str:
    """Migrates the copy to this version's schema and leaves all of it in one file."""
    try:
        now = migrate(URL.create("sqlite", database=str(unfinished)).render_as_string(), backup=False).after
        with closing(open_live(unfinished)) as copy:
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise MaintenanceError(
            f"The backup could not be upgraded: {error}. The present database is unchanged."
        ) from error
    finally:
        for suffix in _BESIDE:
            beside(unfinished, suffix).unlink(missing_ok=True)
    return now


def _known(backup: Path, revision: str | None) -> str:
    if revision is None:
        raise MaintenanceError(f"{backup} is not a Deskmate backup: it contains other tables, or none.")
    if revision not in known_revisions():
        raise MaintenanceError(
            f"{backup} was written by a newer version of Deskmate (its schema is {revision}). Restore it with that "
            "version, or choose another backup. The present database is unchanged."
        )
    return revision


def _keep(file: Path, successor: Path) -> Path | None:
    """Gives the present database and its companion files a second name, and leaves no companion to its successor."""
    if file.exists():
        _close(file)
        shutil.copymode(file, successor)
        owner = file.stat()
        with suppress(PermissionError):  # only root may change the owner, and only root needs to
            os.chown(successor, owner.st_uid, owner.st_gid)
    aside = file.with_name(f"{file.name}.{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}.replaced")
    kept = [(one, beside(aside, suffix)) for suffix in ("", *_BESIDE) if (one := beside(file, suffix)).exists()]
    for present, name in kept:
        try:
            os.link(present, name)
        except OSError:  # a file system without links
            shutil.copy2(present, name)
    sync(file.parent)
    for present, _ in kept:
        if present != file:  # SQLite would apply the old database's companion to the new file
            present.unlink()
    return aside if kept else None


def _close(file: Path) -> None:
    """Merges a SQLite database's companion files into its one file, if it is intact enough."""
    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) != _SQLITE:
            return  # SQLite would delete the companion files
    try:
        with closing(open_live(file)) as present:
            present.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise MaintenanceError(
                f"Another program has {file} open. Close it, then restore again. The present database is unchanged."
            ) from error
        # Damaged, which may be why it is replaced. It is kept as it is.


def _into_postgres(url: str, backup: Path) -> RestoreResult:
    version = (
        postgres_tools.contents(backup, "alembic_version") if postgres_tools.tables(backup) >= REQUIRED_TABLES else []
    )
    revision = _known(backup, version[0] if version else None)
    name = make_url(url).database
    engine = postgres_engine(url, connections=1)
    try:
        with engine.begin() as connection:
            # A server that starts meanwhile waits here and then finds the restored database.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            if inspect(connection).get_table_names():
                raise MaintenanceError(
                    f"The database {name} is not empty, and restoring overwrites nothing. Create an empty one "
                    "(createdb NAME), set APP_DATABASE_URL to it and restore again; this one is unchanged."
                )
            postgres_tools.load(url, backup)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise MaintenanceError(f"The database {name} cannot be reached: {reason}. Check APP_DATABASE_URL.") from error
    finally:
        engine.dispose()
    return RestoreResult(revision, migrate(url).after, None)
