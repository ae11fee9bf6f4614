"""Rewriting follow-ups: the model's question where it writes one, else the message itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.knowledge import rewriting
from app.knowledge.rewriting import MAX_CHARS, QuestionRewriter
from app.templates.files import read_knowledge_prompt
from engine import EngineOverloadedError, FinishReason, StructureKind
from testing.fake_engine import FakeEngine, Script

BEFORE = [("How long may goods be sent back from France?", "Within 30 days [1].")]
MESSAGE = "And for Germany?"
QUESTION = "How long may goods be sent back from Germany?"


def make(engine: FakeEngine) -> QuestionRewriter:
    return read_knowledge_prompt("rewrite", lambda template: QuestionRewriter(engine, template))


async def test_a_follow_up_becomes_a_question() -> None:
    engine = FakeEngine()
    engine._info = replace(engine.info, num_parameters=3_000_000_000)
    engine.say(f' "{QUESTION}" ')
    assert await make(engine).rewrite(MESSAGE, BEFORE) == QUESTION
    [(messages, params)] = engine.calls
    assert params is not None
    assert (params.temperature, params.max_tokens) == (0, 64)
    assert params.structured is not None
    assert params.structured.kind is StructureKind.REGEX
    assert "User: How long may goods be sent back from France?" in messages[-1]["content"]


async def test_the_first_message_is_searched_for_as_it_is() -> None:
    engine = FakeEngine()
    assert await make(engine).rewrite(MESSAGE, []) == MESSAGE
    assert engine.calls == []


@pytest.mark.parametrize("answer", ["", " ", '""', "Bananas are yellow.", "Germany " * 100])
async def test_what_is_no_question_is_not_searched_for(answer: str) -> None:
    engine = FakeEngine()
    engine.say(answer)
    assert await make(engine).rewrite(MESSAGE, BEFORE) == MESSAGE
    engine.say("How long may", finish_reason=FinishReason.LENGTH)
    assert await make(engine).rewrite(MESSAGE, BEFORE) == MESSAGE


async def test_a_model_that_fails_or_is_busy_leaves_the_message() -> None:
    engine = FakeEngine()
    engine.scripts.append(Script([QUESTION], fail_at=0))
    assert await make(engine).rewrite(MESSAGE, BEFORE) == MESSAGE
    engine.refuse = EngineOverloadedError("The queue is full.")
    assert await make(engine).rewrite(MESSAGE, BEFORE) == MESSAGE


async def test_a_slow_model_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "MAX_SECONDS", 0.01)
    engine = FakeEngine()
    engine.say(QUESTION, gates={0: asyncio.Event()})
    assert await make(engine).rewrite(MESSAGE, BEFORE) == MESSAGE
    assert (engine.running, engine.aborted) == (0, 1)


async def test_a_long_conversation_makes_a_short_prompt() -> None:
    engine = FakeEngine(max_model_len=100_000)
    await make(engine).rewrite("x" * 10_000, [("q" * 10_000, "a" * 10_000)] * 50)
    assert len(engine.calls[0][0][-1]["content"]) < 6000
    assert MAX_CHARS == 300
