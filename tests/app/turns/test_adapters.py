"""A chat's adapter: it replies, its name is the reply's model, and a chat whose adapter is gone says so."""

from __future__ import annotations

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.errors import InvalidInput
from app.services.container import Services
from testing.fake_engine import FakeEngine


async def test_the_adapter_of_the_settings_replies(services: Services, engine: FakeEngine) -> None:
    engine.list_adapters("sql")
    ref = await services.turns.start(ME, text="hi", settings=ChatSettings(adapter="sql", thinking=True))
    async for _event in services.turns.events(ME, ref.turn_id):
        pass
    plain = await services.turns.start(ME, text="hi")
    async for _event in services.turns.events(ME, plain.turn_id):
        pass
    assert engine.adapters[:1] == ["sql"]
    assert engine.options[0].thinking is None, "this model cannot think"
    models = [(await services.conversations.get(ME, one.conversation_id)).messages[-1].model for one in (ref, plain)]
    assert models == ["sql", "fake"]


async def test_without_its_adapter_a_chat_says_what_to_do_and_writes_nothing(
    services: Services, engine: FakeEngine
) -> None:
    with pytest.raises(InvalidInput, match="The adapter sql of this chat isn't loaded"):
        await services.turns.start(ME, text="hi", settings=ChatSettings(adapter="sql"))
    assert engine.adapters == []
    ref = await services.turns.start(ME, text="hi", settings=ChatSettings(adapter=""))
    async for _event in services.turns.events(ME, ref.turn_id):
        pass
    assert engine.adapters[0] is None
