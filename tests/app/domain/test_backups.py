"""When scheduled backups are due, which are kept, and what is told about them."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.domain.backups import RETRY, BackupPlan, BackupRetention, BackupState, made_at
from app.settings import AppSettings

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(params=["UTC", "America/New_York", "Pacific/Kiritimati"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    clock.tzset()
    yield request.param
    monkeypatch.undo()
    clock.tzset()


def named(moment: datetime, ending: str = "backup") -> str:
    return f"deskmate.db.0017.{moment:%Y%m%dT%H%M%S}000000Z.scheduled.{ending}"


def good(started: datetime, took: timedelta = timedelta(minutes=1)) -> BackupState:
    return BackupState(started_at=started, good_at=started + took)


def test_the_first_is_due_at_once() -> None:
    for plan in (BackupPlan(at=time(2, 30)), BackupPlan(every=6 * HOUR)):
        assert plan.is_due(BackupState(), NOW)


def test_every_so_many_hours_from_start_to_start() -> None:
    plan = BackupPlan(every=6 * HOUR)
    assert not plan.is_due(good(NOW - 6 * HOUR + timedelta(seconds=1)), NOW)
    assert plan.is_due(good(NOW - 6 * HOUR), NOW)


def test_at_a_time_of_the_day_on_the_servers_clock(zone: str) -> None:
    plan = BackupPlan(at=time(2, 30))
    first = plan.next_at(good(NOW), NOW)
    assert first.astimezone().time() == time(2, 30)
    assert NOW < first <= NOW + timedelta(days=1)
    assert plan.is_due(good(first - timedelta(hours=3)), first)
    assert not plan.is_due(good(first), first + 23 * HOUR)
    assert plan.next_at(good(first), first).astimezone().date() == first.astimezone().date() + timedelta(days=1)


def test_a_day_without_that_hour_has_a_backup_too(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    plan = BackupPlan(at=time(2, 30))
    moment, seen = datetime(2026, 3, 6, 12, tzinfo=UTC), []
    for _ in range(5):
        moment = plan.next_at(good(moment), moment)
        seen.append(moment.astimezone().date())
    assert [day.day for day in seen] == list(range(seen[0].day, seen[0].day + 5))


def test_a_failure_is_followed_by_another_attempt_soon() -> None:
    plan = BackupPlan(at=time(2, 30))
    state = BackupState(started_at=NOW, failed_at=NOW + HOUR, error="The disk is full.")
    assert not plan.is_due(state, NOW + HOUR + RETRY - timedelta(seconds=1))
    assert plan.is_due(state, NOW + HOUR + RETRY)
    assert plan.problem(state, NOW) == "The last backup failed. The disk is full."


def test_a_killed_run_is_followed_by_another_at_once() -> None:
    killed = BackupState(started_at=NOW, good_at=NOW - HOUR, failed_at=NOW - 2 * HOUR)
    assert BackupPlan(at=time(2, 30)).is_due(killed, NOW)


def test_two_periods_without_a_good_one_are_told() -> None:
    plan = BackupPlan(every=6 * HOUR)
    assert plan.problem(BackupState(), NOW) is None
    assert plan.problem(good(NOW - 12 * HOUR), NOW) is None
    assert plan.problem(good(NOW - 13 * HOUR), NOW) is not None
    assert plan.problem(BackupState(started_at=NOW - 13 * HOUR), NOW) is not None
    recovered = BackupState(started_at=NOW, failed_at=NOW - HOUR, good_at=NOW, error="x")
    assert plan.problem(recovered, NOW) is None


def test_the_newest_of_days_and_weeks_are_kept() -> None:
    names = [named(NOW - timedelta(hours=6 * number)) for number in range(4 * 60)]
    kept = set(names) - BackupRetention(7, 4).expired(names)
    moments = sorted((made_at(name) or NOW for name in kept), reverse=True)
    assert [moment for moment in moments if NOW - moment < timedelta(days=1)] == [NOW - n * 6 * HOUR for n in range(4)]
    assert len({moment.date() for moment in moments}) == 9  # seven days, and two weeks that end before them
    assert len({moment.isocalendar()[:2] for moment in moments}) == 4


def test_other_files_are_never_deleted() -> None:
    others = [
        "deskmate.db.0017.20200101T000000000000Z.backup",
        "deskmate.db.0017.20200101T000000000000Z.scheduled.backup.txt",
        "deskmate.db.0017.20209901T000000000000Z.scheduled.backup",
        "20200101T000000000000Z.scheduled.partial",
        "notes.txt",
    ]
    assert BackupRetention(1, 0).expired([*others, named(NOW), named(NOW - timedelta(days=9), "dump")]) == {
        named(NOW - timedelta(days=9), "dump")
    }


@given(st.lists(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), unique=True), st.integers(0, 9))
def test_the_newest_is_never_deleted(moments: list[datetime], daily: int) -> None:
    names = {named(moment) for moment in moments}
    kept = names - BackupRetention(daily, 1).expired(names)
    assert max(names, default=None) == max(kept, default=None)
    assert not BackupRetention(daily, 1).expired(kept)  # deleting again deletes nothing


@pytest.mark.parametrize("text", ["", "7", "7/", "/4", "0/0", "7/4/1", "-1/4", "a/b", "1000/1"])
def test_what_is_no_retention_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 7/4"):
        BackupRetention.parse(text)


@pytest.mark.parametrize(
    "changes",
    [{"backup_at": "02:30", "backup_every_hours": 6}, {"backup_at": "25:00"}, {"backup_every_hours": 0}],
)
def test_settings_that_contradict_themselves_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        AppSettings(_env_file=None, data_dir=tmp_path, **changes)


def test_settings_make_the_plan(tmp_path: Path) -> None:
    given: dict[str, Any] = {"_env_file": None, "data_dir": tmp_path}
    assert AppSettings(**given, backup_at="").backup_plan is None
    assert AppSettings(**given, backup_at="02:30").backup_plan == BackupPlan(at=time(2, 30))
    chosen = AppSettings(**given, backup_every_hours="6")
    assert chosen.backup_plan == BackupPlan(every=6 * HOUR)
    assert chosen.backup_folder == tmp_path / "backups"
