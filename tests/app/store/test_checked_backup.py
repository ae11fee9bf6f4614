"""Scheduled backups: restored and checked, whole or nothing, one server at a time, and the last good one stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.backups import BackupPlan, made_at
from app.errors import MaintenanceError
from app.services.backups import Backups
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.database import open_snapshot
from app.store.db.maintenance_models import BackupRun
from app.store.maintenance import checked_backup
from app.store.maintenance.backup_process import BackupReport, run_backup
from app.store.maintenance.backup_runs import BackupRuns, read_state
from app.store.maintenance.checked_backup import PARTIAL, make_checked_backup
from app.store.maintenance.restore import restore
from testing.databases import postgres_programs
from testing.waiting import eventually
from tests.app.conftest import add_user

HOURLY = BackupPlan(every=timedelta(hours=1))


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def url_of(services: Services) -> str:
    return services.settings.resolved_database_url


def left_in(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


async def make(services: Services, folder: Path) -> checked_backup.CheckedBackup:
    return await asyncio.to_thread(make_checked_backup, url_of(services), folder)


def databases(url: str) -> set[str]:
    with open_snapshot(url) as connection:
        return set(connection.scalars(sa.text("SELECT datname FROM pg_database")))


async def test_a_backup_is_restored_as_a_check(services: Services, folder: Path) -> None:
    await add_user(services.database)
    made = await make(services, folder)
    assert left_in(folder) == {made.file.name}
    assert made_at(made.file.name) is not None
    assert made.check == "restored"
    assert made.rows["account"] == 2  # and the local user
    assert made.file.stat().st_mode & 0o077 == 0
    assert made.bytes == made.file.stat().st_size
    if services.settings.database_url is not None:
        assert not {name for name in databases(url_of(services)) if name.startswith("deskmate_check_")}


async def test_a_backup_with_a_row_too_few_is_no_good(
    services: Services, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(services, folder)
    before = left_in(folder)
    whole = restore

    def restore_less(url: str, *rest: Any) -> None:
        whole(url, *rest)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM account"))
        engine.dispose()

    monkeypatch.setattr(checked_backup, "restore", restore_less)
    with pytest.raises(MaintenanceError, match="0 instead of 1 rows of the table account"):
        await make(services, folder)
    assert left_in(folder) == before


async def test_a_database_with_broken_rules_has_no_good_backup(services: Services, folder: Path) -> None:
    broken = sa.text(
        "INSERT INTO conversation (id, user_id, title, settings, created_at, updated_at, tip_message_id) VALUES "
        "('x', (SELECT min(id) FROM account), 'x', '{}', '2026-01-01 00:00:00', '2026-01-01 00:00:00', NULL)"
    )
    message = sa.text(
        "INSERT INTO message (id, conversation_id, role, status, content, position, created_at) VALUES "
        "('m', 'x', 'user', 'complete', 'x', 7, '2026-01-01 00:00:00')"
    )
    await services.database.write(lambda session: (session.execute(broken), session.execute(message)))
    with pytest.raises(MaintenanceError, match="no valid parent"):
        await make(services, folder)
    assert left_in(folder) == set()


async def test_a_full_disk_leaves_nothing(services: Services, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    made = await make(services, folder)
    monkeypatch.setattr(checked_backup, "restore", full)
    with pytest.raises(MaintenanceError, match=r"cannot be written to .*: No space left on device\."):
        await make(services, folder)
    assert left_in(folder) == {made.file.name}


async def test_a_folder_that_cannot_be_made_is_named(services: Services, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MaintenanceError, match="APP_BACKUP_DIR"):
        await make(services, tmp_path / "file" / "backups")


async def test_what_a_killed_run_left_is_deleted_and_nothing_else(services: Services, folder: Path) -> None:
    left = folder / f"20260101T000000000000Z{PARTIAL}"
    left.mkdir(parents=True)
    (left / "deskmate.db.0017.backup.1.unfinished").write_bytes(b"half")
    (folder / "deskmate.db.0017.20200101T000000000000Z.backup").touch()  # made by hand
    made = await make(services, folder)
    assert left_in(folder) == {made.file.name, "deskmate.db.0017.20200101T000000000000Z.backup"}


@pytest.mark.full
async def test_the_process_makes_a_backup_and_deletes_what_has_expired(services: Services, folder: Path) -> None:
    await asyncio.to_thread(folder.mkdir)
    old = [f"d.0018.202001{day:02}T000000000000Z.scheduled.backup" for day in range(1, 29)]
    for name in (*old, "d.0018.20200101T000000000000Z.backup", "notes.txt"):
        (folder / name).touch()
    report = await run_backup(url_of(services), folder, "2/0")
    assert report.error is None
    assert report.warning is None
    assert left_in(folder) == {Path(report.file).name, old[-1], "d.0018.20200101T000000000000Z.backup", "notes.txt"}


@pytest.mark.full
async def test_a_stopped_backup_leaves_what_the_next_one_deletes(services: Services, folder: Path) -> None:
    """Cancelled as by a shutdown: the process and its programs end at once."""
    task = asyncio.create_task(run_backup(url_of(services), folder, "7/4"))
    await eventually(lambda: folder.exists() and any(folder.iterdir()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(name.endswith((PARTIAL, ".scheduled.backup", ".scheduled.dump")) for name in left_in(folder))
    made = await make(services, folder)
    assert not [name for name in left_in(folder) if name.endswith(PARTIAL)]
    assert made.file.exists()


@pytest.mark.slow
async def test_a_backup_ends_with_its_server(services: Services, folder: Path) -> None:
    """The server is killed: its end of the pipe closes, which is all that the process hears."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.store.maintenance.backup_process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(b'{"url": "%s", "folder": "%s", "keep": "7/4"}\n' % (url_of(services).encode(), bytes(folder)))
    process.stdin.close()
    assert await process.wait() == -signal.SIGKILL


# ---- when, and by which server


def backups(services: Services, owner: str, made: Any, **changes: Any) -> Backups:
    settings = services.settings.model_copy(update={"backup_every_hours": 1, **changes})
    return Backups(services.database, settings, owner, made)


class Maker:
    """Counts the backups, which a test lets end."""

    def __init__(self, *reports: BackupReport) -> None:
        self.reports = list(reports)
        self.started = 0
        self.gate = asyncio.Event()

    async def __call__(self, url: str, folder: Path, keep: str) -> BackupReport:
        self.started += 1
        await self.gate.wait()
        return self.reports.pop(0) if self.reports else BackupReport(None, str(folder / "x"), 10, "restored")


async def set_run(services: Services, **values: Any) -> None:
    await services.database.write(lambda session: session.execute(sa.update(BackupRun).values(**values)))


async def test_of_two_servers_one_makes_the_backup(services: Services) -> None:
    maker = Maker()
    one, other = backups(services, "one", maker), backups(services, "other", maker)
    running = [asyncio.create_task(each.make_if_due()) for each in (one, other, one, other)]
    await eventually(lambda: maker.started > 0)
    assert (await other.status()).state.is_running
    assert not await other.make_if_due()
    maker.gate.set()
    assert sorted(await asyncio.gather(*running)) == [False, False, False, True]
    assert maker.started == 1
    status = await other.status()
    assert status.state.good_bytes == 10
    assert status.problem is None
    assert other.last_good > 0
    assert not await one.make_if_due()  # not due
    await set_run(services, started_at=datetime.now(UTC) - timedelta(hours=1))
    assert await other.make_if_due()


async def test_a_server_that_died_is_followed_by_another(services: Services) -> None:
    maker = Maker()
    maker.gate.set()
    runs = BackupRuns(services.database, "dead")
    assert await runs.claim(HOURLY) is not None
    assert not await backups(services, "alive", maker).make_if_due()
    await set_run(services, lease_until=datetime.now(UTC) - timedelta(seconds=1))
    assert await backups(services, "alive", maker).make_if_due()
    assert not await runs.renew()  # if it was only asleep
    await runs.fail("too late")
    assert (await runs.state()).error is None


async def test_a_shutdown_gives_the_lease_back(services: Services) -> None:
    maker = Maker()
    running = asyncio.create_task(backups(services, "one", maker).make_if_due())
    await eventually(lambda: maker.started > 0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    maker.gate.set()
    assert await backups(services, "two", maker).make_if_due()


async def test_a_failure_is_told_and_tried_again_later(services: Services) -> None:
    maker = Maker(BackupReport("The disk is full."))
    maker.gate.set()
    here = backups(services, "one", maker)
    assert await here.make_if_due()
    status = await here.status()
    assert status.problem == "The last backup failed. The disk is full."
    assert here.last_good == 0
    assert not await here.make_if_due()
    past = datetime.now(UTC) - timedelta(minutes=31)
    await set_run(services, started_at=past, failed_at=past)
    assert await here.make_if_due()
    assert (await here.status()).problem is None


async def test_a_bug_is_a_failure_too(services: Services) -> None:
    async def broken(*_: object) -> BackupReport:
        raise RuntimeError("unexpected")

    here = backups(services, "one", broken)
    assert await here.make_if_due()
    assert "unexpected" in ((await here.status()).problem or "")


async def test_an_old_backup_is_told_loudly(services: Services) -> None:
    maker = Maker()
    maker.gate.set()
    here = backups(services, "one", maker)
    await here.make_if_due()
    old = datetime.now(UTC) - timedelta(hours=2, minutes=1)
    await set_run(services, started_at=old, good_at=old)
    assert "no good backup" in ((await here.status()).problem or "")
    assert read_state(url_of(services)).good_at == old


async def test_without_a_schedule_there_are_none(services: Services) -> None:
    maker = Maker()
    here = backups(services, "one", maker, backup_every_hours=None)
    assert not await here.make_if_due()
    assert not (await here.status()).is_scheduled


@pytest.mark.slow
async def test_a_server_makes_its_first_backup_soon(settings: AppSettings, engine: Any, folder: Path) -> None:
    chosen = settings.model_copy(update={"backup_every_hours": 24, "backup_dir": folder})
    services = await Services.open(chosen, engine)
    try:
        await eventually(lambda: folder.exists() and any(made_at(name) for name in left_in(folder)))
        await eventually(lambda: services.backups.last_good > 0)
    finally:
        await services.close()
