"""Scheduled backups: one server at a time makes them, all know when the last good one was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.domain.backups import BackupPlan, BackupState
from app.errors import StorageUnavailable
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.maintenance.backup_process import BackupReport, run_backup
from app.store.maintenance.backup_runs import LEASE_SECONDS, BackupRuns

_log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
"""Between two looks at whether a backup is due."""
RENEW_SECONDS = LEASE_SECONDS / 4

Make = Callable[[str, Path, str], Awaitable[BackupReport]]
"""Makes a backup; see :func:`app.store.maintenance.backup_process.run_backup`."""


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """What admins see of the scheduled backups."""

    is_scheduled: bool
    folder: str
    state: BackupState
    next_at: datetime | None  #: None without a schedule
    problem: str | None  #: a sentence that must not be overlooked


class Backups:
    """The scheduled backups of this server's database.

    Args:
        owner: id of this start of the process.
    """

    def __init__(self, database: Database, settings: AppSettings, owner: str, make: Make = run_backup) -> None:
        self._runs = BackupRuns(database, owner)
        self._url = settings.resolved_database_url
        self._folder = settings.backup_folder
        self._keep = settings.backup_keep
        self._make = make
        self.plan: BackupPlan | None = settings.backup_plan
        self.last_good: float = 0.0  #: Unix time of the last good backup, as last read; 0: none

    async def status(self) -> BackupStatus:
        """The present state.

        Raises:
            StorageUnavailable: the database does not respond.
        """
        state, now = await self._state(), datetime.now(UTC)
        folder = str(self._folder)
        if self.plan is None:
            return BackupStatus(False, folder, state, None, None)
        next_at = None if state.is_running else max(now, self.plan.next_at(state, now))
        return BackupStatus(True, folder, state, next_at, self.plan.problem(state, now))

    async def run(self) -> None:
        """Makes backups when they are due, until it is cancelled. Survives an unavailable database."""
        while True:
            with suppress(StorageUnavailable):  # logged by the database layer
                await self.make_if_due()
            await asyncio.sleep(POLL_SECONDS)

    async def make_if_due(self) -> bool:
        """Makes a backup if one is due and no other server makes it; returns whether it did.

        Raises:
            StorageUnavailable: the database does not respond.
        """
        plan = self.plan
        state = await self._state()
        if plan is None or state.is_running or not plan.is_due(state, datetime.now(UTC)):
            return False
        before = await self._runs.claim(plan)
        if before is None:
            return False
        try:
            report = await self._make_under_lease()
        except asyncio.CancelledError:
            with suppress(StorageUnavailable):
                await asyncio.shield(self._runs.release(before))
            raise
        except Exception as error:  # recorded like any other failure, and the next attempt comes
            _log.exception("a scheduled backup failed")
            report = BackupReport(f"{type(error).__name__}: {error}. See the server's log.")
        if report.error is not None:
            _log.error("the scheduled backup failed: %s", report.error)
            await self._runs.fail(report.error)
            return True
        if report.warning is not None:
            _log.warning("%s", report.warning)
        await self._runs.succeed(report.file, report.bytes, report.check)
        _log.info("the backup %s is good (%s as a check)", report.file, report.check)
        await self._state()
        return True

    async def _make_under_lease(self) -> BackupReport:
        renewing = asyncio.create_task(self._renew())
        try:
            return await self._make(self._url, self._folder, self._keep)
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(StorageUnavailable):
                if not await self._runs.renew():
                    _log.warning("another server has begun a backup, because this one was too slow to renew its lease")

    async def _state(self) -> BackupState:
        state = await self._runs.state()
        self.last_good = state.good_at.timestamp() if state.good_at is not None else 0.0
        return state
