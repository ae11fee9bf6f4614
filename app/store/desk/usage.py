"""Usage per day over all users and inboxes, counted by the database. Never reads what users wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, BigInteger, ColumnElement, Select, String, case, cast, column, func, select, values
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.feedback import Rating
from app.domain.usage import AccountUsage, Days, Span, Usage, UsageReport
from app.domain.views import Role
from app.store.db.case_models import Inbox
from app.store.db.database import Database
from app.store.db.desk_models import Feedback
from app.store.db.models import Account, Conversation, Message, Turn, UtcDateTime
from app.store.db.rows import shown_name

#: Histogram resolution of times and speeds: (limit, step) pairs. Rounding down loses at most one hundredth.
_STEPS = ((200, 1), (500, 2), (1000, 5), (2000, 10), (5000, 20), (10_000, 50), (50_000, 200), (200_000, 1000))
_WIDEST = 10_000
_WHOLE = "all"  #: the name of all days together
_COUNTED = ("replies", "failed", "prompt_tokens", "cached_prompt_tokens", "completion_tokens")
MAX_ACCOUNTS = 100
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
    turns = _with_owner(_in(_spans([days.whole]), Turn.created_at))
    whole["users"] = session.scalar(turns.with_only_columns(_users())) or 0
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
    each = tuple(Usage(**counted) for counted in found.values())
    return UsageReport(days.zone, Usage(**whole), each, _accounts(session, turns))


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
    turns = _with_owner(_in(time, Turn.created_at))
    return turns.add_columns(*_tokens(), _users().label("users")).group_by(time.c.name)


def _accounts(session: Session, turns: Select[Any]) -> tuple[AccountUsage, ...]:
    """The users and inboxes of these turns, those with the most tokens first."""
    owner = Conversation.user_id
    tokens = func.sum(func.coalesce(Turn.prompt_tokens, 0) + func.coalesce(Turn.completion_tokens, 0))
    sums = turns.with_only_columns(owner.label("id"), Inbox.name.label("inbox"), *_tokens()).group_by(owner, Inbox.name)
    most = sums.order_by(tokens.desc(), owner).limit(MAX_ACCOUNTS).subquery()
    counted = session.execute(
        select(most, shown_name(Account).label("user")).outerjoin(Account, Account.id == most.c.id)
    ).mappings()
    found = [
        AccountUsage(
            name=row["inbox"] or row["user"] or "",
            kind="user" if row["inbox"] is None else "inbox",
            **{name: row[name] for name in _COUNTED},
        )
        for row in counted
    ]
    return tuple(sorted(found, key=lambda each: (-each.prompt_tokens - each.completion_tokens, each.name)))


def _with_owner(turns: Select[Any]) -> Select[Any]:
    """The turns with the conversation's owner, and with the inbox if it is one's account."""
    return turns.join(Conversation, Conversation.id == Turn.conversation_id).outerjoin(
        Inbox, Inbox.user_id == Conversation.user_id
    )


def _users() -> ColumnElement[int]:
    return func.count(case((Inbox.id.is_(None), Conversation.user_id)).distinct())


def _tokens() -> tuple[ColumnElement[int], ...]:
    return (
        func.count().label("replies"),
        _count_if(Turn.status.in_(("error", "interrupted"))).label("failed"),
        _total(Turn.prompt_tokens).label("prompt_tokens"),
        _total(Turn.cached_prompt_tokens).label("cached_prompt_tokens"),
        _total(Turn.completion_tokens).label("completion_tokens"),
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
