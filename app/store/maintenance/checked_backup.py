"""Scheduled backups: each is restored into a temporary place and checked before it gets its name."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, Connection, func, inspect, make_url, select, table, text
from sqlalchemy.exc import SQLAlchemyError

from app.domain.backups import BackupRetention
from app.errors import MaintenanceError, StartupError
from app.store.db.database import open_snapshot, postgres_engine
from app.store.db.metadata import METADATA
from app.store.maintenance.backup import back_up
from app.store.maintenance.check import describe_database, inspect_history
from app.store.maintenance.migrate import sqlite_file
from app.store.maintenance.restore import restore
from app.store.maintenance.row_comparison import DERIVED
from app.store.maintenance.snapshot import open_at_rest, sync

PARTIAL = ".scheduled.partial"
"""Ends the name of a folder with an unfinished backup. What a killed server has left is deleted by the next run."""
_CHECK_PREFIX = "deskmate_check_"


@dataclass(frozen=True, slots=True)
class CheckedBackup:
    """The result of :func:`make_checked_backup`."""

    file: Path
    bytes: int
    check: str  #: ``restored``; ``read`` if the database's user may create no database to restore into
    rows: Mapping[str, int]  #: by table, the same in the backup and in the restored database


def make_checked_backup(url: str, folder: Path) -> CheckedBackup:
    """Backs up the database at ``url`` and restores the backup into a temporary place, as a check.

    The caller is the only one who makes scheduled backups in ``folder``: it holds the lease.

    Raises:
        MaintenanceError: there is no good backup; the folder is as it was before.
        StartupError: the URL is not supported.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_partial(folder)
        unfinished = folder / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}{PARTIAL}"
        unfinished.mkdir(mode=0o700)
    except OSError as error:
        raise MaintenanceError(
            f"The folder {folder} cannot be written: {error.strerror or error}. Make it writable, or choose another "
            "with APP_BACKUP_DIR."
        ) from error
    try:
        return _make(url, folder, unfinished)
    except OSError as error:
        raise MaintenanceError(f"The backup cannot be written to {folder}: {error.strerror or error}.") from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise MaintenanceError(f"The backup could not be checked: {reason}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Deletes what runs that were killed have left."""
    for left in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)


def remove_expired(folder: Path, retention: BackupRetention) -> list[str]:
    """Deletes the scheduled backups that are not kept; returns their names. Call it after a good one only.

    Raises:
        MaintenanceError: one cannot be deleted.
    """
    try:
        expired = sorted(retention.expired([file.name for file in folder.iterdir() if file.is_file()]))
        for name in expired:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise MaintenanceError(
            f"Old backups in {folder} cannot be deleted: {error.strerror or error}. The new backup is good."
        ) from error
    return expired


def _make(url: str, folder: Path, unfinished: Path) -> CheckedBackup:
    is_file = sqlite_file(url) is not None
    with nullcontext() if is_file else open_snapshot(url) as source:
        snapshot = source.scalar(text("SELECT pg_export_snapshot()")) if source is not None else None
        backup = back_up(url, unfinished, snapshot=snapshot)
        if is_file:
            rows, check = _check_file(backup, unfinished), "restored"
        else:
            assert source is not None
            rows = count_rows(source)
            check = _check_dump(url, backup, rows)
    final = folder / f"{backup.stem}.scheduled{backup.suffix}"
    backup.rename(final)
    sync(folder)
    return CheckedBackup(final, final.stat().st_size, check, rows)


def _check_file(backup: Path, unfinished: Path) -> dict[str, int]:
    restored = URL.create("sqlite", database=str(unfinished / "restored.db")).render_as_string()
    restore(restored, backup)
    with closing(open_at_rest(backup)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = {name: int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in _counted(names)}
    _check_restored(restored, rows)
    return rows


def _check_dump(url: str, backup: Path, rows: Mapping[str, int]) -> str:
    with _temporary_database(url) as restored:
        if restored is None:
            return "read"  # back_up has unpacked all of it
        restore(restored, backup)
        _check_restored(restored, rows)
    return "restored"


def _check_restored(url: str, rows: Mapping[str, int]) -> None:
    """As ``deskmate db check``, and that no row is missing.

    Raises:
        MaintenanceError: the restored database is not in order.
    """
    try:
        describe_database(url)
        wrong = inspect_history(url)
    except StartupError as error:
        raise MaintenanceError(f"The backup was restored as a check, and is no good. {error.message}") from error
    if wrong:
        raise MaintenanceError(
            f"The backup was restored as a check, and is no good: {'. '.join(wrong)}. The database itself may be "
            "damaged: run deskmate db check."
        )
    with open_snapshot(url) as connection:
        restored = count_rows(connection)
    missing = [name for name in rows if restored.get(name) != rows[name]]
    if missing:
        raise MaintenanceError(
            f"The backup was restored as a check, and is no good: it has {restored.get(missing[0])} instead of "
            f"{rows[missing[0]]} rows of the table {missing[0]}."
        )


def count_rows(connection: Connection) -> dict[str, int]:
    """The number of rows of each table that a backup must have."""
    present = inspect(connection).get_table_names()
    return {name: connection.scalar(select(func.count()).select_from(table(name))) or 0 for name in _counted(present)}


def _counted(present: Collection[str]) -> list[str]:
    return [one.name for one in METADATA.sorted_tables if one.name in present and one.name not in DERIVED]


@contextmanager
def _temporary_database(url: str) -> Iterator[str | None]:
    """An empty PostgreSQL database beside the one at ``url``; None if its user may create none."""
    parsed = make_url(url)
    prefix = _CHECK_PREFIX + hashlib.sha256((parsed.database or "").encode()).hexdigest()[:8] + "_"
    name = prefix + secrets.token_hex(4)
    engine = postgres_engine(url, connections=1).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        may_create = text("SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user")
        if not connection.scalar(may_create):
            yield None
            return
        left = text("SELECT datname FROM pg_database WHERE starts_with(datname, :prefix)")
        for killed in connection.scalars(left, {"prefix": prefix}).all():
            connection.execute(text(f'DROP DATABASE IF EXISTS "{killed}" WITH (FORCE)'))
        connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE template0'))
        try:
            yield parsed.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
