"""Several replies to one message at once, edited replies, and what versions know of themselves, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.chat.reply_versions import comparison_ended
from app.store.db.database import sqlite_engine
from app.store.maintenance.migrate import migrate
from app.turns.service import TurnRef
from engine import FinishReason
from testing.fake_engine import FakeEngine
from testing.waiting import eventually

COOL, WARM = ChatSettings(temperature=0.2, seed=5), ChatSettings(temperature=1.5)


async def read(services: Services, *refs: TurnRef) -> None:
    for ref in refs:
        async for _event in services.turns.events(ME, ref.turn_id):
            pass


async def compared(
    services: Services, engine: FakeEngine, variants: Sequence[ChatSettings] = (COOL, WARM), **options: str
) -> tuple[TurnRef, ...]:
    for number in range(len(variants)):
        engine.say(f"reply {number}")
    refs = await services.turns.compare(ME, variants, text="Why?", settings=ChatSettings(top_k=9), **options)
    await read(services, *refs)
    return refs


async def test_each_reply_has_its_settings_and_all_are_versions_of_one(services: Services, engine: FakeEngine) -> None:
    refs = await compared(services, engine, (COOL, ChatSettings(system_prompt="Be kind."), WARM))
    view = await services.conversations.get(ME, refs[0].conversation_id)
    assert [message.content for message in view.messages] == ["Why?", "reply 0"]
    assert view.messages[1].siblings == tuple(ref.message_id for ref in refs)
    assert view.settings == ChatSettings(top_k=9)  # the chat's own, not those that are tried
    assert [one.message.content for one in view.comparison] == ["reply 0", "reply 1", "reply 2"]
    assert [one.settings for one in view.comparison] == [COOL, ChatSettings(system_prompt="Be kind."), WARM]
    assert view.comparison[0].message.seed == 5
    assert view.comparison[1].message.seed is not None  # drawn, and known since
    # They see what came before, and not each other.
    assert [len(messages) for messages, _ in engine.calls] == [1, 2, 1]


async def test_keeping_one_shows_it_and_ends_the_comparison(services: Services, engine: FakeEngine) -> None:
    refs = await compared(services, engine)
    await services.conversations.show(ME, refs[1].message_id)
    view = await services.conversations.get(ME, refs[0].conversation_id)
    assert view.comparison == ()
    assert view.messages[1].content == "reply 1"
    assert {one.name: (one.value, one.other) for one in view.messages[1].differences} == {"temperature": (1.5, 0.2)}
    engine.say("next")
    after = await services.turns.start(ME, text="And?", conversation_id=refs[0].conversation_id)
    await read(services, after)
    shown = await services.conversations.get(ME, refs[0].conversation_id)
    assert [message.content for message in shown.messages] == ["Why?", "reply 1", "And?", "next"]


def test_showing_a_version_does_not_read_the_turns_of_all_conversations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    migrate(url)
    engine = sqlite_engine(url, connections=1)
    statement = comparison_ended("c", "m").compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all())
    engine.dispose()
    assert "SCAN" not in plan


async def test_the_versions_that_are_asked_for_are_of_this_reply(services: Services, engine: FakeEngine) -> None:
    refs = await compared(services, engine)
    ids = [ref.message_id for ref in refs]
    found = await services.conversations.versions(ME, ids[0], ids[::-1])
    assert [one.message.id for one in found] == ids
    others = await compared(services, engine)
    with pytest.raises(NotFound, match=others[0].message_id):
        await services.conversations.versions(ME, ids[0], [ids[1], others[0].message_id])


async def test_a_reply_that_exists_is_compared_with_more_of_them(services: Services, engine: FakeEngine) -> None:
    engine.say("first")
    first = await services.turns.start(ME, text="Why?")
    await read(services, first)
    engine.say("a")
    engine.say("b")
    refs = await services.turns.compare_again(ME, first.message_id, (COOL, WARM))
    await read(services, *refs)
    view = await services.conversations.get(ME, first.conversation_id)
    assert view.messages[1].siblings == (first.message_id, *(ref.message_id for ref in refs))
    assert [one.message.content for one in view.comparison] == ["a", "b"]


async def test_nothing_else_is_sent_before_all_have_ended(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("one")
    engine.say("two", gates={0: gate})
    refs = await services.turns.compare(ME, (COOL, WARM), text="Why?")
    await read(services, refs[0])
    with pytest.raises(Conflict):
        await services.turns.start(ME, text="And?", conversation_id=refs[0].conversation_id)
    with pytest.raises(Conflict):
        await services.turns.compare_again(ME, refs[0].message_id, (COOL, WARM))
    assert (await services.conversations.get(ME, refs[0].conversation_id)).active_turn_id == refs[1].turn_id
    for ref in refs:
        await services.turns.stop(ME, ref.turn_id)
    view = await services.conversations.get(ME, refs[0].conversation_id)
    assert [one.message.status for one in view.comparison] == [MessageStatus.COMPLETE, MessageStatus.STOPPED]


async def test_a_column_starts_once_the_prompt_that_it_shares_is_read(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("one", gates={0: gate})
    engine.say("two")
    refs = await services.turns.compare(ME, (COOL, WARM), text="Why?")
    await engine.started.wait()
    assert len(engine.scripts) == 1  # the second is not asked for yet
    gate.set()
    await read(services, *refs)


async def test_a_request_that_is_repeated_starts_nothing_twice(services: Services, engine: FakeEngine) -> None:
    key = "once"
    refs = await compared(services, engine, request_id=key)
    again = await services.turns.compare(ME, (COOL, WARM), text="Why?", request_id=key)
    assert again == refs


async def test_a_setting_out_of_range_starts_none_of_them(services: Services, engine: FakeEngine) -> None:
    with pytest.raises(InvalidInput, match="temperature"):
        await services.turns.compare(ME, (COOL, ChatSettings(temperature=99.0)), text="Why?")
    assert (await services.conversations.list(ME)).items == ()
    assert services.turns.count_running(ME) == 0


async def test_a_deleted_conversation_takes_all_that_are_written_with_it(
    services: Services, engine: FakeEngine
) -> None:
    engine.say("one", gates={0: asyncio.Event()})
    engine.say("two", gates={0: asyncio.Event()})
    refs = await services.turns.compare(ME, (COOL, WARM), text="Why?")
    await services.turns.delete_conversation(ME, refs[0].conversation_id)
    await eventually(lambda: services.turns.running_turn_ids() == [])
    assert engine.running == 0


async def test_an_edited_reply_is_a_version_that_goes_on_from_the_users_text(
    services: Services, engine: FakeEngine
) -> None:
    engine.say("A long ", "story.")
    first = await services.turns.start(ME, text="Tell me.")
    await read(services, first)
    engine.say(" cat.")
    ref = await services.turns.rewrite(ME, first.message_id, text="A short story of a")
    await read(services, ref)
    assert engine.calls[-1][0][-1]["content"] == "A short story of a"
    view = await services.conversations.get(ME, first.conversation_id)
    assert (view.messages[1].content, view.messages[1].edited) == ("A short story of a cat.", True)
    (before,) = await services.conversations.versions(ME, first.message_id)
    assert (before.message.content, before.message.edited) == ("A long story.", False)
    with pytest.raises(InvalidInput, match="empty"):
        await services.turns.rewrite(ME, first.message_id, text="  ")
    with pytest.raises(InvalidInput, match="reply"):
        await services.turns.rewrite(ME, first.user_message_id, text="x")


async def test_a_reply_in_the_middle_goes_on_as_a_version_and_what_follows_stays(
    services: Services, engine: FakeEngine
) -> None:
    engine.say("One, ", "two, ", finish_reason=FinishReason.LENGTH)
    first = await services.turns.start(ME, text="Count.")
    await read(services, first)
    engine.say("fine")
    after = await services.turns.start(ME, text="Thanks.", conversation_id=first.conversation_id)
    await read(services, after)
    with pytest.raises(InvalidInput, match="follows"):
        await services.turns.resume(ME, first.message_id)
    engine.say("three")
    ref = await services.turns.resume_as_version(ME, first.message_id)
    await read(services, ref)
    view = await services.conversations.get(ME, first.conversation_id)
    assert [message.content for message in view.messages] == ["Count.", "One, two, three"]
    await services.conversations.show(ME, first.message_id)
    assert len((await services.conversations.get(ME, first.conversation_id)).messages) == 4
    with pytest.raises(InvalidInput, match="ended by itself"):
        await services.turns.resume_as_version(ME, after.message_id)


async def test_a_strangers_replies_are_neither_compared_nor_edited_nor_listed(
    services: Services, engine: FakeEngine, stranger: str
) -> None:
    refs = await compared(services, engine)
    turns, conversations = services.turns, services.conversations
    acts: list[Callable[[], object]] = [
        lambda: turns.compare_again(stranger, refs[0].message_id, (COOL, WARM)),
        lambda: turns.compare(stranger, (COOL, WARM), text="x", conversation_id=refs[0].conversation_id),
        lambda: turns.rewrite(stranger, refs[0].message_id, text="x"),
        lambda: turns.resume_as_version(stranger, refs[0].message_id),
        lambda: conversations.versions(stranger, refs[0].message_id),
        lambda: conversations.versions(ME, refs[0].message_id, [new_id()]),
    ]
    for act in acts:
        with pytest.raises(NotFound):
            await act()  # type: ignore[misc]
