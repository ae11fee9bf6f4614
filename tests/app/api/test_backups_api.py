"""What admins, monitoring and the doctor are told about scheduled backups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa

from app.cli.doctor import _backups
from app.domain.roles import UserRole
from app.store.db.maintenance_models import BackupRun
from app.store.maintenance.backup_process import BackupReport
from tests.app.desk import METRICS_TOKEN, Desk, desk

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def make(url: str, folder: Path, keep: str) -> BackupReport:
    return BackupReport(None, str(folder / "desk.backup"), 4096, "restored")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.services.backups.Backups.run", lambda self: nothing())
        async with desk(tmp_path_factory.mktemp("data"), gradio=False, backup_every_hours=6) as running:
            running.services.backups._make = make
            for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
                await running.add(name, role)
            yield running


async def nothing() -> None:
    """Makes no backups: the tests do."""


async def metric(here: Desk) -> float:
    async with here.client() as http:
        answer = await http.get("/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    (line,) = [one for one in answer.text.splitlines() if one.startswith("deskmate_last_backup_timestamp_seconds ")]
    return float(line.split()[1])


async def test_backups_are_told_to_admins_monitoring_and_the_doctor(here: Desk) -> None:
    ada = here.clients["ada"]
    told = (await ada.get("/api/desk/backups")).json()
    assert (told["scheduled"], told["last_good_at"], told["problem"]) == (True, None, None)
    assert await metric(here) == 0
    assert "none was made yet" in _backups(here.services.settings)

    before = datetime.now(UTC).timestamp()
    assert await here.services.backups.make_if_due()
    told = (await ada.get("/api/desk/backups")).json()
    assert told["last_good_file"].endswith("/backups/desk.backup")
    assert (told["last_good_bytes"], told["restored"], told["running"]) == (4096, True, False)
    assert await metric(here) >= before
    assert "the last good one is of" in _backups(here.services.settings)

    old = datetime.now(UTC) - timedelta(hours=13)
    late = sa.update(BackupRun).values(started_at=old, good_at=old)
    await here.services.database.write(lambda session: session.execute(late))  # by another server
    assert "two periods" in (await ada.get("/api/desk/backups")).json()["problem"]
    assert await metric(here) == pytest.approx(old.timestamp(), abs=1)
    assert "ATTENTION" in _backups(here.services.settings)


@pytest.mark.parametrize("name", ["ben", "cyd"])
async def test_where_backups_are_is_for_admins(here: Desk, name: str) -> None:
    assert (await here.clients[name].get("/api/desk/backups")).status_code == 403
