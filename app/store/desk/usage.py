"""Usage per day over all users, counted by the database. Never reads what users wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, BigInteger, ColumnElement, Select, String, case, cast, column, func, select, values
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.feedback import Rating
from app.domain.usage import Days, Span, Usage, UsageReport
from app.domain.views import Role
from app.store.db.database import Database
from app.store.db.desk_models import Feedback
from app.store.db.models import Conversation, Message, Turn, UtcDateTime

#: Histogram resolution of times and speeds: (limit, step) pairs. Rounding down loses at most one hundredth.
_STEPS = ((200, 1), (500, 2), (1000, 5), (2000, 10), (5000, 20), (10_000, 50), (50_000, 200), (200_000, 1000))
_WIDEST = 10_000
_WHOLE = "all"  #: the name of all days together
_TENTHS = 10  #: tokens per second are counted in tenths


class UsageRecords:
    """The repository of usage. Takes no user id: it is for the desk's admins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, days: Days) -> UsageReport:
        """Usage of each day, and of all days together."""
        return await self._database.read(lambda session: _report(session, days))


def _report(session: Session, days: Days) -> UsageReport:
    spans = list(days.each())
    time = _spans(spans)
    found: dict[str, dict[str, Any]] = {span.name: {} for span in spans}
    for query in (
        _in(time, Conversation.created_at).add_columns(func.count().label("conversations")).group_by(time.c.name),
        _in(time, Message.created_at)
        # No conditions except the time: with others, SQLite reads every message and looks up its day.
        .add_columns(_count_if((Message.role == Role.USER) & Message.deletion.is_(None)).label("messages"))
        .group_by(time.c.name),
        _replies(time),
        _in(time, Feedback.created_at)
        .add_columns(
            _count_if(Feedback.rating == Rating.UP).label("thumbs_up"),
            _count_if(Feedback.rating == Rating.DOWN).label("thumbs_down"),
        )
        .group_by(time.c.name),
    ):
        for row in session.execute(query).mappings():
            found[row["name"]] |= row
    whole: dict[str, Any] = {
        name: sum(counted.get(name, 0) for counted in found.values())
        for name in Usage.__dataclass_fields__
        if Usage.__dataclass_fields__[name].default == 0
    }
    turns = _in(_spans([days.whole]), Turn.created_at).join(Conversation, Conversation.id == Turn.conversation_id)
    whole["users"] = session.scalar(turns.with_only_columns(func.count(Conversation.user_id.distinct()))) or 0
    waits, speeds = (
        _distribution(session, time, Turn.ttft_ms, 1),
        _distribution(session, time, Turn.tokens_per_second, _TENTHS),
    )
    for name, counted in (*found.items(), (_WHOLE, whole)):
        counted["name"] = name
        counted["ttft_p50_ms"] = _percentile(waits.get(name), 50)
        counted["ttft_p95_ms"] = _percentile(waits.get(name), 95)
        speed = _percentile(speeds.get(name), 50)
        counted["tokens_per_second_p50"] = speed / _TENTHS if speed is not None else None
    return UsageReport(days.zone, Usage(**whole), tuple(Usage(**counted) for counted in found.values()))


def _spans(spans: Sequence[Span]) -> CTE:
    return (
        values(column("name", String), column("begins", UtcDateTime), column("ends", UtcDateTime), name="spans")
        .data([(span.name, span.begins, span.ends) for span in spans])
        .cte("time")
    )


def _in(time: CTE, moment: InstrumentedAttribute[Any]) -> Select[Any]:
    """The rows of a table with the name of the span that each falls into; uses an index on ``moment``."""
    return select(time.c.name).join_from(time, moment.class_, (moment >= time.c.begins) & (moment < time.c.ends))


def _replies(time: CTE) -> Select[Any]:
    return (
        _in(time, Turn.created_at)
        .join(Conversation, Conversation.id == Turn.conversation_id)
        .add_columns(
            func.count().label("replies"),
            _count_if(Turn.status.in_(("error", "interrupted"))).label("failed"),
            func.count(Conversation.user_id.distinct()).label("users"),
            _total(Turn.prompt_tokens).label("prompt_tokens"),
            _total(Turn.cached_prompt_tokens).label("cached_prompt_tokens"),
            _total(Turn.completion_tokens).label("completion_tokens"),
        )
        .group_by(time.c.name)
    )


def _distribution(
    session: Session, time: CTE, measured: InstrumentedAttribute[Any], scale: int
) -> dict[str, Counter[int]]:
    """A histogram of the measured values, by day and over all days, in steps of ``_STEPS``.

    Counts instead of sorting: sorting a year's values would take a minute.
    """
    value = cast(measured * scale, BigInteger)
    width = case(*((value < limit, step) for limit, step in _STEPS), else_=_WIDEST)
    rows = _in(time, Turn.created_at).where(measured > 0)
    buckets = rows.add_columns((value - value % width).label("least")).subquery()
    counts = select(buckets.c.name, buckets.c.least, func.count()).group_by(buckets.c.name, buckets.c.least)
    found: dict[str, Counter[int]] = {}
    for name, least, number in session.execute(counts):
        for counted in (name, _WHOLE):
            found.setdefault(counted, Counter())[least] += number
    return found


def _percentile(counts: Counter[int] | None, percent: int) -> float | None:
    """The nearest-rank percentile: the least value that ``percent`` per cent of the values do not exceed."""
    if counts is None:
        return None
    total, rank = counts.total(), 0
    for value in sorted(counts):
        rank += counts[value]
        if rank * 100 >= total * percent:
            return float(value)
    return None


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _total(numbers: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(numbers), 0), BigInteger)  # PostgreSQL sums up to numeric
