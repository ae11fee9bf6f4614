"""Deleting a message with what hangs on it, and taking that back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import first_id_of, new_id
from app.errors import Conflict, NotFound
from app.services.container import Services
from app.store.db.models import Conversation, Message, Turn
from app.store.maintenance.retention import Retention
from testing.fake_engine import FakeEngine
from tests.app.store.test_conversations import chat, fill


async def shown(services: Services, conversation_id: str) -> list[str]:
    return [message.content for message in (await services.conversations.get(ME, conversation_id)).messages]


async def ids(services: Services, conversation_id: str) -> list[str]:
    return [message.id for message in (await services.conversations.get(ME, conversation_id)).messages]


async def test_a_message_goes_with_what_follows_it_and_comes_back(services: Services) -> None:
    conversation_id, message_ids = await fill(services, messages=6)
    before = await services.conversations.get(ME, conversation_id)
    deletion = await services.deletions.delete(ME, message_ids[2])
    assert deletion.messages == 4
    assert await ids(services, conversation_id) == message_ids[:2]
    for gone in message_ids[2:]:
        with pytest.raises(NotFound):
            await services.conversations.get_message(ME, gone)
        with pytest.raises(NotFound):
            await services.conversations.show(ME, gone)
    with pytest.raises(NotFound):
        await services.turns.start(ME, text="hi", conversation_id=conversation_id, parent_id=message_ids[3])
    assert await services.deletions.undo(ME, deletion.deletion_id) == (conversation_id,)
    assert await services.conversations.get(ME, conversation_id) == before
    with pytest.raises(NotFound, match="undone"):
        await services.deletions.undo(ME, deletion.deletion_id)


async def test_a_version_gives_way_to_the_other_one(services: Services, engine: FakeEngine) -> None:
    engine.say("first")
    conversation_id = await chat(services, "question")
    first = (await ids(services, conversation_id))[1]
    engine.say("second")
    again = await services.turns.regenerate(ME, first)
    async for _ in services.turns.events(ME, again.turn_id):
        pass
    await services.deletions.delete(ME, again.message_id)
    assert await shown(services, conversation_id) == ["question", "first"]
    view = await services.conversations.get_message(ME, first)
    assert view.siblings == (first,)
    # The one that is not shown can go too, and what is shown stays.
    await services.deletions.delete(ME, first)
    assert await shown(services, conversation_id) == ["question"]


async def test_a_conversation_without_messages_goes_on(services: Services, engine: FakeEngine) -> None:
    conversation_id = await chat(services, "question")
    [question, _] = await ids(services, conversation_id)
    deletion = await services.deletions.delete(ME, question)
    assert await shown(services, conversation_id) == []
    await chat(services, "a new beginning", conversation_id)
    assert [message["content"] for message in engine.calls[-1][0]] == ["a new beginning"]
    await services.deletions.undo(ME, deletion.deletion_id)
    assert (await shown(services, conversation_id))[0] == "question"
    assert len((await services.conversations.get_message(ME, question)).siblings) == 2


async def test_a_question_whose_reply_was_deleted_gets_another(services: Services, engine: FakeEngine) -> None:
    conversation_id = await chat(services, "question")
    [question, reply] = await ids(services, conversation_id)
    await services.deletions.delete(ME, reply)
    engine.say("another")
    again = await services.turns.regenerate(ME, question)
    async for _ in services.turns.events(ME, again.turn_id):
        pass
    assert await shown(services, conversation_id) == ["question", "another"]
    await services.deletions.delete(ME, again.message_id)
    await chat(services, "never mind", conversation_id)  # or is passed over
    assert [message["content"] for message in engine.calls[-1][0]] == ["never mind"]


async def test_deletions_are_undone_from_the_outside_in(services: Services) -> None:
    conversation_id, message_ids = await fill(services, messages=4)
    inner = await services.deletions.delete(ME, message_ids[2])
    outer = await services.deletions.delete(ME, message_ids[0])
    assert outer.messages == 2
    with pytest.raises(Conflict, match="Undo that first"):
        await services.deletions.undo(ME, inner.deletion_id)
    await services.deletions.undo(ME, outer.deletion_id)
    assert await ids(services, conversation_id) == message_ids[:2]
    await services.deletions.undo(ME, inner.deletion_id)
    assert await ids(services, conversation_id) == message_ids


async def test_nothing_is_deleted_under_a_reply_that_is_being_written(services: Services, engine: FakeEngine) -> None:
    conversation_id = await chat(services, "question")
    [question, _] = await ids(services, conversation_id)
    hold = asyncio.Event()
    engine.say("slow", gates={0: hold})
    ref = await services.turns.start(ME, text="more", conversation_id=conversation_id)
    with pytest.raises(Conflict, match="Stop it first"):
        await services.deletions.delete(ME, question)
    hold.set()
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    assert len(await ids(services, conversation_id)) == 4


async def test_after_a_while_it_is_final_and_leaves_nothing(services: Services) -> None:
    conversation_id = await chat(services, "question")
    [question, _] = await ids(services, conversation_id)
    deletion = await services.deletions.delete(ME, question)
    assert await services.deletions.purge(before=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert await services.deletions.purge(before=datetime.now(UTC) + timedelta(seconds=1)) == 2
    with pytest.raises(NotFound):
        await services.deletions.undo(ME, deletion.deletion_id)
    for table in (Message, Turn):
        counted = select(func.count()).select_from(table)
        assert await services.database.read(partial(Session.scalar, statement=counted)) == 0
    assert await shown(services, conversation_id) == []


async def test_a_long_chain_is_purged_at_once(services: Services) -> None:
    _, message_ids = await fill(services, messages=3000)
    await services.deletions.delete(ME, message_ids[0])
    assert await services.deletions.purge(before=datetime.now(UTC) + timedelta(seconds=1)) == 3000


async def test_retention_deletes_what_is_old_and_not_what_is_replied_in(services: Services, engine: FakeEngine) -> None:
    old, young = await chat(services, "old"), await chat(services, "young")
    hold = asyncio.Event()
    engine.say("slow", gates={0: hold})
    live = await services.turns.start(ME, text="live")
    long_ago = datetime.now(UTC) - timedelta(days=40)
    await services.database.write(
        lambda session: session.execute(
            update(Conversation).where(Conversation.id.in_([old, live.conversation_id])).values(updated_at=long_ago)
        )
    )
    assert await Retention(services.database).delete_older(datetime.now(UTC) - timedelta(days=30)) == 1
    hold.set()
    async for _ in services.turns.events(ME, live.turn_id):
        pass
    kept = {item.id for item in (await services.conversations.list(ME)).items}
    assert kept == {young, live.conversation_id}


async def test_retention_takes_many_in_batches(services: Services) -> None:
    for _ in range(3):
        await fill(services, messages=2)
    await services.database.write(
        lambda session: session.add_all(
            Conversation(id=new_id(), user_id=ME, title="t", settings={}, created_at=long_ago, updated_at=long_ago)
            for long_ago in [datetime(2020, 1, 1, tzinfo=UTC)] * 120
        )
    )
    assert await Retention(services.database).delete_older(datetime(2021, 1, 1, tzinfo=UTC)) == 120
    assert len((await services.conversations.list(ME)).items) == 3


def test_ids_tell_when_they_were_made() -> None:
    before = first_id_of(datetime.now(UTC))
    made = new_id()
    after = first_id_of(datetime.now(UTC) + timedelta(milliseconds=2))
    assert before <= made < after


async def test_a_reply_in_a_deleted_chat_stops_and_its_text_so_far_comes_back(
    services: Services, engine: FakeEngine
) -> None:
    hold = asyncio.Event()
    engine.say("one two three", gates={1: hold})
    ref = await services.turns.start(ME, text="question")
    events = services.turns.events(ME, ref.turn_id)
    await anext(events)
    deletion = await services.chats.delete_conversations(ME, [ref.conversation_id])
    async for _ in events:  # it ends, though its model is held
        pass
    with pytest.raises(NotFound):
        await services.turns.start(ME, text="more", conversation_id=ref.conversation_id)
    with pytest.raises(NotFound):
        await services.turns.snapshot(ME, ref.turn_id)
    assert deletion.deletion_id is not None
    await services.deletions.undo(ME, deletion.deletion_id)
    reply = (await services.conversations.get(ME, ref.conversation_id)).messages[-1]
    assert reply.status == "stopped"
    assert "one two three".startswith(reply.content)


async def test_deleted_chats_go_for_good_after_their_time_and_no_others(services: Services) -> None:
    gone, kept = await chat(services, "gone"), await chat(services, "kept")
    deletion = await services.chats.delete_conversations(ME, [gone])
    assert deletion.deletion_id is not None
    now = datetime.now(UTC)
    await services.deletions.purge(now - timedelta(hours=1))
    await services.deletions.undo(ME, deletion.deletion_id)
    deletion = await services.chats.delete_conversations(ME, [gone])
    assert await services.deletions.purge(now + timedelta(minutes=1)) == 1
    assert deletion.deletion_id is not None
    with pytest.raises(NotFound, match="undone"):
        await services.deletions.undo(ME, deletion.deletion_id)
    assert [item.id for item in (await services.conversations.list(ME)).items] == [kept]
