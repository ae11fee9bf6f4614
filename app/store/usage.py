"""What was done on which day, counted by the database. Of all users; nothing here reads what anybody wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, BigInteger, ColumnElement, Float, Select, String, case, cast, column, func, select, values
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.feedback import Rating
from app.domain.usage import Days, Span, Usage, UsageReport
from app.domain.views import Role
from app.store.database import Database
from app.store.desk_models import Feedback
from app.store.models import Conversation, Message, Turn, UtcDateTime


class UsageRecords:
    """The repository of usage. Without a user: it is for those who run the desk."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, days: Days) -> UsageReport:
        """Each of the days, and all of them together."""

        def work(session: Session) -> UsageReport:
            [total] = _usage(session, [days.whole])
            return UsageReport(days.zone, total, tuple(_usage(session, list(days.each()))))

        return await self._database.read(work)


def _usage(session: Session, spans: Sequence[Span]) -> list[Usage]:
    time = (
        values(column("name", String), column("begins", UtcDateTime), column("ends", UtcDateTime), name="spans")
        .data([(span.name, span.begins, span.ends) for span in spans])
        .cte("time")
    )
    found: dict[str, dict[str, Any]] = {span.name: {} for span in spans}
    for query in (
        _in(time, Conversation.created_at).add_columns(func.count().label("conversations")).group_by(time.c.name),
        _in(time, Message.created_at)
        .where(Message.role == Role.USER, Message.deletion.is_(None))
        .add_columns(func.count().label("messages"))
        .group_by(time.c.name),
        _replies(time),
        _percentiles(time, Turn.ttft_ms, {"ttft_p50_ms": 50, "ttft_p95_ms": 95}),
        _percentiles(time, Turn.tokens_per_second, {"tokens_per_second_p50": 50}),
        _in(time, Feedback.created_at)
        .add_columns(
            _count_if(Feedback.rating == Rating.UP).label("thumbs_up"),
            _count_if(Feedback.rating == Rating.DOWN).label("thumbs_down"),
        )
        .group_by(time.c.name),
    ):
        for row in session.execute(query).mappings():
            found[row["name"]] |= row
    return [Usage(**({"name": name} | counted)) for name, counted in found.items()]


def _in(time: CTE, moment: InstrumentedAttribute[Any]) -> Select[Any]:
    """The rows of a table with the name of the span that each is in; an index of ``moment`` finds them."""
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


def _percentiles(time: CTE, measured: InstrumentedAttribute[Any], percents: dict[str, int]) -> Select[Any]:
    """By nearest rank, the same on both databases: the least value that so many of a hundred do not exceed."""
    ranked = (
        _in(time, Turn.created_at)
        .where(measured > 0)
        .add_columns(
            measured.label("value"),
            func.row_number().over(partition_by=time.c.name, order_by=measured).label("rank"),
            func.count().over(partition_by=time.c.name).label("total"),
        )
        .subquery()
    )
    return select(
        ranked.c.name,
        *(
            func.min(case((ranked.c.rank * 100 >= ranked.c.total * percent, cast(ranked.c.value, Float)))).label(name)
            for name, percent in percents.items()
        ),
    ).group_by(ranked.c.name)


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _total(numbers: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(numbers), 0), BigInteger)  # PostgreSQL sums up to numeric
