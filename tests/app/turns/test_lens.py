"""The lens of stored replies, and replies that branch at one of their tokens, on both databases."""

from __future__ import annotations

import asyncio
import base64
import zlib

import pytest
from sqlalchemy import update

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.ids import new_id
from app.errors import Conflict, InvalidInput, NotFound, NotSupported
from app.services.container import Services
from app.store.db.models import Message
from app.turns.service import TurnRef
from engine import BACKGROUND_PRIORITY
from testing.fake_engine import FakeEngine, Thought


class RemotelyFake(FakeEngine):
    """Reports no probabilities, as a remote engine."""

    inspect = None  # type: ignore[assignment]


async def read(services: Services, turn_id: str) -> None:
    async for _event in services.turns.events(ME, turn_id):
        pass


async def asked(services: Services, engine: FakeEngine, *pieces: str | Thought) -> TurnRef:
    engine.say(*pieces)
    ref = await services.turns.start(ME, text="Why?", settings=ChatSettings(top_k=7, temperature=0.3))
    await read(services, ref.turn_id)
    return ref


async def forget_tokens(services: Services, message_id: str) -> None:
    """As if the reply was imported."""
    change = update(Message).where(Message.id == message_id).values(token_ids=None)
    await services.database.write(lambda session: session.execute(change))


async def test_a_stored_reply_is_looked_into_with_its_own_tokens_and_settings(
    services: Services, engine: FakeEngine
) -> None:
    ref = await asked(services, engine, "Be", "cause.")
    await services.conversations.save_settings(ME, ref.conversation_id, ChatSettings(top_k=3))
    view = await services.turns.lens.view(ME, ref.message_id)
    assert (view.model, view.approximate) == ("fake", False)
    assert [token.id for token in view.tokens] == [0, 1]
    assert (view.settings.top_k, view.settings.temperature, view.settings.top_p) == (7, 0.3, 0.95)
    assert engine.inspected == [(None, BACKGROUND_PRIORITY)]
    assert await services.turns.lens.view(ME, ref.message_id) is view  # computed once

    choice = await services.turns.lens.choice(ME, ref.message_id, 1)
    assert engine.inspected[1:] == [(1, BACKGROUND_PRIORITY)]
    assert [(one.id, one.removed_by) for one in choice.alternatives] == [(1, None), (2, "top_k")]
    assert len(zlib.decompress(base64.b64decode(choice.row.data))) == 2 * choice.row.vocab_size
    with pytest.raises(InvalidInput, match="2 tokens"):
        await services.turns.lens.choice(ME, ref.message_id, 2)


async def test_what_another_model_wrote_or_was_imported_is_approximate(services: Services, engine: FakeEngine) -> None:
    ref = await asked(services, engine, "Be", "cause.")
    engine.name("other")
    view = await services.turns.lens.view(ME, ref.message_id)
    assert (view.model, view.approximate) == ("other", True)
    engine.name("fake")
    await forget_tokens(services, ref.message_id)
    view = await services.turns.lens.view(ME, ref.message_id)
    assert "".join(token.text for token in view.tokens) == "Because."
    assert view.approximate


async def test_only_own_replies_that_have_ended_have_a_lens(
    services: Services, engine: FakeEngine, stranger: str
) -> None:
    lens = services.turns.lens
    ref = await asked(services, engine, "Because.")
    for message_id in (ref.message_id, ref.user_message_id):
        for call in (lens.view(stranger, message_id), lens.choice(stranger, message_id, 0)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(NotFound):
            await services.turns.branch_at(stranger, message_id, index=0, token_id=65)
    with pytest.raises(NotFound):
        await lens.view(ME, new_id())
    with pytest.raises(InvalidInput, match="Only a reply"):
        await lens.view(ME, ref.user_message_id)
    empty = await asked(services, engine, " ")
    with pytest.raises(InvalidInput, match="no text"):
        await lens.view(ME, empty.message_id)
    assert engine.inspected == []


async def test_a_reply_branches_at_a_token_into_a_version_of_its_own(services: Services, engine: FakeEngine) -> None:
    ref = await asked(services, engine, "Because.")
    await forget_tokens(services, ref.message_id)
    engine.say("ause not.")
    branch = await services.turns.branch_at(ME, ref.message_id, index=2, token_id=ord("C"))
    assert branch.conversation_id == ref.conversation_id
    assert branch.message_id != ref.message_id
    await read(services, branch.turn_id)
    prompt, _params = engine.calls[-1]
    assert prompt[-1] == {"role": "assistant", "content": "BeC", "token_ids": (66, 101, 67), "unfinished": True}
    shown = (await services.conversations.get(ME, ref.conversation_id)).messages[-1]
    assert (shown.id, shown.content) == (branch.message_id, "BeCause not.")
    assert shown.siblings == (ref.message_id, branch.message_id)
    await services.conversations.show(ME, ref.message_id)
    shown = (await services.conversations.get(ME, ref.conversation_id)).messages[-1]
    assert (shown.id, shown.content) == (ref.message_id, "Because.")
    assert (await services.turns.lens.view(ME, branch.message_id)).approximate is False


async def test_refuses_a_branch_where_none_can_be(services: Services, engine: FakeEngine) -> None:
    ref = await asked(services, engine, "Because.")
    for index, token_id, reason in ((8, 65, "1 tokens"), (0, 0xFFFD, "part of a character"), (0, 0, "Choose another")):
        with pytest.raises(InvalidInput, match=reason):
            await services.turns.branch_at(ME, ref.message_id, index=index, token_id=token_id)
    with pytest.raises(InvalidInput, match="There is no token"):
        await services.turns.branch_at(ME, ref.message_id, index=0, token_id=0x7FFFFFFF)
    thought = await asked(services, engine, Thought("Hm."), "Because.")
    with pytest.raises(InvalidInput, match="thinking"):
        await services.turns.branch_at(ME, thought.message_id, index=0, token_id=65)
    assert len((await services.conversations.get(ME, ref.conversation_id)).messages) == 2


async def test_a_reply_in_flight_has_no_lens_and_a_server_without_probabilities_says_so(
    services: Services, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await asked(services, engine, "Because.")
    with monkeypatch.context() as remotely:
        remotely.setattr(services.turns.lens._requests, "engine", RemotelyFake())
        with pytest.raises(NotSupported, match="another server"):
            await services.turns.lens.view(ME, ref.message_id)
    gate = asyncio.Event()
    engine.say("a", "b", gates={1: gate})
    running = await services.turns.regenerate(ME, ref.message_id)
    with pytest.raises(Conflict):
        await services.turns.lens.view(ME, running.message_id)
    with pytest.raises(Conflict):
        await services.turns.branch_at(ME, ref.message_id, index=0, token_id=65)
    gate.set()
    await read(services, running.turn_id)
