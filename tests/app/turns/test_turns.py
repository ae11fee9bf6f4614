"""Turns through their service, on both databases: starting, following, stopping, and what is sent to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from sqlalchemy import Engine as SqlEngine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import func, select, text

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.views import MessageStatus, Role
from app.errors import AppError, Conflict, ContextTooLong, EngineUnavailable, InvalidInput, NotFound, Overloaded
from app.services.container import Services
from app.store.db.models import Message, Turn
from app.turns.events import TurnEnd, TurnEvent, TurnProgress, TurnText
from engine import (
    EngineError,
    EngineOverloadedError,
    EngineStoppedError,
    FinishReason,
    InvalidRequestError,
    PrefillProgress,
)
from testing.fake_engine import CACHED_PROMPT_TOKENS, QUEUE_SECONDS, FakeEngine
from testing.waiting import eventually


async def read(services: Services, turn_id: str, offset: int = 0) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, turn_id, offset)]


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnText))


def end_of(events: list[TurnEvent]) -> TurnEnd:
    end = events[-1]
    assert isinstance(end, TurnEnd)
    return end


async def test_a_message_and_its_reply_are_kept(services: Services, engine: FakeEngine) -> None:
    engine.say("Hel", "lo ", "🙂")
    ref = await services.turns.start(ME, text="  Say hello\nplease\0")
    events = await read(services, ref.turn_id)
    assert text_of(events) == "Hello 🙂"
    end = end_of(events)
    assert (end.status, end.error, end.message_id, end.offset) == (MessageStatus.COMPLETE, None, ref.message_id, 7)
    view = await services.conversations.get(ME, ref.conversation_id)
    assert view.title == "Say hello"
    question, reply = view.messages
    assert (question.id, question.role, question.content) == (ref.user_message_id, Role.USER, "  Say hello\nplease")
    assert (reply.id, reply.parent_id, reply.content) == (ref.message_id, question.id, "Hello 🙂")
    assert reply.turn_id == ref.turn_id
    assert reply.stats is not None
    assert (reply.stats.completion_tokens, reply.stats.finish_reason) == (3, "stop")
    assert reply.stats == end.stats


async def test_what_was_said_before_is_sent_again(services: Services, engine: FakeEngine) -> None:
    engine.say("one")
    first = await services.turns.start(ME, text="1?", settings=ChatSettings(system_prompt="Count.", temperature=0.5))
    await read(services, first.turn_id)
    second = await services.turns.start(ME, text="2?", conversation_id=first.conversation_id)
    await read(services, second.turn_id)
    messages, params = engine.calls[1]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Count."),
        ("user", "1?"),
        ("assistant", "one"),
        ("user", "2?"),
    ]
    assert params is not None
    assert params.temperature == 0.5


@pytest.mark.parametrize("stop", [False, True])
async def test_a_reply_is_sent_again_in_its_own_tokens(services: Services, engine: FakeEngine, stop: bool) -> None:
    engine.say("a", "b", "c", gates={2: asyncio.Event()} if stop else {})
    first = await services.turns.start(ME, text="go")
    if stop:
        reader = services.turns.events(ME, first.turn_id)
        while (event := await anext(reader)) != TurnText("b", 2):
            assert isinstance(event, TurnText)
            if event.offset == 2:
                break
        await services.turns.stop(ME, first.turn_id)
    await read(services, first.turn_id)
    second = await services.turns.start(ME, text="on", conversation_id=first.conversation_id)
    await read(services, second.turn_id)
    reply = engine.calls[1][0][1]
    assert reply == {
        "role": "assistant",
        "content": "abc"[: 2 if stop else 3],
        "token_ids": (0, 1, 2)[: 2 if stop else 3],
    }


@pytest.mark.parametrize("failure", [EngineStoppedError("It sleeps."), OverflowError("odd ids")])
async def test_a_reply_is_kept_where_its_tokens_are_not(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    async def refuse(text: str, token_ids: object) -> tuple[int, ...]:
        raise failure

    monkeypatch.setattr(engine, "reply_tokens", refuse)
    first = await services.turns.start(ME, text="go")
    assert end_of(await read(services, first.turn_id)).status is MessageStatus.COMPLETE
    second = await services.turns.start(ME, text="on", conversation_id=first.conversation_id)
    await read(services, second.turn_id)
    assert engine.calls[1][0][1] == {"role": "assistant", "content": "Hello, world."}


async def test_token_ids_stay_inside(services: Services) -> None:
    """Opening a conversation does not even read them."""
    ref = await services.turns.start(ME, text="go")
    await read(services, ref.turn_id)
    stored = await services.database.read(
        lambda session: session.execute(text("SELECT token_ids FROM message ORDER BY position")).scalars().all()
    )
    assert [ids and bytes(ids) for ids in stored] == [None, bytes.fromhex("00000000 01000000 02000000 03000000")]
    statements: list[str] = []

    def note(*event: object) -> None:
        statements.append(str(event[2]))

    sqlalchemy_event.listen(SqlEngine, "before_cursor_execute", note)
    try:
        await services.conversations.list(ME, query="world")
        await services.conversations.get(ME, ref.conversation_id)
        await services.conversations.get_message(ME, ref.message_id)
    finally:
        sqlalchemy_event.remove(SqlEngine, "before_cursor_execute", note)
    assert statements
    assert not any("token_ids" in statement for statement in statements)


async def test_a_named_system_prompt_is_rendered_and_an_unknown_one_refused(
    services: Services, engine: FakeEngine
) -> None:
    ref = await services.turns.start(ME, text="hi", settings=ChatSettings(system_prompt_name="support-desk"))
    await read(services, ref.turn_id)
    assert "our company" in engine.calls[0][0][0]["content"]
    with pytest.raises(InvalidInput, match="nobody"):
        await services.turns.start(ME, text="hi", settings=ChatSettings(system_prompt_name="nobody"))


async def test_a_parent_begins_a_branch_and_the_old_one_stays(services: Services, engine: FakeEngine) -> None:
    first = await services.turns.start(ME, text="root")
    await read(services, first.turn_id)
    old = await services.turns.start(ME, text="old", conversation_id=first.conversation_id)
    await read(services, old.turn_id)
    new = await services.turns.start(ME, text="new", conversation_id=first.conversation_id, parent_id=first.message_id)
    await read(services, new.turn_id)
    view = await services.conversations.get(ME, first.conversation_id)
    assert [message.content for message in view.messages] == ["root", "Hello, world.", "new", "Hello, world."]
    assert [message["content"] for message in engine.calls[-1][0]] == ["root", "Hello, world.", "new"]
    assert (await services.conversations.get_message(ME, old.user_message_id)).content == "old"


async def nothing_is_written(services: Services, engine: FakeEngine) -> None:
    assert (await services.conversations.list(ME)).items == ()
    assert engine.calls == []


@pytest.mark.parametrize("text", ["", "  \n\t ", "\0\0"])
async def test_an_empty_message_is_refused(services: Services, engine: FakeEngine, text: str) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        await services.turns.start(ME, text=text)
    await nothing_is_written(services, engine)


async def test_an_overlong_message_is_refused_with_both_numbers(services: Services, engine: FakeEngine) -> None:
    with pytest.raises(InvalidInput, match=r"200,001 characters.*200,000"):
        await services.turns.start(ME, text="x" * 200_001)
    with pytest.raises(ContextTooLong, match=r"5001 tokens.*4096.*Shorten it\."):
        await services.turns.start(ME, text="word " * 5000)
    await nothing_is_written(services, engine)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (EngineOverloadedError("full"), Overloaded),
        (EngineStoppedError("The engine has stopped."), EngineUnavailable),
        (InvalidRequestError("min_tokens is 9; at most 5."), InvalidInput),
        (EngineError("odd"), EngineUnavailable),
    ],
)
async def test_what_the_engine_refuses_is_not_written(
    services: Services, engine: FakeEngine, refusal: Exception, error: type[AppError]
) -> None:
    engine.refuse = refusal
    with pytest.raises(error):
        await services.turns.start(ME, text="hi")
    await nothing_is_written(services, engine)


@pytest.mark.parametrize(("field", "value"), [("temperature", -0.1), ("top_p", 2.0), ("max_tokens", 0)])
async def test_a_setting_out_of_range_is_refused_by_name(
    services: Services, engine: FakeEngine, field: str, value: float
) -> None:
    with pytest.raises(InvalidInput, match=field):
        await services.turns.start(ME, text="hi", settings=ChatSettings(**{field: value}))
    await nothing_is_written(services, engine)


async def test_ids_that_lead_nowhere_are_not_found(services: Services) -> None:
    ref = await services.turns.start(ME, text="hi")
    await read(services, ref.turn_id)
    for unknown in (new_id(), "", "\0", "\ud800", "x" * 36, "'; drop table turn; --"):
        with pytest.raises(NotFound):
            await services.turns.start(ME, text="hi", conversation_id=unknown)
        with pytest.raises(NotFound):
            await services.turns.start(ME, text="hi", conversation_id=ref.conversation_id, parent_id=unknown)
        with pytest.raises(NotFound):
            await read(services, unknown)
        with pytest.raises(NotFound):
            await services.turns.stop(ME, unknown)
        with pytest.raises(NotFound):
            await services.turns.delete_conversation(ME, unknown)
    with pytest.raises(InvalidInput, match="follow a reply"):
        await services.turns.start(ME, text="hi", conversation_id=ref.conversation_id, parent_id=ref.user_message_id)
    with pytest.raises(InvalidInput, match="conversation_id"):
        await services.turns.start(ME, text="hi", parent_id=ref.message_id)


@pytest.mark.parametrize("branch", [False, True])
async def test_of_many_starts_at_once_one_wins_and_the_others_write_nothing(
    services: Services, engine: FakeEngine, branch: bool
) -> None:
    first = await services.turns.start(ME, text="hi")
    await read(services, first.turn_id)
    engine.default.gates = {0: asyncio.Event()}  # nothing ends before all have tried
    results = await asyncio.gather(
        *(
            services.turns.start(
                ME,
                text=f"try {number}",
                conversation_id=first.conversation_id,
                parent_id=first.message_id if branch else None,
            )
            for number in range(8)
        ),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 7
    engine.default.gates[0].set()
    await read(services, won[0].turn_id)
    # What was generated for the others meanwhile is dropped.
    await eventually(lambda: not engine.running and not services.turns.running_turn_ids())
    written = await services.database.read(lambda session: session.scalars(select(Message.content)).all())
    assert len(written) == 4


async def test_a_message_sent_twice_with_one_id_is_sent_once(
    services: Services, engine: FakeEngine, stranger: str, open_services: Callable[[], Awaitable[Services]]
) -> None:
    """Together, one after the other, into the same conversation, and after a restart; for each person by themselves."""
    send = partial(services.turns.start, text="once", request_id="r1", settings=ChatSettings(system_prompt="Hm."))
    first, *others = await asyncio.gather(*(send(ME) for _ in range(5)))
    assert others == [first] * 4
    await read(services, first.turn_id)
    assert await send(ME) == first
    assert await services.turns.start(ME, text="else", request_id="r1", conversation_id=first.conversation_id) == first
    second = await services.turns.start(ME, text="on", request_id="r2", conversation_id=first.conversation_id)
    assert second.conversation_id == first.conversation_id
    assert second.turn_id != first.turn_id
    await read(services, second.turn_id)
    theirs = await send(stranger)
    assert theirs.conversation_id != first.conversation_id
    async for _ in services.turns.events(stranger, theirs.turn_id):
        pass
    assert len((await services.conversations.get(ME, first.conversation_id)).messages) == 4
    assert await services.database.read(lambda session: session.scalar(select(func.count(Turn.id)))) == 3
    await eventually(lambda: not engine.running and not services.turns.running_turn_ids())
    await services.close()
    later = await open_services()
    assert await later.turns.start(ME, text="once", request_id="r1") == first


async def test_a_message_that_was_refused_may_be_sent_again_with_its_id(services: Services, engine: FakeEngine) -> None:
    engine.refuse = EngineOverloadedError("full")
    with pytest.raises(Overloaded):
        await services.turns.start(ME, text="hi", request_id="r")
    engine.refuse = None
    ref = await services.turns.start(ME, text="hi", request_id="r")
    await read(services, ref.turn_id)
    assert len(engine.calls) == 1


async def test_a_start_whose_caller_leaves_is_whole(services: Services, engine: FakeEngine) -> None:
    """Cancelled at any point of its way, a message is sent with its reply, or it is not."""
    for steps in range(12):
        start = asyncio.create_task(services.turns.start(ME, text=f"left after {steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait({start})
    # Closing waits for what is on its way.
    await services.turns.close()
    for item in (await services.conversations.list(ME)).items:
        assert not item.streaming
        _, reply = (await services.conversations.get(ME, item.id)).messages
        assert (reply.status, reply.content) == (MessageStatus.COMPLETE, "Hello, world.")
    assert engine.running == 0


async def test_readers_come_at_any_offset_and_leave_at_any_time(services: Services, engine: FakeEngine) -> None:
    gates = {3: asyncio.Event(), 6: asyncio.Event()}
    pieces = [f"{number} " for number in range(8)]
    whole = "".join(pieces)
    engine.say(*pieces, gates=gates)
    ref = await services.turns.start(ME, text="count")
    left = services.turns.events(ME, ref.turn_id)
    seen = await anext(left)
    await left.aclose()  # type: ignore[attr-defined]
    assert isinstance(seen, TurnText)
    readers = [asyncio.create_task(read(services, ref.turn_id, offset)) for offset in range(len(whole) + 3)]
    gates[3].set()
    gates[6].set()
    for offset, reader in enumerate(readers):
        events = await reader
        start = min(offset, len(whole))
        assert text_of(events)[-max(len(whole) - start, 0) :] == whole[start:]
        assert end_of(events).offset == len(whole)
    for offset in range(len(whole) + 3):  # and from the database
        assert text_of(await read(services, ref.turn_id, offset)) == whole[offset:]


async def test_a_slow_reader_gets_what_it_missed_in_one_piece(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say(*["a"] * 500, gates={1: gate})
    ref = await services.turns.start(ME, text="long")
    slow = services.turns.events(ME, ref.turn_id)
    first = await anext(slow)
    gate.set()
    await read(services, ref.turn_id)  # a fast one has gone through all of it
    rest = [event async for event in slow]
    assert isinstance(first, TurnText)
    assert [type(event) for event in rest] == [TurnText, TurnEnd]
    assert first.text + text_of(rest) == "a" * 500


async def test_the_prompts_progress_is_told_until_the_text_begins(services: Services, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.say("x", gates={0: gate}, progress=[PrefillProgress(10, 100), PrefillProgress(60, 100)])
    ref = await services.turns.start(ME, text="long prompt")
    reader = services.turns.events(ME, ref.turn_id)
    told = [await anext(reader)]
    while told[-1] != TurnProgress(60, 100):  # a reader who is late for the first one is not told it
        told.append(await anext(reader))
    assert told[:-1] in ([], [TurnProgress(10, 100)])
    assert (await services.turns.snapshot(ME, ref.turn_id)).progress == TurnProgress(60, 100)
    gate.set()
    await anext(reader)
    assert (await services.turns.snapshot(ME, ref.turn_id)).progress is None
    assert not any(isinstance(event, TurnProgress) for event in await read(services, ref.turn_id))


async def test_stop_keeps_what_was_shown_and_frees_the_engine(services: Services, engine: FakeEngine) -> None:
    engine.say("shown ", "never", gates={1: asyncio.Event()})
    ref = await services.turns.start(ME, text="go")
    reader = services.turns.events(ME, ref.turn_id)
    assert await anext(reader) == TurnText("shown ", 6)
    await services.turns.stop(ME, ref.turn_id)
    assert (engine.running, engine.aborted) == (0, 1)
    assert (await services.conversations.get_message(ME, ref.message_id)).status is MessageStatus.STOPPED
    await services.turns.stop(ME, ref.turn_id)  # again
    end = end_of([event async for event in reader])
    assert end.status is MessageStatus.STOPPED
    await services.turns.stop(ME, ref.turn_id)  # too late
    message = await services.conversations.get_message(ME, ref.message_id)
    assert (message.content, message.status, message.error) == ("shown ", MessageStatus.STOPPED, None)
    assert message.stats is not None
    assert (message.stats.completion_tokens, message.stats.finish_reason) == (1, "abort")
    assert message.stats.cached_prompt_tokens == CACHED_PROMPT_TOKENS
    assert message.stats.queue_ms == pytest.approx(1000 * QUEUE_SECONDS)
    assert message.stats.tokenize_ms is not None
    follow_up = await services.turns.start(ME, text="and now", conversation_id=ref.conversation_id)
    await read(services, follow_up.turn_id)
    assert [message["content"] for message in engine.calls[-1][0]] == ["go", "shown ", "and now"]


@pytest.mark.parametrize("steps", range(8))
async def test_stop_and_the_end_may_come_in_any_order(services: Services, engine: FakeEngine, steps: int) -> None:
    engine.say("a", "b")
    ref = await services.turns.start(ME, text="race")
    for _ in range(steps):
        await asyncio.sleep(0)
    await services.turns.stop(ME, ref.turn_id)
    events = await read(services, ref.turn_id)
    message = await services.conversations.get_message(ME, ref.message_id)
    assert message.content == text_of(events)
    assert message.status is end_of(events).status
    if message.status is MessageStatus.COMPLETE:
        assert message.content == "ab"
        assert message.stats is not None
        assert message.stats.finish_reason == "stop"
    else:
        assert message.status is MessageStatus.STOPPED
        assert "ab".startswith(message.content)


async def test_an_engine_that_fails_keeps_what_had_arrived(services: Services, engine: FakeEngine) -> None:
    engine.say("half ", "rest", fail_at=1, error=EngineError("The GPU is gone."))
    ref = await services.turns.start(ME, text="go")
    events = await read(services, ref.turn_id)
    assert text_of(events) == "half "
    end = end_of(events)
    assert (end.status, end.error) == (MessageStatus.ERROR, "The GPU is gone.")
    message = await services.conversations.get_message(ME, ref.message_id)
    assert (message.content, message.error) == ("half ", "The GPU is gone.")


async def test_a_bug_in_the_engine_is_logged_and_not_shown(
    services: Services, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.say("a", fail_at=0, error=KeyError("internal detail"))
    ref = await services.turns.start(ME, text="go")
    end = end_of(await read(services, ref.turn_id))
    assert end.error is not None
    assert "internal detail" not in end.error
    assert "internal detail" in caplog.text


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_reply_that_ends_without_its_end_is_interrupted(
    services: Services, engine: FakeEngine, reason: FinishReason
) -> None:
    engine.say("half", finish_reason=reason)
    ref = await services.turns.start(ME, text="go")
    end = end_of(await read(services, ref.turn_id))
    assert end.status is MessageStatus.INTERRUPTED
    assert end.error


async def test_a_failed_question_is_not_asked_twice(services: Services, engine: FakeEngine) -> None:
    engine.say("never", fail_at=0)
    first = await services.turns.start(ME, text="question")
    await read(services, first.turn_id)
    again = await services.turns.start(ME, text="question", conversation_id=first.conversation_id)
    await read(services, again.turn_id)
    assert [message["content"] for message in engine.calls[-1][0]] == ["question"]


async def test_deleting_a_conversation_ends_its_reply(services: Services, engine: FakeEngine) -> None:
    engine.say("a", "b", gates={1: asyncio.Event()})
    ref = await services.turns.start(ME, text="go")
    reader = services.turns.events(ME, ref.turn_id)
    await anext(reader)
    await services.turns.delete_conversation(ME, ref.conversation_id)
    assert engine.running == 0
    assert end_of([event async for event in reader]).status is MessageStatus.STOPPED
    with pytest.raises(NotFound):
        await services.conversations.get(ME, ref.conversation_id)
    with pytest.raises(NotFound):
        await services.conversations.get_message(ME, ref.user_message_id)
    with pytest.raises(NotFound):
        await read(services, ref.turn_id)


async def test_settings_are_saved_with_the_turn_and_kept_for_the_next(services: Services, engine: FakeEngine) -> None:
    first = await services.turns.start(ME, text="hi", settings=ChatSettings(temperature=0.3))
    await read(services, first.turn_id)
    second = await services.turns.start(
        ME, text="hi", conversation_id=first.conversation_id, settings=ChatSettings(seed=7)
    )
    await read(services, second.turn_id)
    assert await services.conversations.settings_of(ME, first.conversation_id) == ChatSettings(seed=7)
    third = await services.turns.start(ME, text="hi", conversation_id=first.conversation_id)
    await read(services, third.turn_id)
    params = engine.calls[-1][1]
    assert params is not None
    assert (params.seed, params.temperature) == (7, None)


async def test_fifty_replies_at_once_do_not_mix(services: Services, engine: FakeEngine) -> None:
    for number in range(50):
        engine.say(*[f"{number};"] * 20)
    refs = [await services.turns.start(ME, text=f"{number}") for number in range(50)]
    for number, events in enumerate(await asyncio.gather(*(read(services, ref.turn_id) for ref in refs))):
        assert text_of(events) == f"{number};" * 20


async def test_what_no_database_takes_is_cleaned_from_replies(services: Services, engine: FakeEngine) -> None:
    engine.say("a\0b", "\ud800", "c")
    ref = await services.turns.start(ME, text="half \ud83d")
    assert text_of(await read(services, ref.turn_id)) == "ab\ufffdc"
    messages = (await services.conversations.get(ME, ref.conversation_id)).messages
    assert [message.content for message in messages] == ["half \ufffd", "ab\ufffdc"]
