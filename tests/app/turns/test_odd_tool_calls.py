"""Calls of tools that a model should not make, or that the user may no longer allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import MAX_TOOL_ID_CHARS, MAX_TOOL_USES
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.tool_use import ToolUseStatus
from app.services.container import Services
from app.turns import tool_rounds
from app.turns.checkpoints import NOT_SAVED_YET
from engine import ToolCallDelta
from testing.fake_engine import FakeEngine, Script, call_pieces
from testing.tool_servers import DemoTools
from tests.app.turns.test_tool_calls import ORDER, allowed, asked, free, last, read, start, waiting
from tests.app.turns.test_turn_faults import disk, first_notice, only_sqlite

__all__ = ["asked", "free"]  # fixtures


async def test_a_model_that_calls_tools_where_it_must_answer_ends_its_reply(
    services: Services, engine: FakeEngine, free: DemoTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_rounds, "MAX_ROUNDS", 3)
    engine.default = Script(pieces=ORDER)  # as a model server that ignores tool_choice
    ref = await start(services)
    async with asyncio.timeout(10):
        await read(services, ref)
    uses = (await last(services, ref)).tool_uses
    assert [use.status for use in uses] == [*3 * [ToolUseStatus.DONE], ToolUseStatus.FAILED]
    assert uses[-1].result == tool_rounds.TOO_MANY_ROUNDS
    assert len(free.calls) == 3


async def test_ids_that_repeat_or_are_too_long_tell_the_calls_apart(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    ids = ("call-0-1", "", "a\0", "a", "call-0-4", MAX_TOOL_ID_CHARS * "i", 5000 * "i")
    for _ in range(2):
        calls = [call_pieces("desk__order", f'{{"number": {index}}}', index=index) for index in range(len(ids))]
        engine.say(
            *(
                piece if piece.name is None else replace(piece, id=ids[piece.index])
                for pieces in calls
                for piece in pieces
            )
        )
    engine.say("Done.")
    ref = await start(services)
    await read(services, ref)
    uses = (await last(services, ref)).tool_uses
    assert len({use.id for use in uses}) == len(uses) == 2 * len(ids)
    assert all(0 < len(use.id) <= MAX_TOOL_ID_CHARS for use in uses)
    assert [use.result for use in uses] == 2 * [f"Order {index} was sent on Monday." for index in range(len(ids))]


async def test_thousands_of_calls_at_once_are_not_all_kept(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    engine.say(*(ToolCallDelta(index, id=f"{index}", name="desk__order") for index in range(3000)))
    engine.say("Done.")
    ref = await start(services)
    await read(services, ref)
    uses = (await last(services, ref)).tool_uses
    assert len(uses) == tool_rounds.MAX_KEPT_PER_ROUND
    assert tool_rounds.MAX_KEPT_PER_ROUND * (tool_rounds.MAX_ROUNDS + 1) <= MAX_TOOL_USES  # the export can be imported


@pytest.mark.parametrize(
    "arguments",
    [
        f'{{"number": {"1" * 5000}}}',
        '{"number": NaN}',
        '{"number": 7, "more": "\\ud800"}',
        200 * '{"number":',
        50_000 * "[",
    ],
    ids=["number", "NaN", "surrogate", "depth", "no end"],
)
async def test_arguments_that_no_server_could_be_sent_are_refused(
    services: Services, engine: FakeEngine, free: DemoTools, arguments: str
) -> None:
    engine.say(*call_pieces("desk__order", arguments))
    engine.say("I could not.")
    ref = await start(services)
    await read(services, ref)
    reply = await last(services, ref)
    assert reply.content == "I could not."
    assert reply.tool_uses[0].result.startswith("The arguments are not JSON")
    assert free.calls == []


@pytest.mark.parametrize(
    "changed", [ChatSettings(use_tools=False), ChatSettings(system_prompt_name="teacher")], ids=["off", "other prompt"]
)
async def test_a_tool_that_the_chat_no_longer_has_does_not_run_by_an_older_question(
    services: Services, engine: FakeEngine, asked: DemoTools, changed: ChatSettings
) -> None:
    ref, use = await waiting(services, engine)
    engine.say("Then I cannot tell.")
    await services.turns.decide(ME, ref.message_id, allowed(use.id), settings=changed)
    await read(services, ref)
    reply = await last(services, ref)
    assert reply.tool_uses[0].result == "There is no tool desk__order in this chat."
    assert reply.content == "Let me look.\n\nThen I cannot tell."
    assert asked.calls == []


async def test_a_server_that_is_slow_to_list_its_tools_is_called_all_the_same(
    services: Services, engine: FakeEngine, asked: DemoTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, use = await waiting(services, engine)

    async def no_answer(names: Sequence[str]) -> None:
        """As soon after a restart, where a server is not waited for any longer."""

    services.tools._listed.clear()
    monkeypatch.setattr(services.tools, "_refresh", no_answer)
    engine.say("It was sent.")
    await services.turns.decide(ME, ref.message_id, allowed(use.id))
    await read(services, ref)
    assert engine.options[-1].tools == ()
    assert asked.calls == ["order 7"]


async def test_with_a_model_that_calls_no_tools_the_conversation_goes_on_without_them(
    services: Services, engine: FakeEngine, asked: DemoTools
) -> None:
    ref, use = await waiting(services, engine)
    engine._info = replace(engine.info, can_call_tools=False)  # another model is loaded
    engine.say("I cannot tell.")
    await services.turns.decide(ME, ref.message_id, allowed(use.id))
    await read(services, ref)
    assert asked.calls == []
    await read(services, await start(services, "Why?", conversation_id=ref.conversation_id))
    assert [message["content"] for message in engine.calls[-1][0]] == [
        "Where is order 7?",
        "Let me look.\n\nI cannot tell.",
        "Why?",
    ]


@only_sqlite
async def test_no_tool_runs_before_it_is_saved_that_it_was_called(
    services: Services, engine: FakeEngine, free: DemoTools
) -> None:
    gate = asyncio.Event()
    arguments = f'{{"number": 7, "more": "{50_000 * "x"}"}}'  # needs more pages of the file
    engine.say("Wait.", *call_pieces("desk__order", arguments), gates={1: gate})
    engine.say("Monday.")
    ref = await start(services)
    notices = asyncio.create_task(first_notice(services, ref.turn_id))
    await disk(services, full=True)
    gate.set()
    assert (await notices).message == NOT_SAVED_YET
    await asyncio.sleep(0.3)
    assert free.calls == []
    await disk(services, full=False)
    await read(services, ref)
    assert free.calls == ["order 7"]
