"""What a model thinks before it answers: streamed, checkpointed, kept, and carried to the next turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus, MessageView
from app.errors import NotFound
from app.services.container import Services
from app.turns.buffer import ReplyBuffer
from app.turns.events import TurnEnd, TurnEvent, TurnReasoning, TurnText
from app.turns.service import TurnRef
from engine import ChatOptions, FinishReason
from testing.fake_engine import FakeEngine, Thought


async def read(services: Services, ref: TurnRef, offset: int = 0, reasoning_offset: int = 0) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, ref.turn_id, offset, reasoning_offset)]


def thoughts_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnReasoning))


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnText))


async def last(services: Services, ref: TurnRef) -> MessageView:
    return (await services.conversations.get(ME, ref.conversation_id)).messages[-1]


async def thinking(services: Services, engine: FakeEngine, *thoughts: str) -> tuple[TurnRef, asyncio.Event]:
    """A reply that has thought this and waits for the event to answer."""
    gate = asyncio.Event()
    engine.say(*map(Thought, thoughts), "42.", gates={len(thoughts): gate})
    return await services.turns.start(ME, text="6 * 7?"), gate


async def stored(services: Services, ref: TurnRef, reasoning: str) -> None:
    async with asyncio.timeout(30):
        while (await last(services, ref)).reasoning != reasoning:  # noqa: ASYNC110 (files tell nobody)
            await asyncio.sleep(0.01)


async def test_thoughts_come_apart_from_the_answer_and_stay(services: Services, engine: FakeEngine) -> None:
    engine.say(Thought("Six "), Thought("sevens."), "42", ".")
    ref = await services.turns.start(ME, text="6 * 7?")
    live = await read(services, ref)
    for events in (live, await read(services, ref)):  # in flight, and from the database
        assert (thoughts_of(events), text_of(events)) == ("Six sevens.", "42.")
        kinds = [type(event) for event in events]
        assert kinds.index(TurnText) > max(i for i, kind in enumerate(kinds) if kind is TurnReasoning)
        *_, told = (event for event in events if isinstance(event, TurnReasoning))
        assert told.ended
        end = events[-1]
        assert isinstance(end, TurnEnd)
        assert (end.offset, end.reasoning_offset) == (3, 11)
        assert end.reasoning_seconds is not None
        assert end.stats is not None
        assert end.stats.completion_tokens == 4  # the thoughts count
    reply = await last(services, ref)
    assert (reply.content, reply.reasoning, reply.status) == ("42.", "Six sevens.", MessageStatus.COMPLETE)
    assert reply.reasoning_seconds is not None
    engine.say("Yes.")
    await read(services, await services.turns.start(ME, text="Sure?", conversation_id=ref.conversation_id))
    assert [message.get("reasoning") for message in engine.calls[-1][0]] == [None, "Six sevens.", None]


async def test_a_reader_resumes_in_the_middle_of_a_thought(services: Services, engine: FakeEngine) -> None:
    ref, gate = await thinking(services, engine, "Six sevens ", "are ", "many.")
    await stored(services, ref, "Six sevens are many.")
    follow = asyncio.create_task(read(services, ref, reasoning_offset=4))
    await asyncio.sleep(0)
    gate.set()
    assert thoughts_of(await follow) == "sevens are many."
    assert thoughts_of(await read(services, ref, 3, 7)) == "ens are many."  # from the database, too
    with pytest.raises(NotFound):
        await anext(services.turns.events(new_id(), ref.turn_id))


async def test_a_stop_while_thinking_keeps_the_thoughts_and_can_be_continued(
    services: Services, engine: FakeEngine
) -> None:
    ref, _ = await thinking(services, engine, "Six ")
    await stored(services, ref, "Six ")
    await services.turns.stop(ME, ref.turn_id)
    reply = await last(services, ref)
    assert (reply.status, reply.content, reply.reasoning) == (MessageStatus.STOPPED, "", "Six ")
    engine.say(Thought("sevens."), "42.")
    await services.turns.resume(ME, ref.message_id)
    events = await read(services, ref, 0, 4)
    assert (thoughts_of(events), text_of(events)) == ("sevens.", "42.")
    assert engine.calls[-1][0][-1] == {"role": "assistant", "content": "", "reasoning": "Six ", "unfinished": True}
    again = await last(services, ref)
    assert (again.reasoning, again.content) == ("Six sevens.", "42.")
    assert again.reasoning_seconds is not None
    assert again.reasoning_seconds >= (reply.reasoning_seconds or 0)


async def test_a_reply_whose_thinking_has_ended_goes_on_with_its_answer(services: Services, engine: FakeEngine) -> None:
    engine.say(Thought("Six sevens."), "4", finish_reason=FinishReason.LENGTH)
    ref = await services.turns.start(ME, text="6 * 7?")
    await read(services, ref)
    engine.say("2.")
    await services.turns.resume(ME, ref.message_id)
    await read(services, ref)
    partial = engine.calls[-1][0][-1]
    assert (partial["content"], partial.get("reasoning")) == ("4", "Six sevens.")
    reply = await last(services, ref)
    assert (reply.content, reply.reasoning) == ("42.", "Six sevens.")


async def test_thoughts_of_a_dead_process_are_kept(services: Services, engine: FakeEngine) -> None:
    """The checkpoint alone counts: what it has written survives ``kill -9``."""
    ref, gate = await thinking(services, engine, "Six ", "sevens.")
    await stored(services, ref, "Six sevens.")
    assert (await last(services, ref)).status is MessageStatus.STREAMING
    document = await services.transfers.records.read(ME, ref.conversation_id)  # as after a crash
    assert (document.messages[-1].status, document.messages[-1].reasoning) == ("interrupted", "Six sevens.")
    gate.set()
    await read(services, ref)


async def test_another_reply_has_thoughts_of_its_own(services: Services, engine: FakeEngine) -> None:
    engine.say(Thought("first"), "one")
    ref = await services.turns.start(ME, text="hi")
    await read(services, ref)
    engine.say("two")
    again = await services.turns.regenerate(ME, ref.message_id)
    await read(services, again)
    reply = await last(services, again)
    assert (reply.content, reply.reasoning, reply.reasoning_seconds) == ("two", "", None)


def test_the_clock_runs_while_the_model_thinks() -> None:
    buffer = ReplyBuffer()
    buffer.append_reasoning("a", 100.0)
    buffer.append_reasoning("b", 101.0)
    assert buffer.is_thinking
    buffer.append("answer", 103.5)
    assert not buffer.is_thinking
    assert buffer.reasoning_seconds == 3.5
    buffer.append_reasoning("c", 110.0)  # it thinks again
    buffer.append("more", 111.0)
    assert buffer.reasoning_seconds == 4.5
    assert buffer.reasoning is not None
    assert buffer.reasoning.text == "abc"
    assert buffer.text == "answermore"


async def test_settings_ask_for_thinking_where_the_model_can(services: Services, engine: FakeEngine) -> None:
    settings = ChatSettings(thinking=True, max_thinking_tokens=50)
    ref = await services.turns.start(ME, text="hi", settings=settings)
    await read(services, ref)
    assert engine.options[-1] == ChatOptions()  # this model cannot
    engine._info = replace(engine.info, can_think=True)
    await read(services, await services.turns.start(ME, text="hi", conversation_id=ref.conversation_id))
    assert engine.options[-1] == ChatOptions(thinking=True, max_thinking_tokens=50)
    with pytest.raises(ValueError, match="max_thinking_tokens"):
        ChatSettings(max_thinking_tokens=0)
