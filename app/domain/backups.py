"""When scheduled backups are due, which of them are kept, and what is wrong with them. Plain data; no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import islice

DAY = timedelta(days=1)
RETRY = timedelta(minutes=30)
"""After a failed backup, until the next attempt."""
_KEEP = re.compile(r"(\d{1,3})/(\d{1,3})")
_NAME = re.compile(r"\.(\d{8}T\d{6})\d{6}Z\.scheduled\.(?:backup|dump)")


@dataclass(frozen=True, slots=True)
class BackupState:
    """The scheduled backups of a database, as all its servers see them."""

    started_at: datetime | None = None  #: the last attempt
    is_running: bool = False
    good_at: datetime | None = None  #: when the last good backup was complete and checked
    good_file: str | None = None
    good_bytes: int | None = None
    good_check: str | None = None  #: ``restored``, or ``read`` if it could not be restored for the check
    failed_at: datetime | None = None  #: the last failure
    error: str | None = None  #: its sentence

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt that ended failed."""
        return self.failed_at is not None and (self.good_at is None or self.good_at < self.failed_at)


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """When backups are made: at a time of the day (in the server's time zone), or every so many hours."""

    at: time | None = None
    every: timedelta | None = None

    @property
    def period(self) -> timedelta:
        return self.every or DAY

    def is_due(self, state: BackupState, now: datetime) -> bool:
        """Whether a backup should start now, if none is running."""
        return self.next_at(state, now) <= now

    def next_at(self, state: BackupState, now: datetime) -> datetime:
        """When the next backup starts; in the past if it is due."""
        started = state.started_at
        if started is None:
            return now
        ended = max((moment for moment in (state.good_at, state.failed_at) if moment is not None), default=None)
        if ended is None or ended < started:  # the process was killed
            return now
        if state.has_failed:
            return ended + min(RETRY, self.period)
        if self.at is None:
            return started + self.period
        return self._next_time_of_day(started, self.at)

    def problem(self, state: BackupState, now: datetime) -> str | None:
        """What an admin must know, as a sentence; None if all is well."""
        if state.has_failed:
            return f"The last backup failed. {state.error}"
        last = state.good_at or state.started_at
        if last is not None and now - last > 2 * self.period:
            return (
                "There is no good backup of the last two periods. Check that a server has been running, and that its "
                "backup folder can be written."
            )
        return None

    @staticmethod
    def _next_time_of_day(after: datetime, at: time) -> datetime:
        local = after.astimezone()
        for days in range(3):
            moment = datetime.combine(local.date() + timedelta(days=days), at).astimezone()
            if moment > after:
                return moment.astimezone(UTC)
        raise AssertionError("a day is shorter than three")


@dataclass(frozen=True, slots=True)
class BackupRetention:
    """How many backups are kept: the newest of each of the last days and weeks, and all of the last 24 hours."""

    daily: int = 7
    weekly: int = 4

    @classmethod
    def parse(cls, text: str) -> BackupRetention:
        """Reads ``7/4``: seven days, four weeks.

        Raises:
            ValueError: it is something else, or keeps nothing.
        """
        match = _KEEP.fullmatch(text.strip())
        if match is None or not any(map(int, match.groups())):
            raise ValueError("must be two numbers such as 7/4, for the newest backups of 7 days and of 4 weeks")
        return cls(int(match[1]), int(match[2]))

    def expired(self, names: Collection[str]) -> set[str]:
        """Returns which of these files may be deleted: never the newest, and none that the schedule has not made.

        Counts days and weeks that have a backup, in UTC: after a pause, what there is stays.
        """
        made = sorted(((moment, name) for name in names if (moment := made_at(name)) is not None), reverse=True)
        if not made:
            return set()
        newest = made[0][0]
        kept = {name for moment, name in made if newest - moment < DAY}
        kept |= _newest_of_each(((moment.date(), name) for moment, name in made), self.daily)
        kept |= _newest_of_each(((moment.isocalendar()[:2], name) for moment, name in made), self.weekly)
        return {name for _, name in made} - kept


def made_at(name: str) -> datetime | None:
    """When a scheduled backup was made, by its file's name; None for other files."""
    match = _NAME.search(name)
    if match is None or match.end() != len(name):
        return None
    try:
        return datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _newest_of_each(newest_first: Iterable[tuple[object, str]], number: int) -> set[str]:
    first: dict[object, str] = {}
    for group, name in newest_first:
        first.setdefault(group, name)
    return set(islice(first.values(), number))
