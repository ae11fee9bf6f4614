"""Replies that somebody should look at: which they are, in which order, and who looked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
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
from app.store.desk.review import WITHHELD
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from engine import EngineError
from testing.fake_engine import FakeEngine
from testing.knowledge import passage
from tests.app.store.test_conversations import chat
from tests.app.store.test_knowledge import person
from tests.app.store.test_usage import MONDAY, add_reply

WEEK = Span("week", MONDAY - timedelta(days=3), MONDAY + timedelta(days=4))
EVER = Span("ever", MONDAY - timedelta(days=9), MONDAY + timedelta(days=36500))


async def listed(services: Services, span: Span = EVER, **asked: object) -> list[tuple[str, tuple[Flag, ...]]]:
    page = await services.desk.reviews.list(ME, span, **asked)  # type: ignore[arg-type]
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
        page = await services.desk.reviews.list(ME, WEEK, limit=5, cursor=cursor)
        assert len(page.items) <= 5
        found += [item.message_id for item in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert found == made[::-1]
    for nonsense in ("x", "2026-01-01T00:00:00+00:00 x", f"2026-01-01T00:00:00 {new_id()}", "9" * 90):
        with pytest.raises(InvalidInput, match="cursor"):
            await services.desk.reviews.list(ME, WEEK, cursor=nonsense)


async def test_an_exchange_shows_what_is_around_a_reply_and_no_other(services: Services, engine: FakeEngine) -> None:
    conversation_id = await chat(services, "first")
    engine.say("wrong")
    await chat(services, "second", conversation_id)
    await chat(services, "third", conversation_id)
    messages = (await services.conversations.get(ME, conversation_id)).messages
    wrong = messages[3]
    reviews = services.desk.reviews
    with pytest.raises(NotFound):
        await reviews.exchange(ME, wrong.id)
    with pytest.raises(NotFound):
        await reviews.mark(ME, wrong.id, reviewed=True)
    await services.chats.feedback.put(ME, wrong.id, Opinion(Rating.DOWN, (Reason.WRONG,), "It is not."))
    seen = await reviews.exchange(ME, wrong.id)
    assert [message.content for message in seen.before] == ["first", "Hello, world.", "second"]
    assert (seen.reply.content, seen.item.flags, seen.has_earlier) == ("wrong", (Flag.LOW_RATED,), False)
    assert [message.content for message in seen.after] == ["third", "Hello, world."]
    assert [(opinion.rating, opinion.comment) for opinion in seen.item.opinions] == [(Rating.DOWN, "It is not.")]
    for other in (messages[1].id, messages[2].id, new_id(), "nonsense"):
        with pytest.raises(NotFound):
            await reviews.exchange(ME, other)
    await services.deletions.delete(ME, wrong.id)
    assert await listed(services) == []
    with pytest.raises(NotFound):
        await reviews.exchange(ME, wrong.id)


async def test_what_was_reviewed_comes_back_with_new_feedback(services: Services, stranger: str) -> None:
    conversation_id = await chat(services, "question")
    reply = (await services.conversations.get(ME, conversation_id)).messages[-1].id
    await services.chats.feedback.put(ME, reply, Opinion(Rating.DOWN))
    reviews = services.desk.reviews
    await reviews.mark(stranger, reply, reviewed=True)
    await reviews.mark(stranger, reply, reviewed=True)
    assert await listed(services) == []
    [item] = (await reviews.list(ME, EVER, state=ReviewState.REVIEWED)).items
    assert item.reviewed_by is not None
    assert len(await listed(services, state=ReviewState.ALL)) == 1
    await reviews.mark(ME, reply, reviewed=False)
    assert len(await listed(services)) == 1
    await reviews.mark(ME, reply, reviewed=True)
    await services.chats.feedback.put(ME, reply, Opinion(Rating.DOWN, (), "still wrong"))
    assert len(await listed(services)) == 1


async def test_a_reply_is_withheld_from_who_may_not_read_what_it_rests_on(
    services: Services, engine: FakeEngine
) -> None:
    database, reviews, documents = services.database, services.desk.reviews, Documents(services.database)
    viewer, admin = await person(database, "viewer"), await person(database, "admin")
    made = await Collections(database).create(ME, "Salaries")
    secret = await documents.add(ME, made.id, "salaries.md", b"x", kind="markdown")
    shared = await documents.add(ME, None, "terms.md", b"x", kind="markdown")
    conversation_id = await chat(services, "before")
    for question, answer in (("rests on it", "4711 [1]"), ("follows", "As I said, 4711.")):
        engine.say(answer)
        await chat(services, question, conversation_id)
    first, reply, follower = (await services.conversations.get(ME, conversation_id)).messages[1::2]

    async def rest_on(*document_ids: str) -> None:
        sources = tuple(
            replace(passage("It is 4711.", number), document_id=id) for number, id in enumerate(document_ids, start=1)
        )

        def work(session: Session) -> None:
            session.get_one(Message, reply.id).sources = sources
            session.get_one(Message, reply.id).reasoning = "The source says 4711."

        await database.write(work)

    async def seen_by(reviewer: str) -> list[str]:
        """The replies' texts, in the list and around each of them."""
        listed = (await reviews.list(reviewer, EVER)).items[::-1]
        for item in listed:
            exchange = await reviews.exchange(reviewer, item.message_id)
            assert exchange.item.reply == exchange.reply.content == item.reply
            shown = [*exchange.before, exchange.reply, *exchange.after]
            others = {message.id: message.content for message in shown}
            assert all(others.get(one.message_id, one.reply) == one.reply for one in listed)
            assert any(message.reasoning for message in shown) == (listed[1].reply != WITHHELD)
        return [item.reply for item in listed]

    for message in (first, reply, follower):
        await services.chats.feedback.put(ME, message.id, Opinion(Rating.DOWN))
    whole = ["Hello, world.", "4711 [1]", "As I said, 4711."]
    hidden = ["Hello, world.", WITHHELD, WITHHELD]
    await rest_on(shared.id)
    assert await seen_by(viewer) == whole
    await rest_on(shared.id, secret.id)
    assert await seen_by(viewer) == hidden
    assert await seen_by(admin) == await seen_by(ME) == whole
    await Collections(database).set_member(ME, made.id, viewer, may_edit=False)
    assert await seen_by(viewer) == whole
    await Collections(database).remove_member(ME, made.id, viewer)
    assert await seen_by(viewer) == hidden
    await Collections(database).change(ME, made.id, everyone=True)
    assert await seen_by(viewer) == whole
    await documents.remove(ME, secret.id)
    assert (await seen_by(viewer), await seen_by(admin)) == (hidden, whole)
    await rest_on("\0 no id", *(new_id() for _ in range(1500)))
    assert await seen_by(viewer) == hidden
    await rest_on()
    assert (await reviews.exchange(viewer, follower.id)).item.reply == whole[2]
