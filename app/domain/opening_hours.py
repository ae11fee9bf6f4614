"""Opening hours of an inbox: the times of a week, in its time zone, at which people answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_DAYS_AHEAD = 8  # the next opening of a weekly plan is at most a week away
MIDNIGHT = "24:00"


def is_open(hours: Sequence[Mapping[str, Any]], time_zone: str, now: datetime) -> bool:
    """Whether people answer at ``now``.

    Args:
        hours: ``{"day": 0 to 6 (0 is Monday), "from": "09:00", "to": "17:00"}``; none is always. ``24:00`` is the day's
            end, and hours that end before they begin end on the next day.
        time_zone: of ``hours``, as in the IANA's database.
        now: with its zone.
    """
    return not hours or any(start <= now < end for start, end in _intervals(hours, time_zone, now))


def opens_at(hours: Sequence[Mapping[str, Any]], time_zone: str, now: datetime) -> datetime | None:
    """When people answer next, in UTC; None if they answer now."""
    if is_open(hours, time_zone, now):
        return None
    return min((start for start, _ in _intervals(hours, time_zone, now) if start > now), default=None)


def zone(name: str | None, default: str = "UTC") -> ZoneInfo:
    """The time zone of this name; ``default`` for one that is not known."""
    try:
        return ZoneInfo(name) if name else ZoneInfo(default)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a name may also be a folder of the database
        return ZoneInfo(default)


def _intervals(
    hours: Sequence[Mapping[str, Any]], time_zone: str, now: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """The open hours from yesterday on, in UTC: local times, whatever the clock's changes in between."""
    there = zone(time_zone)
    first = now.astimezone(there).date() - timedelta(days=1)
    for offset in range(_DAYS_AHEAD + 2):
        day = first + timedelta(days=offset)
        for one in hours:
            if one["day"] == day.weekday():
                ends_next_day = one["to"] != MIDNIGHT and one["to"] <= one["from"]
                end_day = day + timedelta(days=1) if ends_next_day else day
                yield _moment(day, one["from"], there), _moment(end_day, one["to"], there)


def _moment(day: date, text: str, there: ZoneInfo) -> datetime:
    if text == MIDNIGHT:
        day, text = day + timedelta(days=1), "00:00"
    return datetime.combine(day, time.fromisoformat(text), there).astimezone(UTC)
