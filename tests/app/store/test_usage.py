"""What was done on which day, counted by the database; and days as they are where people live."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from app.domain.feedback import Opinion, Rating
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.usage import Days, Usage
from app.errors import InvalidInput
from app.services.container import Services
from app.store.db.models import Conversation, Message, Turn
from testing.fake_engine import FakeEngine

MONDAY = datetime(2026, 3, 2, 12, tzinfo=UTC)


def add_reply(
    session: Session, user_id: str, at: datetime, *, ttft_ms: float | None = 100.0, status: str = "complete"
) -> str:
    """A conversation of a message and a reply, begun at ``at``; returns the reply's id."""
    conversation = Conversation(
        id=new_id(), user_id=user_id, title="t", settings={}, tip_message_id=None, created_at=at, updated_at=at
    )
    session.add(conversation)
    session.flush()
    parent = None
    for position, role in enumerate(("user", "assistant")):
        message = Message(
            id=new_id(),
            conversation_id=conversation.id,
            parent_id=parent,
            role=role,
            status=status if role == "assistant" else "complete",
            content="words",
            position=position,
            created_at=at,
        )
        session.add(message)
        session.flush()
        parent = message.id
    session.add(
        Turn(
            id=new_id(),
            conversation_id=conversation.id,
            message_id=parent,
            status=status,
            model="m",
            params={},
            owner="o",
            created_at=at,
            heartbeat_at=at,
            checkpoint_offset=5,
            prompt_tokens=10,
            cached_prompt_tokens=4,
            completion_tokens=7,
            ttft_ms=ttft_ms,
            tokens_per_second=20.0 if ttft_ms else None,
        )
    )
    session.flush()
    assert parent is not None
    return parent


async def test_each_day_and_all_together(services: Services, stranger: str) -> None:
    def work(session: Session) -> None:
        for number in range(1, 21):
            add_reply(session, ME, MONDAY + timedelta(minutes=number), ttft_ms=float(number))
        add_reply(session, stranger, MONDAY, ttft_ms=None, status="error")
        add_reply(session, ME, MONDAY + timedelta(days=2), ttft_ms=500)
        add_reply(session, ME, MONDAY + timedelta(days=3))  # not asked for

    await services.database.write(work)
    report = await services.desk.usage.report(Days(date(2026, 3, 2), date(2026, 3, 4)))
    monday, tuesday, wednesday = report.days
    assert monday == Usage(
        name="2026-03-02",
        conversations=21,
        messages=21,
        replies=21,
        failed=1,
        users=2,
        prompt_tokens=210,
        cached_prompt_tokens=84,
        completion_tokens=147,
        ttft_p50_ms=10.0,
        ttft_p95_ms=19.0,
        tokens_per_second_p50=20.0,
    )
    assert tuesday == Usage(name="2026-03-03")
    assert (wednesday.replies, wednesday.ttft_p50_ms, wednesday.ttft_p95_ms) == (1, 500.0, 500.0)
    total = report.total
    assert (total.conversations, total.replies, total.users, total.completion_tokens) == (22, 22, 2, 154)
    assert (total.ttft_p50_ms, total.ttft_p95_ms) == (11.0, 20.0)


async def test_what_happens_now_is_counted_today(services: Services, engine: FakeEngine) -> None:
    ref = await services.turns.start(ME, text="hi")
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    await services.chats.feedback.put(ME, ref.message_id, Opinion(Rating.DOWN))
    today = datetime.now(UTC).date()
    report = await services.desk.usage.report(Days(today - timedelta(days=1), today + timedelta(days=1)))
    total = report.total
    assert (total.conversations, total.messages, total.replies, total.users) == (1, 1, 1, 1)
    assert (total.thumbs_up, total.thumbs_down) == (0, 1)
    assert (total.ttft_p50_ms, total.completion_tokens) == (50.0, 4)
    assert sum(day.messages for day in report.days) == 1


async def test_days_are_those_of_the_time_zone(services: Services) -> None:
    """In Berlin, clocks went forward at two in the morning of 29 March 2026: that day had 23 hours."""
    midnight = datetime(2026, 3, 28, 23, tzinfo=UTC)

    def work(session: Session) -> None:
        for moment in (midnight, midnight + timedelta(hours=23) - timedelta(seconds=1), midnight + timedelta(hours=23)):
            add_reply(session, ME, moment)

    await services.database.write(work)
    report = await services.desk.usage.report(Days(date(2026, 3, 28), date(2026, 3, 30), "Europe/Berlin"))
    assert [day.replies for day in report.days] == [0, 2, 1]
    in_utc = await services.desk.usage.report(Days(date(2026, 3, 28), date(2026, 3, 30)))
    assert [day.replies for day in in_utc.days] == [1, 2, 0]


@pytest.mark.parametrize(
    ("first", "last", "zone", "says"),
    [
        ("2026-03-02", "2026-03-01", "UTC", "before the first"),
        ("2025-03-01", "2026-03-02", "UTC", "367 days"),
        ("2026-03-01", "2026-03-02", "Middle/Earth", "time zone"),
        ("2026-03-01", "2026-03-02", "../../etc/passwd", "time zone"),
        ("2026-03-01", "2026-03-02", "", "time zone"),
        ("0001-01-01", "0001-01-02", "Asia/Tokyo", "counted from"),
    ],
)
def test_days_that_make_no_sense_are_refused(first: str, last: str, zone: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Days(date.fromisoformat(first), date.fromisoformat(last), zone)
