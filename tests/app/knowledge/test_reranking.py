"""Sorting passages by the model: its order where it can score, else that of the search."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from app.errors import StartupError
from app.knowledge import reranking
from app.knowledge.reranking import (
    LIKELIHOOD_WEIGHT,
    MAX_PASSAGE_CHARS,
    MAX_QUESTION_TOKENS,
    Reranker,
    by_likelihood,
)
from app.knowledge.search import KnowledgeSearch
from app.services.knowledge import make_reranker, make_sources
from app.settings import AppSettings
from engine import Caller, EngineError, EngineOverloadedError, EngineSettings, RemoteEngine
from testing.injections import INJECTIONS
from testing.knowledge import ScriptedSearch, passage
from testing.likelihood_engine import UNLIKELY, LikelihoodEngine

FOUND = [passage(text, number) for number, text in enumerate(["cats", "dogs", "birds", "fish", "frogs"], start=1)]
QUESTION = "Which one flies?"


async def test_the_model_sorts_the_first_passages() -> None:
    engine = LikelihoodEngine(cats=-4.0, dogs=-3.0, birds=-1.0, frogs=0.0)
    found = await make_reranker(engine).rerank(QUESTION, FOUND, count=4)
    assert [one.text for one in found] == ["birds", "dogs", "cats", "fish", "frogs"]
    assert {one.score for one in found} == {1.0}  # as the search gave it: the threshold means one thing
    assert len(engine.scored) == 4


async def test_the_likelihood_is_that_of_the_question_as_a_reply() -> None:
    engine = LikelihoodEngine(birds=-1.5)
    assert await make_reranker(engine).likelihoods(QUESTION, FOUND[:3]) == pytest.approx([UNLIKELY, UNLIKELY, -1.5])
    for (asked, reply), one in zip(engine.scored, FOUND, strict=False):
        assert reply == {"role": "assistant", "content": QUESTION, "unfinished": True}
        assert one.text in asked["content"]
        assert QUESTION not in asked["content"]


def test_the_score_of_the_search_counts_too() -> None:
    near, far = replace(FOUND[0], score=0.6), replace(FOUND[1], score=0.5)
    enough = -3.0 + 0.1 / LIKELIHOOD_WEIGHT
    assert by_likelihood([near, far], [-3.0, enough + 0.01]) == [far, near]
    assert by_likelihood([near, far], [-3.0, enough - 0.01]) == [near, far]


async def test_few_are_scored_at_once() -> None:
    engine = LikelihoodEngine()
    many = [passage(f"number {number}", number) for number in range(1, 51)]
    assert await make_reranker(engine).rerank("?", many, count=50) == many
    assert (len(engine.scored), engine.most_at_once) == (50, 8)


@pytest.mark.parametrize("fails_at", [0, 1, 4])
async def test_a_model_that_fails_leaves_the_order(fails_at: int) -> None:
    engine = LikelihoodEngine(birds=-1.0)
    engine.fails_at = fails_at
    assert await make_reranker(engine).rerank("?", FOUND, count=5) == FOUND
    assert engine.running == 0
    with pytest.raises(EngineError):
        await make_reranker(engine).sort("?", FOUND, count=5)


async def test_a_probability_that_is_missing_leaves_the_order() -> None:
    assert await make_reranker(LikelihoodEngine(birds=-1.0, fish=None)).rerank("?", FOUND, count=5) == FOUND


@pytest.mark.parametrize("refusal", [EngineOverloadedError("The queue is full."), ValueError("No reply to inspect.")])
async def test_a_model_that_refuses_leaves_the_order(refusal: Exception) -> None:
    engine = LikelihoodEngine(birds=-1.0)
    engine.refuse = refusal
    assert await make_reranker(engine).rerank("?", FOUND, count=5) == FOUND


async def test_a_slow_model_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "MAX_SECONDS", 0.01)
    engine = LikelihoodEngine(birds=-1.0)
    engine.waits_from = 2
    assert await make_reranker(engine).rerank("?", FOUND, count=5) == FOUND
    assert (engine.running, engine.aborted) == (0, 3)


async def test_leaving_aborts_all_requests() -> None:
    engine = LikelihoodEngine()
    engine.waits_from = 1
    leaving = asyncio.create_task(make_reranker(engine).rerank("?", FOUND, count=5))
    while engine.running < 5 and len(engine.scored) < 5:  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (engine.running, engine.aborted) == (0, 4)


@pytest.mark.parametrize(
    ("question", "found", "count"), [("?", 5, 0), ("?", 5, 1), ("?", 1, 5), ("?", 0, 5), ("\n", 5, 5)]
)
async def test_nothing_is_computed_where_nothing_can_change(question: str, found: int, count: int) -> None:
    engine = LikelihoodEngine()
    assert await make_reranker(engine).rerank(question, FOUND[:found], count=count) == FOUND[:found]
    assert engine.scored == []


async def test_what_is_long_is_cut() -> None:
    engine = LikelihoodEngine()
    long = [replace(one, text=one.text + " x" * MAX_PASSAGE_CHARS) for one in FOUND]
    assert await make_reranker(engine).rerank("y " * MAX_QUESTION_TOKENS, long, count=5) == long
    for asked, reply in engine.scored:
        assert asked["content"].count("x") == pytest.approx(MAX_PASSAGE_CHARS / 2, abs=10)
        assert len(reply["content"]) == MAX_QUESTION_TOKENS  # a character is a token


async def test_a_passage_that_the_model_cannot_read_whole_leaves_the_others_sorted() -> None:
    engine = LikelihoodEngine(birds=-1.0, cats=-2.0)
    engine.resize(100)
    long = replace(FOUND[0], text="cats " + "x " * 500)
    found = await make_reranker(engine).sort(QUESTION, [FOUND[1], long, FOUND[2]], count=3)
    assert found == [FOUND[2], long, FOUND[1]]
    asked = [asked["content"] for asked, _ in engine.scored if "cats" in asked["content"]]
    assert 25 < asked[0].count("x ") < 100  # about as much as there is room for


async def test_a_question_that_leaves_no_room_for_a_passage_leaves_the_order() -> None:
    engine = LikelihoodEngine(birds=-1.0)
    engine.resize(10)
    assert await make_reranker(engine).rerank(QUESTION, FOUND, count=5) == FOUND
    assert engine.scored == []


async def test_a_passage_is_read_within_its_delimiters() -> None:
    engine = LikelihoodEngine()
    evil = [passage(text, number, title=text) for number, text in enumerate(["", *INJECTIONS], start=1)]
    await make_reranker(engine).rerank("{{ source }}?", evil, count=len(evil))
    assert len(engine.scored) == len(evil)
    for asked, reply in engine.scored:
        assert asked["content"].count("<source") == asked["content"].count("</source") == 1
        assert reply["content"] == "{{ source }}?"


async def test_scores_are_the_users_own_requests() -> None:
    """Nothing of one user's passages is found in the prefix cache by another."""
    engine = LikelihoodEngine()
    await make_reranker(engine).rerank("?", FOUND, count=3, caller=Caller("ada"))
    assert [one.caller for one in engine.prepared] == [Caller("ada")] * 3
    assert not any(message.get("shared") for messages in engine.scored for message in messages)


async def test_a_model_that_can_think_does_not() -> None:
    engine = LikelihoodEngine()
    engine._info = replace(engine.info, can_think=True)
    await make_reranker(engine).rerank("?", FOUND, count=2)
    assert [one.options.thinking for one in engine.prepared] == [False, False]


def test_a_model_on_another_server_is_refused_at_the_start() -> None:
    remote = RemoteEngine(EngineSettings(_env_file=None, remote_url="http://127.0.0.1:9"))
    search = cast(KnowledgeSearch, ScriptedSearch(members={}))
    with pytest.raises(StartupError, match="another server does not report how likely"):
        make_sources(search, remote, AppSettings(knowledge_rerank=12, _env_file=None))
    make_sources(search, remote, AppSettings(_env_file=None))


@pytest.mark.parametrize("template", ["{{ question }}", "{{ source }}" * 2])
def test_a_template_without_its_place_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="it needs"):
        Reranker(LikelihoodEngine(), template)
