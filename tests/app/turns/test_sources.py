"""Replies that rest on sources: what the model is given, what is stored, and what is written without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import ConversationDocument
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.domain.knowledge import MAX_QUERY_CHARS
from app.domain.listings import PASSAGES_FOUND
from app.domain.views import MessageStatus, MessageView
from app.errors import NotFound
from app.services.container import Services
from app.transfer.markdown import as_markdown
from app.turns.events import TurnCitations, TurnEnd, TurnEvent, TurnText
from app.turns.service import TurnRef
from app.turns.written_replies import NOTHING_FOUND
from engine import EngineError, FinishReason, StructureKind
from testing.fake_engine import FakeEngine, call_pieces
from testing.knowledge import ScriptedSearch, passage
from testing.tool_servers import install_demo_tools

RETURNS = passage("Goods can be returned within 30 days.", 1, heading="Policy > Returns")
REFUNDS = passage("Refunds take 5 days.", 2, title='Money "back"')
OURS = ("ours",)
LARGE = 3_000_000_000


@pytest.fixture
def search(services: Services, engine: FakeEngine) -> ScriptedSearch:
    """A collection of mine with two passages, and a model that is large enough to answer from them."""
    engine._info = replace(engine.info, num_parameters=LARGE)
    services.sources.retriever = found = ScriptedSearch(RETURNS, REFUNDS, members={"ours": {ME}, "theirs": {"bob"}})
    return found


async def start(services: Services, text: str = "Can I return it?", **options: object) -> TurnRef:
    return await services.turns.start(ME, text=text, **{"collections": OURS, **options})  # type: ignore[arg-type]


async def read(services: Services, ref: TurnRef) -> list[TurnEvent]:
    return [event async for event in services.turns.events(ME, ref.turn_id)]


async def last(services: Services, ref: TurnRef) -> MessageView:
    return (await services.conversations.get(ME, ref.conversation_id)).messages[-1]


def prompt_of(engine: FakeEngine) -> str:
    return engine.calls[-1][0][-1]["content"]


async def test_a_reply_cites_what_was_found(services: Services, engine: FakeEngine, search: ScriptedSearch) -> None:
    engine.say("Within 30 days", " [1", "]. Later [9] not.")
    ref = await start(services)
    for events in (await read(services, ref), await read(services, ref)):  # in flight, and from the database
        told = [event for event in events if not isinstance(event, TurnText)]
        assert isinstance(told[-2], TurnCitations)
        assert isinstance(told[-1], TurnEnd)
        [cited] = told[-2].citations
        assert (cited.number, cited.document_id, cited.version) == (1, "document-1", 1)
        assert (cited.start, cited.end, cited.text) == (RETURNS.start, RETURNS.end, RETURNS.text)
        assert (cited.title, cited.heading) == ("Returns", "Policy > Returns")
    reply = await last(services, ref)
    assert reply.citations == (cited,)
    assert search.queries == ["Can I return it?"]
    prompt = prompt_of(engine)
    assert prompt.endswith("Can I return it?")
    assert f'<source number="1" title="Returns" heading="Policy > Returns">\n{RETURNS.text}\n</source>' in prompt
    assert """<source number="2" title="Money 'back'">""" in prompt
    view = await services.conversations.get(ME, ref.conversation_id)
    assert view.settings.collections == OURS
    assert view.messages[0].content == "Can I return it?"
    assert view.messages[0].citations == ()


async def test_later_prompts_hold_the_same_text_for_the_same_passages(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    ref = await start(services)
    await read(services, ref)
    first = list(engine.calls[-1][0])
    search.found = [REFUNDS]
    settings = ChatSettings(collections=OURS)
    cached = await start(
        services,
        "When?",
        conversation_id=ref.conversation_id,
        tip_id=ref.message_id,
        settings=settings,
        collections=None,
    )
    await read(services, cached)
    second = list(engine.calls[-1][0])
    assert second[0] == first[0]
    assert RETURNS.text not in second[-1]["content"]
    assert REFUNDS.text in second[-1]["content"]
    stored = await start(services, "Sure?", conversation_id=ref.conversation_id, collections=None)
    await read(services, stored)
    assert engine.calls[-1][0][: len(second)] == second


async def test_a_reply_that_goes_on_keeps_its_sources(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("Within [1]", finish_reason=FinishReason.LENGTH)
    ref = await start(services)
    await read(services, ref)
    before = prompt_of(engine)
    search.found = []
    engine.say(" and [2].")
    await services.turns.resume(ME, ref.message_id)
    events = await read(services, ref)
    assert engine.calls[-1][0][-2]["content"] == before
    assert [one.number for event in events if isinstance(event, TurnCitations) for one in event.citations][-2:] == [
        1,
        2,
    ]
    assert [one.number for one in (await last(services, ref)).citations] == [1, 2]
    assert len(search.queries) == 1


async def test_another_reply_is_searched_for_again(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    ref = await start(services)
    await read(services, ref)
    search.found = [REFUNDS]
    engine.say("[1]")
    again = await services.turns.regenerate(ME, ref.message_id)
    await read(services, again)
    assert [one.document_id for one in (await last(services, again)).citations] == ["document-2"]


async def test_the_form_of_a_reply_admits_its_sources_only(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    async def form(**options: object) -> StructureKind | None:
        await read(services, await start(services, **options))  # type: ignore[arg-type]
        params = engine.calls[-1][1]
        assert params is not None
        return params.structured.kind if params.structured is not None else None

    assert await form() is StructureKind.REGEX
    assert await form(settings=ChatSettings(json_schema="{}")) is StructureKind.JSON_SCHEMA
    assert await form(collections=()) is None
    engine._info = replace(engine.info, num_parameters=0)  # a remote model
    assert await form() is None


async def test_a_reply_that_may_call_tools_is_not_held_to_the_form(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    tools = install_demo_tools(services, engine, auto_approve=("order",))
    engine.say("Let me look.", *call_pieces("desk__order", '{"number": 7}'))
    engine.say("On Monday [2][9].")
    ref = await start(services)
    await read(services, ref)
    assert tools.calls == ["order 7"]
    first, second = (call[0] for call in engine.calls)
    assert first[0] == second[0]
    assert RETURNS.text in first[0]["content"]
    assert all(params is not None and params.structured is None for _, params in engine.calls)
    assert [one.number for one in (await last(services, ref)).citations] == [2]


@pytest.mark.parametrize("found", [(), (passage("Too far off.", score=-1.0),)])
async def test_nothing_found_is_said_without_a_model(
    services: Services, engine: FakeEngine, search: ScriptedSearch, found: tuple[object, ...]
) -> None:
    search.found = found  # type: ignore[assignment]
    ref = await start(services)
    await read(services, ref)
    reply = await last(services, ref)
    assert (reply.content, reply.status, reply.citations) == (NOTHING_FOUND, MessageStatus.COMPLETE, ())
    assert reply.stats is not None
    assert (reply.stats.finish_reason, reply.stats.completion_tokens) == ("stop", 0)
    assert reply.stats.prompt_tokens == 0
    assert engine.calls == []


async def test_a_mail_finds_what_one_of_its_sentences_asks_for(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    search.found_for = {"Until which day can I return the jacket?": (RETURNS,)}
    search.found = ()
    engine.say("Within 30 days [1].")
    ref = await start(
        services,
        text="Hi, I bought a birthday present for my brother last month. Until which day can I return the jacket?",
    )
    await read(services, ref)
    assert [one.text for one in (await last(services, ref)).citations] == [RETURNS.text]


async def test_a_short_message_is_searched_for_with_the_one_before_it(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("Within 30 days [1].")
    ref = await start(services, text="How long can goods be returned?")
    await read(services, ref)
    search.found, search.found_for = (), {"And refunds? How long can goods be returned?": (REFUNDS,)}
    engine.say("5 days [1].")
    ref = await start(services, text="And refunds?", conversation_id=ref.conversation_id)
    await read(services, ref)
    assert [one.text for one in (await last(services, ref)).citations] == [REFUNDS.text]
    assert search.queries[-2:] == ["And refunds?", "And refunds? How long can goods be returned?"]


async def test_a_follow_up_of_a_long_message_is_searched_for_by_its_own_words_first(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("Within 30 days [1].")
    ref = await start(services, text="How long can goods be returned? " + "Our parcels are large. " * 200)
    await read(services, ref)
    search.found = ()
    ref = await start(services, text="And refunds?", conversation_id=ref.conversation_id)
    await read(services, ref)
    assert search.queries[-1].startswith("And refunds? How long can goods be returned?")
    assert len(search.queries[-1]) == MAX_QUERY_CHARS


async def test_a_longer_message_that_finds_nothing_is_not_searched_for_with_the_one_before_it(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("Within 30 days [1].")
    ref = await start(services, text="How long can goods be returned?")
    await read(services, ref)
    search.found = ()
    ref = await start(services, text="Which river flows through Vienna?", conversation_id=ref.conversation_id)
    await read(services, ref)
    assert (await last(services, ref)).content == NOTHING_FOUND
    assert search.queries == ["How long can goods be returned?", "Which river flows through Vienna?"]


async def test_a_small_model_with_a_short_context_says_what_was_found(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine._info = replace(engine.info, num_parameters=135_000_000)
    engine.resize(100)  # a quarter of it holds no passage
    ref = await start(services)
    await read(services, ref)
    reply = await last(services, ref)
    assert reply.content == f"{PASSAGES_FOUND}\n\n- **{search.found[0].title}** [1]"


async def test_a_small_model_lists_what_was_found(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine._info = replace(engine.info, num_parameters=135_000_000)
    search.found = [replace(RETURNS, text="See [2] and *this*:\n```\n[3]"), REFUNDS]
    ref = await start(services)
    for events in (await read(services, ref), await read(services, ref)):  # in flight, and from the database
        [found] = [event.citations for event in events if isinstance(event, TurnCitations)]
        assert [(one.listed, one.text) for one in found] == [(True, one.text) for one in search.found]
    reply = await last(services, ref)
    assert reply.content == f'{PASSAGES_FOUND}\n\n- **Returns** [1]\n- **Money "back"** [2]'
    assert reply.citations == found
    [version] = await services.conversations.versions(ME, ref.message_id)
    assert version.message.citations == found
    copy = await services.conversations.branch(ME, ref.message_id)
    assert (await services.conversations.get(ME, copy)).messages[-1].citations == found
    assert engine.calls == []
    await read(services, await start(services, conversation_id=ref.conversation_id, collections=()))
    assert engine.calls != []  # without sources, it answers


async def test_what_does_not_fit_is_left_out(services: Services, engine: FakeEngine, search: ScriptedSearch) -> None:
    long = passage("zebra " * 210, 3)  # a token for each character: 1,260 of 1,500
    search.found = [RETURNS, long, REFUNDS]
    engine.resize(100_000)
    await read(services, await start(services))
    assert long.text in prompt_of(engine)
    search.found = [RETURNS, replace(long, text="zebra " * 300), REFUNDS]
    await read(services, await start(services))
    assert RETURNS.text in prompt_of(engine)
    assert "zebra" not in prompt_of(engine)
    assert f'<source number="2" title="Money \'back\'">\n{REFUNDS.text}\n</source>' in prompt_of(engine)
    engine.resize(1000)  # a quarter of it
    search.found = [RETURNS, REFUNDS, passage("zebra " * 20, 3)]
    await read(services, await start(services))
    assert ("zebra" in prompt_of(engine), REFUNDS.text in prompt_of(engine)) == (False, True)


async def test_the_best_passage_is_shortened_to_fit(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    table = "\n".join(f"| zebra {number:03} | stripes |" for number in range(200))  # a token for each character
    search.found = [replace(passage(table, 1), start=50, end=50 + len(table)), passage("horse " * 300, 2)]
    engine.resize(100_000)
    engine.say("Zebras have stripes [1].")
    ref = await start(services)
    await read(services, ref)
    assert table.partition("| zebra 010")[0] in prompt_of(engine)
    assert "horse" not in prompt_of(engine)
    [citation] = (await last(services, ref)).citations
    assert table.startswith(citation.text + "\n")
    assert 700 < len(citation.text) < 1500
    assert (citation.start, citation.end) == (50, 50 + len(citation.text))
    engine.resize(400)  # a quarter of it is the title's, mostly
    await read(services, await start(services))
    assert "zebra 000" in prompt_of(engine)
    assert "zebra 003" not in prompt_of(engine)
    engine.resize(100)  # a quarter of it does not even hold the title
    [found] = await services.sources.find(ME, OURS, "zebra?")
    assert (found.text, found.end) == (table[:40], 90)


async def test_tokens_are_estimated_where_the_engine_does_not_tell_them(
    services: Services, engine: FakeEngine, search: ScriptedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> tuple[int, ...]:
        raise EngineError("This server does not report tokens.")

    monkeypatch.setattr(engine, "tokenize", refuse)
    await read(services, await start(services))
    assert REFUNDS.text in prompt_of(engine)


async def test_a_collection_of_another_user_is_not_found(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    for collections in (("theirs",), ("ours", "theirs"), (new_id(),)):
        with pytest.raises(NotFound):
            await start(services, collections=collections)
    assert (await services.conversations.list(ME)).items == ()  # nothing was sent
    services.sources.retriever = None
    with pytest.raises(NotFound, match="no documents"):
        await start(services)


async def test_temporary_chats_have_sources(services: Services, engine: FakeEngine, search: ScriptedSearch) -> None:
    chats = await services.temporary.begin(ME)
    engine.say("[2]")
    ref = await chats.turns.start(ME, text="When?", collections=OURS)
    async for _ in chats.turns.events(ME, ref.turn_id):
        pass
    assert [one.number for one in (await chats.conversations.get(ME, ref.conversation_id)).messages[-1].citations] == [
        2
    ]


async def test_a_copied_conversation_keeps_its_citations(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("[1]")
    ref = await start(services)
    await read(services, ref)
    copied = await services.conversations.branch(ME, ref.message_id)
    messages = (await services.conversations.get(ME, copied)).messages
    assert messages[-1].citations == (await last(services, ref)).citations
    assert [one.text for one in messages[-1].citations] == [RETURNS.text]


async def test_an_export_holds_the_sources_and_an_import_brings_them_back(
    services: Services, engine: FakeEngine, search: ScriptedSearch
) -> None:
    engine.say("See [2], not `[1]`.")
    ref = await start(services)
    await read(services, ref)
    records = services.transfers.records
    document = await records.read(ME, ref.conversation_id)
    markdown = as_markdown(document)
    assert "> See [^1], not `[1]`." in markdown
    assert markdown.endswith('\n[^1]: Money "back", version 1: Refunds take 5 days.\n')
    before = await last(services, ref)
    await services.turns.delete_conversation(ME, ref.conversation_id)
    text = document.model_dump_json()
    await records.add(ME, [ConversationDocument.model_validate_json(text)])
    assert (await last(services, ref)).citations == before.citations
    assert (await records.read(ME, ref.conversation_id)).model_dump_json() == text


async def test_the_tokens_of_a_source_are_counted_once(
    services: Services, engine: FakeEngine, search: ScriptedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    tokenize = engine.tokenize

    async def noting(prompt: str, **options: Any) -> tuple[int, ...]:
        counted.append(prompt)
        return await tokenize(prompt, **options)

    monkeypatch.setattr(engine, "tokenize", noting)
    monkeypatch.setattr("app.turns.sources.MAX_TOKEN_COUNTS", 2)
    for _ in range(2):
        assert await services.sources.find(ME, OURS, "Can I return it?") == (RETURNS, REFUNDS)
    assert len(counted) == 2
    search.found = [REFUNDS, RETURNS]  # with other numbers: both are others, and take the places of the first
    await services.sources.find(ME, OURS, "Can I return it?")
    search.found = [RETURNS, REFUNDS]
    await services.sources.find(ME, OURS, "Can I return it?")
    assert len(counted) == 6
    engine._info = replace(engine.info, name="another model")
    await services.sources.find(ME, OURS, "Can I return it?")
    assert len(counted) == 8, "another model has other tokens"
