"""Replies that go on after they were stopped, interrupted, or reached their maximum length, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus, MessageView
from app.errors import AppError, Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.chat.leases import Leases
from app.store.db.models import Message, Turn
from app.turns.events import TurnEnd, TurnEvent, TurnText
from app.turns.service import TurnRef
from engine import FinishReason
from testing.fake_engine import FakeEngine
from testing.waiting import eventually


async def read(services: Services, turn_id: str, offset: int = 0) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, turn_id, offset)]


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnText))


async def last(services: Services, ref: TurnRef) -> MessageView:
    return (await services.conversations.get(ME, ref.conversation_id)).messages[-1]


async def cut_short(services: Services, engine: FakeEngine, text: str = "one two") -> TurnRef:
    """A reply that reached its maximum length."""
    engine.say(text, finish_reason=FinishReason.LENGTH)
    ref = await services.turns.start(ME, text="count", settings=ChatSettings(max_tokens=2))
    await read(services, ref.turn_id)
    return ref


async def test_a_reply_goes_on_where_it_ended(services: Services, engine: FakeEngine) -> None:
    ref = await cut_short(services, engine)
    before = await last(services, ref)
    assert before.stats is not None
    engine.say(" three", " four")
    again = await services.turns.resume(ME, ref.message_id)
    assert (again.turn_id, again.message_id, again.user_message_id) == (
        ref.turn_id,
        ref.message_id,
        ref.user_message_id,
    )
    events = await read(services, ref.turn_id, offset=len("one two"))
    assert text_of(events) == " three four"
    end = events[-1]
    assert isinstance(end, TurnEnd)
    assert (end.status, end.offset) == (MessageStatus.COMPLETE, len("one two three four"))
    reply = await last(services, ref)
    assert reply.content == "one two three four"
    assert reply.siblings == (ref.message_id,)
    assert reply.stats is not None
    assert reply.stats.finish_reason == "stop"
    assert reply.stats.completion_tokens > before.stats.completion_tokens
    messages = engine.calls[-1][0]
    assert [message["content"] for message in messages] == ["count", "one two"]
    assert [message.get("unfinished", False) for message in messages] == [False, True]
    assert text_of(await read(services, ref.turn_id)) == "one two three four"  # a late reader gets it whole


async def test_the_engine_gets_the_replys_own_tokens(services: Services, engine: FakeEngine) -> None:
    ref = await cut_short(services, engine)

    def keep(session):  # type: ignore[no-untyped-def]
        session.get_one(Message, ref.message_id).token_ids = (7, 8)

    await services.database.write(keep)
    await read(services, (await services.turns.resume(ME, ref.message_id)).turn_id)
    assert engine.calls[-1][0][-1]["token_ids"] == (7, 8)


async def test_it_may_go_on_again_and_again_with_other_settings(services: Services, engine: FakeEngine) -> None:
    ref = await cut_short(services, engine, "1")
    for number in range(2, 5):
        engine.say(f" {number}", finish_reason=FinishReason.LENGTH)
        await services.turns.resume(ME, ref.message_id, settings=ChatSettings(max_tokens=number))
        await read(services, ref.turn_id)
        assert engine.calls[-1][1] is not None
        assert engine.calls[-1][1].max_tokens == number
    assert (await last(services, ref)).content == "1 2 3 4"
    assert (await services.conversations.settings_of(ME, ref.conversation_id)).max_tokens == 4


async def test_a_stopped_one_keeps_what_it_has_when_it_is_stopped_again(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("half", " never", gates={1: gate})
    ref = await services.turns.start(ME, text="go")
    events = services.turns.events(ME, ref.turn_id)
    await anext(events)
    await services.turns.stop(ME, ref.turn_id)
    engine.say(" more", " never", gates={1: gate})
    await services.turns.resume(ME, ref.message_id)
    events = services.turns.events(ME, ref.turn_id, len("half"))
    await anext(events)
    await services.turns.stop(ME, ref.turn_id)
    reply = await last(services, ref)
    assert (reply.content, reply.status) == ("half more", MessageStatus.STOPPED)


async def test_after_a_crash_it_is_swept_with_all_it_had(services: Services, engine: FakeEngine) -> None:
    ref = await cut_short(services, engine)
    gate = asyncio.Event()
    engine.say(" three", " four", gates={1: gate})
    await services.turns.resume(ME, ref.message_id)

    live = services.turns._live.by_id[ref.turn_id]
    await eventually(lambda: live._checkpoints.saved_chars == len("one two three"))

    # Another process finds the row as a dead one left it.
    def leave(session: Session) -> None:
        turn = session.get_one(Turn, ref.turn_id)
        turn.owner, turn.lease_until = new_id(), None

    await services.database.write(leave)
    leases = Leases(services.database, services.turns._records._owner, seconds=60)
    assert await leases.sweep_at_start() == 1
    reply = await last(services, ref)
    assert (reply.content, reply.status) == ("one two three", MessageStatus.INTERRUPTED)
    gate.set()  # what the old task still writes comes too late
    await read(services, ref.turn_id)
    assert (await last(services, ref)).content == "one two three"
    engine.say(" again")
    await services.turns.resume(ME, ref.message_id)
    await read(services, ref.turn_id)
    assert (await last(services, ref)).content == "one two three again"


async def test_two_at_once_continue_it_once(services: Services, engine: FakeEngine) -> None:
    ref = await cut_short(services, engine)
    gate = asyncio.Event()
    for _ in range(2):
        engine.say(" three", gates={0: gate})
    answers = await asyncio.gather(
        *(services.turns.resume(ME, ref.message_id) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "TurnRef"]
    gate.set()
    await read(services, ref.turn_id)
    assert (await last(services, ref)).content == "one two three"
    assert engine.running == 0


async def test_what_cannot_go_on_is_refused_and_nothing_changes(
    services: Services, engine: FakeEngine, stranger: str
) -> None:
    ref = await cut_short(services, engine)
    engine.say("all of it")
    whole = await services.turns.start(ME, text="more", conversation_id=ref.conversation_id)
    await read(services, whole.turn_id)
    engine.say(fail_at=0)
    empty = await services.turns.start(ME, text="nothing")
    await read(services, empty.turn_id)
    gate = asyncio.Event()
    engine.say("x", " y", gates={1: gate})
    running = await services.turns.start(ME, text="elsewhere")
    # The one that is being written is saved meanwhile.
    others = select(Message.id, Message.content).where(Message.id != running.message_id).order_by(Message.id)
    before = await services.database.read(lambda session: session.execute(others).all())
    wrong: list[tuple[type[AppError], str, Callable[[], Awaitable[object]]]] = [
        (InvalidInput, "follows this reply", lambda: services.turns.resume(ME, ref.message_id)),
        (InvalidInput, "ended by itself", lambda: services.turns.resume(ME, whole.message_id)),
        (InvalidInput, "no text", lambda: services.turns.resume(ME, empty.message_id)),
        (InvalidInput, "Only a reply", lambda: services.turns.resume(ME, ref.user_message_id)),
        (Conflict, "still being written", lambda: services.turns.resume(ME, running.message_id)),
        (NotFound, "no such message", lambda: services.turns.resume(stranger, ref.message_id)),
        (NotFound, "no such message", lambda: services.turns.resume(ME, new_id())),
    ]
    for error, says, attempt in wrong:
        with pytest.raises(error, match=says):
            await attempt()
    assert await services.database.read(lambda session: session.execute(others).all()) == before
    gate.set()
    await read(services, running.turn_id)
