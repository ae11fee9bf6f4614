"""Sorting passages by the model: its order where it judges, the search's where it fails, is busy or takes too long."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from app.knowledge import reranking
from app.knowledge.reranking import Reranker, share_of_yes
from app.templates.files import read_knowledge_prompt
from engine import Caller, EngineError, EngineOverloadedError, Logprob, UnsupportedParameterError
from testing.injections import INJECTIONS
from testing.judging_engine import JudgingEngine
from testing.knowledge import passage

FOUND = [passage(text, number) for number, text in enumerate(["cats", "dogs", "birds", "fish", "frogs"], start=1)]


def make(engine: JudgingEngine) -> Reranker:
    return read_knowledge_prompt("rerank", lambda template: Reranker(engine, template))


async def test_the_model_sorts_the_first_passages() -> None:
    engine = JudgingEngine(cats=0.1, dogs=0.4, birds=0.9, frogs=1.0)
    found = await make(engine).rerank("Which one flies?", FOUND, count=4)
    assert [one.text for one in found] == ["birds", "dogs", "cats", "fish", "frogs"]
    assert {one.score for one in found} == {1.0}  # as the search gave it: the threshold means one thing
    assert len(engine.judged) == 4


async def test_the_prompts_of_a_question_begin_alike() -> None:
    """Up to the passage, so that the prefix cache serves all but the first."""
    engine = JudgingEngine()
    await make(engine).rerank("Which one flies?", FOUND, count=5)
    assert len({prompt.partition("<source")[0] for prompt in engine.judged}) == 1
    assert engine.judged[0].startswith("Question: Which one flies?")


async def test_few_are_asked_at_once() -> None:
    engine = JudgingEngine()
    many = [passage(f"number {number}", number) for number in range(1, 51)]
    assert await make(engine).rerank("?", many, count=50) == many
    assert (len(engine.judged), engine.most_at_once) == (50, 8)


@pytest.mark.parametrize("fails_at", [0, 1, 4])
async def test_a_model_that_fails_leaves_the_order(fails_at: int) -> None:
    engine = JudgingEngine(birds=1.0)
    engine.fails_at = fails_at
    assert await make(engine).rerank("?", FOUND, count=5) == FOUND
    assert engine.running == 0
    with pytest.raises(EngineError):
        await make(engine).sort("?", FOUND, count=5)


@pytest.mark.parametrize(
    "refusal", [EngineOverloadedError("The queue is full."), UnsupportedParameterError("logprobs is not supported.")]
)
async def test_a_model_that_refuses_leaves_the_order(refusal: EngineError) -> None:
    engine = JudgingEngine(birds=1.0)
    engine.refuse = refusal
    assert await make(engine).rerank("?", FOUND, count=5) == FOUND


async def test_a_slow_model_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "MAX_SECONDS", 0.01)
    engine = JudgingEngine(birds=1.0)
    engine.waits_from = 0
    assert await make(engine).rerank("?", FOUND, count=5) == FOUND
    assert (engine.running, engine.aborted) == (0, 1)


async def test_leaving_aborts_all_requests() -> None:
    engine = JudgingEngine()
    engine.waits_from = 1
    leaving = asyncio.create_task(make(engine).rerank("?", FOUND, count=5))
    while engine.running < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (engine.running, engine.aborted) == (0, 4)


@pytest.mark.parametrize("count", [0, 1])
async def test_nothing_is_asked_where_nothing_can_change(count: int) -> None:
    engine = JudgingEngine()
    assert await make(engine).rerank("?", FOUND, count=count) == FOUND
    assert await make(engine).rerank("?", FOUND[:1], count=5) == FOUND[:1]
    assert engine.judged == []


async def test_a_passage_is_judged_within_its_delimiters() -> None:
    engine = JudgingEngine()
    evil = [passage(text, number, title=text) for number, text in enumerate(INJECTIONS, start=1)]
    await make(engine).rerank("{{ source }}?", evil, count=len(evil))
    assert len(engine.judged) == len(evil)
    for prompt in engine.judged:
        assert prompt.count("<source") == prompt.count("</source") == 1
        assert prompt.startswith("Question: {{ source }}?\n")


async def test_judgements_are_the_users_own_requests() -> None:
    """Nothing of one user's passages is found in the prefix cache by another."""
    callers: list[Caller | None] = []

    class Watched(JudgingEngine):
        async def prepare(self, *arguments, **options):  # type: ignore[no-untyped-def]
            callers.append(options["caller"])
            return await super().prepare(*arguments, **options)

    await make(Watched()).rerank("?", FOUND, count=3, caller=Caller("ada"))
    assert callers == [Caller("ada")] * 3


async def test_a_model_that_can_think_does_not() -> None:
    engine = JudgingEngine(birds=1.0)
    seen = []

    async def prepare(*arguments, **options):  # type: ignore[no-untyped-def]
        seen.append(options["options"].thinking)
        return await JudgingEngine.prepare(engine, *arguments, **options)

    engine.prepare = prepare  # type: ignore[method-assign]
    engine._info = replace(engine.info, can_think=True)
    await make(engine).rerank("?", FOUND, count=2)
    assert seen == [False, False]


def test_the_share_of_yes() -> None:
    def top(**chances: float) -> list[Logprob]:
        return [Logprob(1, math.log(chance), word, word.encode()) for word, chance in chances.items()]

    assert share_of_yes(top(Yes=0.3, yes=0.1, No=0.1, Perhaps=0.5)) == pytest.approx(0.8)
    assert share_of_yes(top(No=0.01)) == 0
    assert share_of_yes(top(Yesterday=0.9)) == 0
    assert share_of_yes([Logprob(-1, None, "Yes", b"Yes")]) == 0
    assert share_of_yes([]) == 0


@pytest.mark.parametrize("template", ["{{ question }}", "{{ source }} {{ question }}", "{{ question }}" * 2])
def test_a_template_without_its_places_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="it needs"):
        Reranker(JudgingEngine(), template)
