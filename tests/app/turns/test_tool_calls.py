"""Replies that call tools: decided by the user, run, continued; stopped, killed, refused; on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.prompting import NO_ANSWER
from app.domain.tool_use import CUT_OFF, NOT_APPROVED, ToolUse, ToolUseStatus
from app.domain.views import MessageStatus, MessageView
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.store.db.models import Conversation, Message, Turn
from app.turns import tool_rounds
from app.turns.events import TurnEnd, TurnEvent, TurnText, TurnToolUse
from app.turns.service import TurnRef
from app.turns.turn_requests import ToolDecision
from engine import FinishReason, ToolCall, ToolChoiceMode
from testing.fake_engine import QUEUE_SECONDS, FakeEngine, Thought, call_pieces
from testing.tool_servers import DemoTools, install_demo_tools
from testing.waiting import eventually

ORDER = call_pieces("desk__order", '{"number":', " 7}")


@pytest.fixture
def asked(services: Services, engine: FakeEngine) -> DemoTools:
    """Tools about which the user is asked."""
    return install_demo_tools(services, engine)


@pytest.fixture
def free(services: Services, engine: FakeEngine) -> DemoTools:
    """Tools that run without asking."""
    return install_demo_tools(services, engine, auto_approve=("order", "slow", "fail", "large"))


async def read(services: Services, ref: TurnRef) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, ref.turn_id)]


async def last(services: Services, ref: TurnRef) -> MessageView:
    return (await services.conversations.get(ME, ref.conversation_id)).messages[-1]


async def start(services: Services, text: str = "Where is order 7?", **options: object) -> TurnRef:
    return await services.turns.start(ME, text=text, **options)  # type: ignore[arg-type]


def allowed(*ids: str, for_chat: bool = False) -> ToolDecision:
    return ToolDecision(frozenset(ids), frozenset(), frozenset(ids) if for_chat else frozenset())


def denied(*ids: str) -> ToolDecision:
    return ToolDecision(frozenset(), frozenset(ids))


async def waiting(services: Services, engine: FakeEngine, *pieces: object) -> tuple[TurnRef, ToolUse]:
    """A reply that waits for a decision about one call."""
    engine.say(*(pieces or ("Let me look.", *ORDER)))  # type: ignore[arg-type]
    ref = await start(services)
    await read(services, ref)
    return ref, (await last(services, ref)).tool_uses[-1]


async def test_a_call_that_is_approved_runs_and_the_reply_goes_on(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say(Thought("An order."), "Let me look.", *ORDER)
    engine.say(Thought("Monday."), "It was sent", " on Monday.")
    ref = await start(services)
    live = await read(services, ref)
    for events in (live, await read(services, ref)):  # in flight, and from the database
        text = "".join(event.text for event in events if isinstance(event, TurnText))
        assert text == "Let me look.\n\nIt was sent on Monday."
        told = [event.use for event in events if isinstance(event, TurnToolUse)][-1]
        assert (told.status, told.result) == (ToolUseStatus.DONE, "Order 7 was sent on Monday.")
        assert (told.at, told.reasoning_at, told.round) == (len("Let me look."), len("An order."), 0)
        assert told.seconds is not None
        end = events[-1]
        assert isinstance(end, TurnEnd)
        assert end.status is MessageStatus.COMPLETE
        assert end.stats is not None
        assert (end.stats.finish_reason, end.stats.completion_tokens) == ("stop", 2 + len(ORDER) + 3)
        assert end.stats.queue_ms == pytest.approx(1000 * QUEUE_SECONDS)
        assert end.stats.tokenize_ms is not None
        assert end.stats.decode_ms is not None
    assert free.calls == ["order 7"]
    first, second = engine.options
    assert {tool.name for tool in first.tools} == {"desk__order", "desk__slow", "desk__fail", "desk__large"}
    assert second.tools == first.tools
    use = (await last(services, ref)).tool_uses[0]
    call = ToolCall(use.id, "desk__order", '{"number": 7}')
    past = [
        {"role": "user", "content": "Where is order 7?"},
        {"role": "assistant", "content": "Let me look.", "reasoning": "An order.", "tool_calls": [call]},
        {"role": "tool", "content": "Order 7 was sent on Monday.", "tool_call_id": use.id},
    ]
    assert engine.calls[-1][0] == past
    engine.say("Yes.")
    await read(services, await start(services, "Sure?", conversation_id=ref.conversation_id))
    reply = {"role": "assistant", "content": "It was sent on Monday.", "reasoning": "Monday."}
    assert engine.calls[-1][0] == [*past, reply, {"role": "user", "content": "Sure?"}]


async def test_nothing_runs_before_the_user_allows_it(services: Services, engine: FakeEngine, asked: DemoTools) -> None:
    ref, use = await waiting(services, engine)
    reply = await last(services, ref)
    assert (reply.status, reply.content) == (MessageStatus.COMPLETE, "Let me look.")
    assert reply.stats is not None
    assert reply.stats.finish_reason == "tool_calls"
    assert use.status is ToolUseStatus.WAITING
    assert asked.calls == []
    with pytest.raises(InvalidInput, match="waits for your decision"):
        await services.turns.resume(ME, ref.message_id)
    engine.say("It was sent on Monday.")
    again = await services.turns.decide(ME, ref.message_id, allowed(use.id))
    assert (again.turn_id, again.message_id) == (ref.turn_id, ref.message_id)
    await read(services, ref)
    reply = await last(services, ref)
    assert reply.content == "Let me look.\n\nIt was sent on Monday."
    assert reply.tool_uses[0].status is ToolUseStatus.DONE
    assert asked.calls == ["order 7"]
    with pytest.raises(InvalidInput, match="does not wait"):
        await services.turns.decide(ME, ref.message_id, allowed(use.id))


async def test_a_denied_call_never_runs_and_the_model_is_told(
    services: Services, engine: FakeEngine, asked: DemoTools
) -> None:
    ref, use = await waiting(services, engine)
    engine.say("Then I cannot tell.")
    await services.turns.decide(ME, ref.message_id, denied(use.id))
    await read(services, ref)
    assert asked.calls == []
    assert engine.calls[-1][0][-1] == {"role": "tool", "content": NOT_APPROVED, "tool_call_id": use.id}
    reply = await last(services, ref)
    assert (reply.tool_uses[0].status, reply.content) == (
        ToolUseStatus.DENIED,
        "Let me look.\n\nThen I cannot tell.",
    )


async def test_what_is_allowed_for_the_chat_is_not_asked_again_there_and_elsewhere_it_is(
    services: Services, engine: FakeEngine, asked: DemoTools
) -> None:
    ref, use = await waiting(services, engine)
    engine.say("Monday.")
    await services.turns.decide(ME, ref.message_id, allowed(use.id, for_chat=True))
    await read(services, ref)
    for _ in range(2):  # the context from the database, and the one that is kept
        engine.say(*ORDER)
        engine.say("Monday.")
        await read(services, await start(services, conversation_id=ref.conversation_id))
    assert asked.calls == 3 * ["order 7"]
    engine.say(*call_pieces("desk__fail", "{}"))
    await read(services, (other := await start(services, conversation_id=ref.conversation_id)))
    assert (await last(services, other)).tool_uses[0].status is ToolUseStatus.WAITING  # another tool
    _, use = await waiting(services, engine)  # another chat
    assert use.status is ToolUseStatus.WAITING
    assert asked.calls == 3 * ["order 7"]


async def test_a_decision_is_about_all_that_waits_and_nothing_else(
    services: Services, engine: FakeEngine, asked: DemoTools
) -> None:
    both = (*call_pieces("desk__order", '{"number": 1}'), *call_pieces("desk__order", '{"number": 2}', index=1))
    ref, _ = await waiting(services, engine, *both)
    one, two = (use.id for use in (await last(services, ref)).tool_uses)
    for wrong in (allowed(one), allowed(one, two, "other"), denied()):
        with pytest.raises(InvalidInput, match="Decide about each call"):
            await services.turns.decide(ME, ref.message_id, wrong)
    with pytest.raises(InvalidInput, match="both allowed and denied"):
        await services.turns.decide(ME, ref.message_id, ToolDecision(frozenset({one, two}), frozenset({two})))
    with pytest.raises(NotFound):
        await services.turns.decide(new_id(), ref.message_id, allowed(one, two))
    assert asked.calls == []
    engine.say("Done.")
    await services.turns.decide(ME, ref.message_id, ToolDecision(frozenset({two}), frozenset({one})))
    await read(services, ref)
    assert asked.calls == ["order 2"]


async def test_of_two_decisions_at_once_one_counts(services: Services, engine: FakeEngine, asked: DemoTools) -> None:
    ref, use = await waiting(services, engine)
    engine.say("Monday.")
    results = await asyncio.gather(
        *(services.turns.decide(ME, ref.message_id, allowed(use.id)) for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(result, TurnRef) for result in results) == 1
    assert all(isinstance(result, TurnRef | Conflict | InvalidInput) for result in results)
    await read(services, ref)
    assert asked.calls == ["order 7"]


async def test_an_approved_call_waits_for_one_that_is_not(services: Services, engine: FakeEngine) -> None:
    demo = install_demo_tools(services, engine, auto_approve=("order",))
    both = (*call_pieces("desk__order", '{"number": 1}'), *call_pieces("desk__fail", "{}", index=1))
    ref, _ = await waiting(services, engine, *both)
    approved, asked = (await last(services, ref)).tool_uses
    assert (approved.status, asked.status, demo.calls) == (ToolUseStatus.ALLOWED, ToolUseStatus.WAITING, [])
    engine.say("Done.")
    await services.turns.decide(ME, ref.message_id, denied(asked.id))
    await read(services, ref)
    assert demo.calls == ["order 1"]


async def test_a_message_instead_of_a_decision_denies(services: Services, engine: FakeEngine, asked: DemoTools) -> None:
    ref, use = await waiting(services, engine)
    engine.say("As you like.")
    await read(services, await start(services, "Never mind.", conversation_id=ref.conversation_id))
    *_, result, end, message = engine.calls[-1][0]
    assert (result["content"], end["content"], message["content"]) == (NOT_APPROVED, NO_ANSWER, "Never mind.")
    with pytest.raises(InvalidInput, match="A message follows"):
        await services.turns.decide(ME, ref.message_id, allowed(use.id))
    assert asked.calls == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (call_pieces("desk__fail", "{}"), "Error executing tool fail"),
        (call_pieces("desk__order", "{}"), "number"),
        (call_pieces("desk__order", "[1]"), "must be a JSON object"),
        (call_pieces("desk__order", '{"number"'), "not JSON"),
        (call_pieces("desk__nothing", "{}"), "There is no tool desk__nothing"),
        (call_pieces("other__order", "{}"), "There is no tool other__order"),
        (call_pieces("desk__order", "x" * 200_000), "longer than"),
        (call_pieces("\0" + 5000 * "n", "\0\ud800"), "There is no tool"),
    ],
)
async def test_a_call_that_fails_is_a_result_and_the_reply_goes_on(
    services: Services, engine: FakeEngine, free: DemoTools, call: tuple[object, ...], text: str
) -> None:
    engine.say(*call)  # type: ignore[arg-type]
    engine.say("I could not.")
    ref = await start(services)
    await read(services, ref)
    reply = await last(services, ref)
    assert (reply.status, reply.content) == (MessageStatus.COMPLETE, "I could not.")
    assert reply.tool_uses[0].status is ToolUseStatus.FAILED
    assert text in reply.tool_uses[0].result
    assert text in engine.calls[-1][0][-1]["content"]
    assert not any(one.startswith("order") for one in free.calls)


async def test_a_long_result_is_cut_to_what_the_model_can_read(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say(*call_pieces("desk__large", "{}"))
    engine.say("Long.")
    ref = await start(services)
    await read(services, ref)
    assert free.calls == ["large"]
    assert len((await last(services, ref)).tool_uses[0].result) < engine.info.max_model_len + 100


async def test_too_many_calls_at_once_and_too_many_rounds_end(
    services: Services, engine: FakeEngine, free: DemoTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_rounds, "MAX_ROUNDS", 3)
    many = [piece for index in range(20) for piece in call_pieces("desk__order", '{"number": 1}', index=index)]
    engine.say(*many)
    engine.say(*ORDER)
    engine.say(*ORDER)
    engine.say("Enough.")
    ref = await start(services)
    await read(services, ref)
    uses = (await last(services, ref)).tool_uses
    assert [use.status for use in uses].count(ToolUseStatus.FAILED) == 4
    assert len(free.calls) == 16 + 2
    assert len({use.id for use in uses}) == len(uses) == 22
    assert [options.tool_choice for options in engine.options] == [*3 * [ToolChoiceMode.AUTO], ToolChoiceMode.NONE]


async def test_many_calls_of_one_user_leave_half_of_the_server_to_others(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say(*(piece for index in range(16) for piece in call_pieces("desk__slow", "{}", index=index)))
    engine.say("At last.")
    ref = await start(services)
    await eventually(lambda: len(free.calls) == 4)
    order = ToolUse(id="1", name="desk__order", arguments='{"number": 7}', round=0, at=0)
    assert (await services.tools.run(order, ("desk",), user_id=new_id())).status is ToolUseStatus.DONE
    assert free.calls == [*4 * ["slow"], "order 7"]
    free.gate.set()
    await read(services, ref)
    assert free.calls.count("slow") == 16


async def test_a_call_that_the_maximum_length_broke_off_is_not_made(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say("Let me look.", *ORDER, finish_reason=FinishReason.LENGTH)
    ref = await start(services)
    await read(services, ref)
    reply = await last(services, ref)
    assert reply.stats is not None
    assert reply.stats.finish_reason == "length"
    assert reply.tool_uses[0].result == tool_rounds.BROKEN_OFF
    assert free.calls == []
    engine.say("Monday.")
    await services.turns.resume(ME, ref.message_id)
    await read(services, ref)
    assert engine.calls[-1][0][-1]["content"] == tool_rounds.BROKEN_OFF
    assert (await last(services, ref)).content == "Let me look.\n\nMonday."


async def test_a_stop_while_a_tool_runs_ends_at_once_and_can_be_continued(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say("Wait.", *call_pieces("desk__slow", "{}"))
    ref = await start(services)
    await eventually(lambda: free.calls == ["slow"])
    use = (await last(services, ref)).tool_uses[0]
    assert use.status is ToolUseStatus.ALLOWED  # on disk before it runs
    await services.turns.stop(ME, ref.turn_id)
    reply = await last(services, ref)
    assert (reply.status, reply.content) == (MessageStatus.STOPPED, "Wait.")
    assert (reply.tool_uses[0].status, reply.tool_uses[0].result) == (ToolUseStatus.FAILED, CUT_OFF)
    engine.say("Never mind.")
    await services.turns.resume(ME, ref.message_id)
    await read(services, ref)
    assert engine.calls[-1][0][-1]["content"] == CUT_OFF
    assert (await last(services, ref)).content == "Wait.\n\nNever mind."
    assert free.calls == ["slow"]  # never twice


@pytest.mark.full
async def test_after_a_kill_a_call_that_ran_is_not_run_again(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say(*call_pieces("desk__slow", "{}"))
    ref = await start(services)
    await eventually(lambda: free.calls == ["slow"])

    def interrupt(session: Session) -> None:
        """What the start after a kill writes."""
        session.execute(update(Message).where(Message.id == ref.message_id).values(status="interrupted"))
        session.execute(update(Turn).where(Turn.id == ref.turn_id).values(status="interrupted", owner=new_id()))

    await services.database.write(interrupt)
    reply = await last(services, ref)
    assert reply.tool_uses[0].status is ToolUseStatus.ALLOWED
    await read(services, ref)  # the process that lost it lets go
    engine.say("Who knows.")
    await services.turns.resume(ME, ref.message_id)
    await read(services, ref)
    assert free.calls == ["slow"]
    assert engine.calls[-1][0][-1]["content"] == CUT_OFF


async def test_a_tool_that_never_answers_is_a_failed_call(services: Services, engine: FakeEngine) -> None:
    install_demo_tools(services, engine, auto_approve=("slow",), timeout_s=0.2)
    await services.tools.statuses()
    engine.say(*call_pieces("desk__slow", "{}"))
    engine.say("It did not answer.")
    ref = await start(services)
    await read(services, ref)
    use = (await last(services, ref)).tool_uses[0]
    assert (use.status, "did not answer" in use.result) == (ToolUseStatus.FAILED, True)


async def test_no_tools_where_they_are_not_wanted(services: Services, engine: FakeEngine, asked: DemoTools) -> None:
    for settings in (ChatSettings(use_tools=False), ChatSettings(json_schema="{}")):
        await read(services, await start(services, settings=settings))
        assert engine.options[-1].tools == ()
    await read(services, await start(services, settings=ChatSettings(system_prompt_name="teacher")))
    assert engine.options[-1].tools == ()  # no admin has chosen any for this prompt
    engine._info = replace(engine.info, can_call_tools=False)
    await read(services, await start(services))
    assert engine.options[-1].tools == ()


async def test_a_branch_and_an_import_do_not_inherit_what_was_allowed(
    services: Services, engine: FakeEngine, asked: DemoTools
) -> None:
    ref, use = await waiting(services, engine)
    engine.say("Monday.")
    await services.turns.decide(ME, ref.message_id, allowed(use.id, for_chat=True))
    await read(services, ref)
    branch = await services.conversations.branch(ME, ref.message_id)
    kept = await services.database.read(lambda session: session.get_one(Conversation, branch).allowed_tools)
    assert kept is None
    assert (await services.conversations.get(ME, branch)).messages[-1].tool_uses[0].status is ToolUseStatus.DONE
