"""Copies a whole history into another database: resumable, and verified row by row at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, String, column, func, insert, make_url, select, table, text, update
from sqlalchemy.exc import SQLAlchemyError

from app.errors import MaintenanceError
from app.store.db.database import SERVER_NAME, open_snapshot, postgres_engine, sqlite_engine
from app.store.maintenance.check import inspect_database
from app.store.maintenance.integrity import broken_rules
from app.store.maintenance.migrate import migrate, sqlite_file
from app.store.maintenance.process_lock import claim_database
from app.store.maintenance.row_comparison import (
    ROWS_AT_ONCE,
    ComparedTable,
    Row,
    compared_tables,
    rows,
    side_by_side,
)

#: Conversations per transaction. An interrupted copy resumes after the last committed batch.
CONVERSATIONS_AT_ONCE = 100
_LOCK = 0x6465736C  # key of PostgreSQL's advisory lock: one copy at a time into a database
_SERVER_GONE_SECONDS = 3  #: PostgreSQL still lists a connection shortly after it has closed

_ID = column("id", String())
_CONVERSATIONS = table("conversation", _ID)

#: Called with the current stage and its progress, 0 to 1.
StageCallback = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The rows that :func:`copy_history` found equal in both databases at the end."""

    rows: dict[str, int]  #: row counts by table
    resumed: bool  #: the target held part of an earlier copy


def copy_history(source_url: str, target_url: str, progress: StageCallback) -> CopyResult:
    """Copies everything from one database into another that holds nothing else, and compares every row.

    To resume an interrupted copy, run it again. Overwrites nothing in the target and changes nothing in the source.
    Derived data (the search entries) is rebuilt by the target.

    Args:
        source_url, target_url: from ``AppSettings.resolved_database_url``, not claimed by this process.

    Raises:
        MaintenanceError: one of them is in use or not in the required state, the copy stopped, or the two differ.
        StartupError: one of them cannot be opened, or is claimed by another process.
    """
    source_name, target_name = redact_url(source_url), redact_url(target_url)
    if _place(source_url) == _place(target_url):
        raise MaintenanceError(f"{source_name} is the source database itself. Choose another one with --to.")
    with claim_database(source_url), claim_database(target_url):
        _require_current(source_url, source_name)
        migrate(target_url)
        try:
            with (
                open_snapshot(source_url) as source,
                _connected(target_url) as target,
                _connected(target_url, read_only=True) as seen,
            ):
                return _Copy(source, target, seen, (source_name, target_name), progress).run()
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise MaintenanceError(
                f"The copy to {target_name} stopped: {reason}. The copied part stays; run the same command to resume."
            ) from error


def redact_url(url: str) -> str:
    """The database's name for messages: file path, or URL without the password."""
    file = sqlite_file(url)
    return str(file) if file else make_url(url).set(drivername="postgresql").render_as_string(hide_password=True)


def _place(url: str) -> object:
    file = sqlite_file(url)
    parsed = make_url(url)
    return file.resolve() if file else (parsed.host, parsed.port, parsed.database, parsed.query.get("host"))


def _require_current(url: str, name: str) -> None:
    state = inspect_database(url)
    if state.revision is None:
        raise MaintenanceError(f"There is no database at {name} yet, so there is nothing to copy.")
    if not state.current:
        raise MaintenanceError(
            f"{name} has another schema ({state.revision}) than this version of Deskmate ({state.wanted}). "
            "Upgrade it first: deskmate db upgrade."
        )
    if state.damage is not None:
        raise MaintenanceError(f"{name} is damaged ({state.damage}). Restore a backup first: deskmate db restore.")


@contextmanager
def _connected(url: str, *, read_only: bool = False) -> Iterator[Connection]:
    if sqlite_file(url):
        engine = sqlite_engine(url, connections=1, read_only=read_only)
    else:
        engine = postgres_engine(url, connections=1)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


class _Copy:
    """One copy in progress.

    Args:
        source: reads in one transaction throughout.
        target: writes, in one transaction per :data:`CONVERSATIONS_AT_ONCE`.
        seen: reads the target's state before that transaction.
        names: of both databases, for messages.
    """

    def __init__(
        self, source: Connection, target: Connection, seen: Connection, names: tuple[str, str], progress: StageCallback
    ) -> None:
        self._source, self._target, self._seen = source, target, seen
        self._from, self._to = names
        self._progress = progress
        self._kinds = tuple(kind for kind in compared_tables() if kind.group)
        self._ungrouped = tuple(kind for kind in compared_tables() if not kind.group)

    def run(self) -> CopyResult:
        self._require_alone()
        broken = broken_rules(self._source)
        if broken:
            raise MaintenanceError(f"{self._from} is damaged. {'. '.join(broken)}. Restore a backup of it first.")
        with self._seen.begin():
            self._require_nothing_else()
        resumed = self._copy_ungrouped()
        for ids, share in self._parts():
            with self._seen.begin(), self._target.begin():
                for kind in self._kinds:
                    self._insert_missing(kind, ids)
            self._progress("Copying", share)
        counts = self._compare()
        if self._target.dialect.name == "postgresql":
            with self._target.begin():  # update its planner's statistics
                for kind in compared_tables():
                    self._target.execute(text(f"ANALYZE {kind.name}"))
        return CopyResult(counts, resumed)

    def _require_alone(self) -> None:
        _require_no_server(self._source, self._from)
        with self._target.begin():
            _require_no_server(self._target, self._to)
            if self._target.dialect.name == "postgresql":
                # A lock of the session, not of the transaction.
                alone = self._target.scalar(select(func.pg_try_advisory_lock(_LOCK)))
                if not alone:
                    raise MaintenanceError(f"Another copy to {self._to} is running. Wait for it, or stop it.")

    def _require_nothing_else(self) -> None:
        for ids in _conversations(self._seen):
            known = select(func.count()).select_from(_CONVERSATIONS).where(_ID.in_(ids))
            if self._source.scalar(known) != len(ids):
                raise MaintenanceError(
                    f"{self._to} holds conversations that are not in {self._from}. They are unchanged; create an "
                    "empty database and copy into that."
                )

    def _copy_ungrouped(self) -> bool:
        """Copies the rows that belong to no conversation; returns whether an earlier copy got further than that."""
        with self._seen.begin():
            resumed = self._seen.execute(select(_ID).select_from(_CONVERSATIONS).limit(1)).first() is not None
        for kind in self._ungrouped:  # accounts first: other tables refer to them
            with self._seen.begin(), self._target.begin():
                if not resumed:
                    self._overwrite(kind)  # migrations create rows in every database, such as the local user
            with self._seen.begin(), self._target.begin():
                self._insert_missing(kind, None)
        return resumed

    def _overwrite(self, kind: ComparedTable) -> None:
        for source_row, target_row in side_by_side(kind, rows(self._source, kind), rows(self._seen, kind)):
            if source_row is not None and target_row is not None and source_row != target_row:
                statement = update(kind.clause)
                for name in kind.key:
                    statement = statement.where(kind.clause.c[name] == source_row[kind.names.index(name)])
                self._target.execute(statement.values(dict(zip(kind.names, source_row, strict=True))))

    def _insert_missing(self, kind: ComparedTable, ids: Sequence[str] | None) -> None:
        missing: list[dict[str, object]] = []
        for source_row, target_row in self._pairs(kind, ids):
            if target_row is None and source_row is not None:
                missing.append(dict(zip(kind.names, source_row, strict=True)))
            elif (difference := _difference(kind, source_row, target_row)) is not None:
                raise MaintenanceError(
                    f"{self._to} differs from {self._from}: {difference}. One of them was used since the "
                    "last copy. Nothing was overwritten; create an empty database and copy into that."
                )
            if len(missing) == ROWS_AT_ONCE:
                self._target.execute(insert(kind.clause), missing)
                missing.clear()
        if missing:
            self._target.execute(insert(kind.clause), missing)

    def _compare(self) -> dict[str, int]:
        """Compares every row of both databases once more; returns the counts by table."""
        counts: Counter[str] = Counter()
        with self._seen.begin():
            self._require_nothing_else()
            for kind in self._ungrouped:
                self._count_same(kind, None, counts)
            for ids, share in self._parts():
                for kind in self._kinds:
                    self._count_same(kind, ids, counts)
                self._progress("Comparing every row", share)
        return {kind.name: counts[kind.name] for kind in compared_tables()}

    def _count_same(self, kind: ComparedTable, ids: Sequence[str] | None, counts: Counter[str]) -> None:
        for source_row, target_row in self._pairs(kind, ids):
            if (difference := _difference(kind, source_row, target_row)) is not None:
                raise MaintenanceError(
                    f"The copy is not the same as {self._from}: {difference}. Do not use {self._to}; create an empty "
                    "database and copy into that."
                )
            counts[kind.name] += 1

    def _pairs(self, kind: ComparedTable, ids: Sequence[str] | None) -> Iterator[tuple[Row | None, Row | None]]:
        return side_by_side(kind, rows(self._source, kind, ids, unindexed=True), rows(self._seen, kind, ids))

    def _parts(self) -> Iterator[tuple[list[str], float]]:
        """Yields batches of conversation ids, each with the progress (0 to 1) after it."""
        total = self._source.scalar(select(func.count()).select_from(_CONVERSATIONS)) or 0
        done = 0
        for ids in _conversations(self._source):
            done += len(ids)
            yield ids, done / total


def _conversations(connection: Connection) -> Iterator[list[str]]:
    """All ids in batches, in the database's own collation, which its index uses."""
    some = select(_ID).select_from(_CONVERSATIONS).order_by(_ID).limit(CONVERSATIONS_AT_ONCE)
    ids = list(connection.scalars(some))
    while ids:
        yield ids
        ids = list(connection.scalars(some.where(ids[-1] < _ID)))


def _difference(kind: ComparedTable, source_row: Row | None, target_row: Row | None) -> str | None:
    """Describes the difference of two rows without any user's text; None if they are equal."""
    if source_row is not None and target_row is not None and kind.same(source_row, target_row):
        return None
    row = source_row or target_row
    assert row is not None
    name = f"the {kind.name.replace('_', ' ')} {row[kind.names.index(kind.identity)]}"
    if source_row is None:
        return f"{name} is only there"
    if target_row is None:
        return f"{name} is missing there"
    return f"{name} differs in {', '.join(kind.differing(source_row, target_row))}"


def _require_no_server(connection: Connection, name: str) -> None:
    """Checks that no server uses a PostgreSQL database. SQLite files are claimed instead.

    Raises:
        MaintenanceError: a server is connected.
    """
    if connection.dialect.name != "postgresql":
        return
    servers = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = :server"
    )
    deadline = time.monotonic() + _SERVER_GONE_SECONDS
    while connection.scalar(servers, {"server": SERVER_NAME}):
        if time.monotonic() > deadline:
            raise MaintenanceError(f"A Deskmate server is using {name}. Stop it, then copy again.")
        time.sleep(0.1)
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
