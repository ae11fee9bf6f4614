"""Replies whose sources the model has sorted, and whose question it has written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.services.container import Services
from app.settings import AppSettings
from app.turns.service import TurnRef
from testing.knowledge import ScriptedSearch, passage
from testing.likelihood_engine import LikelihoodEngine

FOUND = [passage(text, number) for number, text in enumerate(["cats", "dogs", "birds", "fish"], start=1)]


@pytest.fixture
def settings(settings: AppSettings) -> AppSettings:
    return settings.model_copy(update={"knowledge_passages": 2, "knowledge_rerank": 4, "knowledge_rewrite": True})


@pytest.fixture
def engine() -> LikelihoodEngine:
    engine = LikelihoodEngine(birds=-1.0, fish=-2.0)
    engine._info = replace(engine.info, num_parameters=3_000_000_000)
    return engine


@pytest.fixture
def search(services: Services) -> ScriptedSearch:
    services.sources.retriever = found = ScriptedSearch(*FOUND, members={"ours": {ME}})
    return found


async def test_a_comparison_searches_once_for_columns_that_rest_on_the_same(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    ours = ChatSettings(collections=("ours",))
    variants = (ours, ours.model_copy(update={"temperature": 1.0}), ChatSettings(), ours)
    refs = await services.turns.compare(ME, variants, text="Which one flies?")
    for ref in refs:
        async for _ in services.turns.events(ME, ref.turn_id):
            pass
    assert search.queries == ["Which one flies?"]
    assert len(engine.scored) == len(FOUND)
    asked = ["birds" in messages[-1]["content"] for messages, _ in engine.calls[-4:]]
    assert sorted(asked) == [False, True, True, True]


async def ask(services: Services, text: str, conversation_id: str | None = None) -> TurnRef:
    ref = await services.turns.start(ME, text=text, collections=("ours",), conversation_id=conversation_id)
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    return ref


async def test_a_reply_gets_the_passages_that_the_model_prefers(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    engine.say("They fly [1].")
    ref = await ask(services, "Which one flies?")
    prompt = engine.calls[-1][0][-1]["content"]
    assert prompt.index("birds") < prompt.index("fish")
    assert "cats" not in prompt
    reply = (await services.conversations.get(ME, ref.conversation_id)).messages[-1]
    assert [one.text for one in reply.citations] == ["birds"]

    engine.say("Which one swims?")  # the question that the model makes of the message
    engine.say("Fish [2].")
    await ask(services, "And swims?", ref.conversation_id)
    assert search.queries == ["Which one flies?", "Which one swims?"]
    assert engine.scored[-1][-1]["content"] == "Which one swims?"
    history = engine.calls[-2][0][-1]["content"]
    assert "They fly [1]." in history
    assert "<source" not in history  # the sources of past replies stay out of it


async def test_a_mail_is_scored_by_what_it_asks(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    question = "Which animals of the garden fly at night?"
    mail = f"Hello,\n\nmy daughter wrote an essay about animals yesterday. {question}\n\nThanks,\nEva"
    await ask(services, mail)
    assert {reply["content"] for _, reply in engine.scored} == {question}
    assert mail in engine.calls[-1][0][-1]["content"]  # the reply is written to all of it


async def test_the_message_is_searched_for_where_the_question_finds_nothing(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    ref = await ask(services, "Which one flies?")
    search.found = []
    engine.say("Which one swims?")
    await ask(services, "And swims?", ref.conversation_id)
    assert search.queries == ["Which one flies?", "Which one swims?", "And swims?", "And swims? Which one flies?"]


async def test_a_model_that_cannot_score_leaves_the_search(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    engine.fails_at = 2
    await ask(services, "Which one flies?")
    prompt = engine.calls[-1][0][-1]["content"]
    assert prompt.index("cats") < prompt.index("dogs")


def test_both_are_off_by_default() -> None:
    settings = AppSettings(_env_file=None)
    assert (settings.knowledge_rerank, settings.knowledge_rewrite) == (0, False)


async def test_what_is_below_the_threshold_is_not_scored(
    services: Services, engine: LikelihoodEngine, search: ScriptedSearch
) -> None:
    search.found = [*FOUND[:2], replace(FOUND[2], score=-1.0)]
    await ask(services, "Which one flies?")
    assert len(engine.scored) == 2
