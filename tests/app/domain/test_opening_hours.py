"""When people answer: local times of a week, also where the clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.opening_hours import is_open, opens_at, zone

BERLIN = "Europe/Berlin"
WEEKDAYS = [{"day": day, "from": "09:00", "to": "17:00"} for day in range(5)]


def at(text: str, there: str = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(there))


@pytest.mark.parametrize(
    ("now", "open_", "opens"),
    [
        ("2026-11-26T09:00", True, None),
        ("2026-11-26T16:59:59", True, None),
        ("2026-11-26T17:00", False, "2026-11-27T09:00"),
        ("2026-11-27T17:00", False, "2026-11-30T09:00"),  # a Friday evening
        ("2026-11-26T08:59:59", False, "2026-11-26T09:00"),
        ("2026-03-27T18:00", False, "2026-03-30T09:00"),  # over the change to summer time
        ("2026-10-23T18:00", False, "2026-10-26T09:00"),  # and back
    ],
)
def test_a_week_of_office_hours(now: str, open_: bool, opens: str | None) -> None:
    assert is_open(WEEKDAYS, BERLIN, at(now)) is open_
    assert opens_at(WEEKDAYS, BERLIN, at(now)) == (at(opens) if opens else None)


def test_no_hours_are_always() -> None:
    assert is_open([], BERLIN, at("2026-11-26T03:00"))
    assert opens_at([], BERLIN, at("2026-11-26T03:00")) is None


def test_a_visitor_in_another_zone_asks_at_the_same_moment() -> None:
    assert is_open(WEEKDAYS, BERLIN, at("2026-11-26T03:30", "America/New_York"))
    assert opens_at(WEEKDAYS, BERLIN, at("2026-11-26T02:00", "America/New_York")) == at("2026-11-26T09:00")


def test_hours_over_midnight_and_to_the_end_of_the_day() -> None:
    night = [{"day": 6, "from": "22:00", "to": "06:00"}]
    assert is_open(night, BERLIN, at("2026-11-30T05:59"))  # a Monday
    assert not is_open(night, BERLIN, at("2026-11-30T06:00"))
    late = [{"day": 0, "from": "18:00", "to": "24:00"}]
    assert is_open(late, BERLIN, at("2026-11-30T23:59"))
    assert not is_open(late, BERLIN, at("2026-12-01T00:00"))


def test_an_unknown_zone_is_utc() -> None:
    assert [zone(name).key for name in (None, "", "Mars/Olympus", "../etc/passwd", "Europe", BERLIN)] == ["UTC"] * 5 + [
        BERLIN
    ]


@given(st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2027, 1, 1)))
def test_the_next_opening_is_the_first_open_moment_within_a_week(naive: datetime) -> None:
    now = naive.replace(tzinfo=UTC)
    opens = opens_at(WEEKDAYS, BERLIN, now)
    if opens is None:
        assert is_open(WEEKDAYS, BERLIN, now)
        return
    assert now < opens <= now + timedelta(days=7)
    assert is_open(WEEKDAYS, BERLIN, opens)
    assert not is_open(WEEKDAYS, BERLIN, opens - timedelta(seconds=1))
