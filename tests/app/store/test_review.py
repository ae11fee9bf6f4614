"""Replies that somebody should look at: which they are, in which order, and who looked."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from app.domain.feedback import Opinion, Rating, Reason
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.review import Flag, ReviewState
from app.domain.usage import Span
from app.errors import InvalidInput, NotFound
from app.services.container import Services
from app.store.db.models import Message, Turn
from engine import EngineError
from testing.fake_engine import FakeEngine
from tests.app.store.test_conversations import chat
from tests.app.store.test_usage import MONDAY, add_reply

WEEK = Span("week", MONDAY - timedelta(days=3), MONDAY + timedelta(days=4))
EVER = Span("ever", MONDAY - timedelta(days=9), MONDAY + timedelta(days=36500))


async def listed(services: Services, span: Span = EVER, **asked: object) -> list[tuple[str, tuple[Flag, ...]]]:
    page = await services.desk.reviews.list(span, **asked)  # type: ignore[arg-type]
    return [(item.reply, item.flags) for item in page.items]


async def test_replies_that_left_a_question_unanswered(services: Services, engine: FakeEngine) -> None:
    await chat(services, "all is well")
    engine.say("broken", fail_at=1, error=EngineError("Out of memory."))
    await chat(services, "one that fails")
    engine.say("")
    await chat(services, "one without a word")
    conversation_id = await chat(services, "once more, please")
    first = (await services.conversations.get(ME, conversation_id)).messages[-1]
    engine.say("better")
    again = await services.turns.regenerate(ME, first.id)
    async for _ in services.turns.events(ME, again.turn_id):
        pass
    assert await listed(services) == [
        ("Hello, world.", (Flag.ASKED_AGAIN,)),
        ("", (Flag.EMPTY,)),
        ("broken", (Flag.FAILED,)),
    ]
    await services.chats.feedback.put(ME, again.message_id, Opinion(Rating.UP))
    assert len(await listed(services)) == 3
    # The one who did not like it changes their mind.
    await services.chats.feedback.put(ME, again.message_id, Opinion(Rating.DOWN, (Reason.WRONG,), "No."))
    assert (await listed(services))[0] == ("better", (Flag.LOW_RATED,))
    assert await listed(services, flags=[Flag.EMPTY]) == [("", (Flag.EMPTY,))]
    await services.chats.feedback.remove(ME, again.message_id)
    assert len(await listed(services)) == 3


async def test_one_that_was_interrupted_is_listed_until_it_goes_on(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("begun", " and ended", gates={1: gate})
    ref = await services.turns.start(ME, text="a long one")
    events = services.turns.events(ME, ref.turn_id)
    await anext(events)
    await services.turns.stop(ME, ref.turn_id)
    assert await listed(services) == [], "who stops a reply does not miss an answer"

    def interrupt(session: Session) -> None:
        session.get_one(Turn, ref.turn_id).status = "interrupted"
        session.get_one(Message, ref.message_id).status = "interrupted"

    await services.database.write(interrupt)
    assert [flags for _, flags in await listed(services)] == [(Flag.INTERRUPTED,)]
    engine.say("rest")
    await services.turns.resume(ME, ref.message_id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert await listed(services) == []


async def test_pages_follow_one_another(services: Services, stranger: str) -> None:
    def work(session: Session) -> list[str]:
        made = [add_reply(session, stranger, MONDAY + timedelta(hours=n // 3), status="error") for n in range(12)]
        add_reply(session, ME, MONDAY - timedelta(days=4), status="error")  # another week
        add_reply(session, ME, MONDAY)
        return made

    made = await services.database.write(work)
    found: list[str] = []
    cursor = None
    while True:
        page = await services.desk.reviews.list(WEEK, limit=5, cursor=cursor)
        assert len(page.items) <= 5
        found += [item.message_id for item in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert found == made[::-1]
    for nonsense in ("x", "2026-01-01T00:00:00+00:00 x", f"2026-01-01T00:00:00 {new_id()}", "9" * 90):
        with pytest.raises(InvalidInput, match="cursor"):
            await services.desk.reviews.list(WEEK, cursor=nonsense)


async def test_an_exchange_shows_what_is_around_a_reply_and_no_other(services: Services, engine: FakeEngine) -> None:
    conversation_id = await chat(services, "first")
    engine.say("wrong")
    await chat(services, "second", conversation_id)
    await chat(services, "third", conversation_id)
    messages = (await services.conversations.get(ME, conversation_id)).messages
    wrong = messages[3]
    reviews = services.desk.reviews
    with pytest.raises(NotFound):
        await reviews.exchange(wrong.id)
    with pytest.raises(NotFound):
        await reviews.mark(ME, wrong.id, reviewed=True)
    await services.chats.feedback.put(ME, wrong.id, Opinion(Rating.DOWN, (Reason.WRONG,), "It is not."))
    seen = await reviews.exchange(wrong.id)
    assert [message.content for message in seen.before] == ["first", "Hello, world.", "second"]
    assert (seen.reply.content, seen.item.flags, seen.has_earlier) == ("wrong", (Flag.LOW_RATED,), False)
    assert [message.content for message in seen.after] == ["third", "Hello, world."]
    assert [(opinion.rating, opinion.comment) for opinion in seen.item.opinions] == [(Rating.DOWN, "It is not.")]
    for other in (messages[1].id, messages[2].id, new_id(), "nonsense"):
        with pytest.raises(NotFound):
            await reviews.exchange(other)
    await services.deletions.delete(ME, wrong.id)
    assert await listed(services) == []
    with pytest.raises(NotFound):
        await reviews.exchange(wrong.id)


async def test_what_was_reviewed_comes_back_with_new_feedback(services: Services, stranger: str) -> None:
    conversation_id = await chat(services, "question")
    reply = (await services.conversations.get(ME, conversation_id)).messages[-1].id
    await services.chats.feedback.put(ME, reply, Opinion(Rating.DOWN))
    reviews = services.desk.reviews
    await reviews.mark(stranger, reply, reviewed=True)
    await reviews.mark(stranger, reply, reviewed=True)
    assert await listed(services) == []
    [item] = (await reviews.list(EVER, state=ReviewState.REVIEWED)).items
    assert item.reviewed_by is not None
    assert len(await listed(services, state=ReviewState.ALL)) == 1
    await reviews.mark(ME, reply, reviewed=False)
    assert len(await listed(services)) == 1
    await reviews.mark(ME, reply, reviewed=True)
    await services.chats.feedback.put(ME, reply, Opinion(Rating.DOWN, (), "still wrong"))
    assert len(await listed(services)) == 1
