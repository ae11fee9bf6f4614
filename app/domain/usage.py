"""Usage per day. Plain data; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.errors import InvalidInput

MAX_DAYS = 366
_FIRST, _LAST = date(1970, 1, 2), date(9998, 12, 30)


@dataclass(frozen=True, slots=True)
class Span:
    """A named time span."""

    name: str
    begins: datetime
    ends: datetime  #: exclusive


@dataclass(frozen=True, slots=True)
class Days:
    """A range of days, both ends included, in a time zone.

    Raises:
        InvalidInput: the range is reversed or too long, or the time zone is unknown.
    """

    first: date
    last: date
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise InvalidInput(f"The last day ({self.last}) is before the first one ({self.first}).")
        count = (self.last - self.first).days + 1
        if count > MAX_DAYS:
            raise InvalidInput(f"These are {count:,} days; at most {MAX_DAYS} are counted at once.")
        if not (self.first >= _FIRST and self.last <= _LAST):
            raise InvalidInput(f"Days are counted from {_FIRST} to {_LAST}.")
        self._zone()

    @property
    def whole(self) -> Span:
        """The whole range as one span."""
        return Span("all", self._midnight(self.first), self._midnight(self.last + timedelta(days=1)))

    def each(self) -> Iterator[Span]:
        """The days as spans. When clocks change, a day has 23 or 25 hours."""
        day = self.first
        while day <= self.last:
            following = day + timedelta(days=1)
            yield Span(day.isoformat(), self._midnight(day), self._midnight(following))
            day = following

    def _midnight(self, day: date) -> datetime:
        return datetime.combine(day, time.min, self._zone()).astimezone(UTC)

    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidInput("Unknown time zone. Use a name such as Europe/Berlin, or UTC.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage of a time span. A percentile is None if nothing was measured."""

    name: str  #: the day, such as 2026-11-21
    conversations: int = 0  #: created
    messages: int = 0  #: sent by users
    replies: int = 0  #: started
    failed: int = 0  #: of ``replies``, failed or interrupted
    users: int = 0  #: users who got a reply; inboxes are none
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  #: of ``prompt_tokens``, from the prefix cache
    completion_tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tokens_per_second_p50: float | None = None
    thumbs_up: int = 0
    thumbs_down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUsage:
    """Tokens of the replies to one user, or of the bot's replies in one inbox."""

    name: str  #: of the user or the inbox
    kind: str  #: user or inbox
    replies: int
    failed: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage of a range of days: in total, per day, and of the accounts with the most tokens."""

    zone: str
    total: Usage
    days: tuple[Usage, ...]
    accounts: tuple[AccountUsage, ...] = ()
