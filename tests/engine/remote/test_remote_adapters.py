"""LoRA adapters of a model server elsewhere: those that it lists below its model are chosen by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import ChatMessage, ChatOptions, EngineSettings, InvalidRequestError, ModelLoadError, RemoteEngine
from engine.remote import upstreams
from testing.scripted_server import DONE, ScriptedServer, chunk, refusal, reply
from testing.waiting import eventually

HI: list[ChatMessage] = [{"role": "user", "content": "hi"}]


def serve(server: ScriptedServer, **parents: str | None) -> None:
    """Lists models and adapters, as vLLM does, by the names of their parents."""
    cards = [
        {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": 100, "parent": parent}
        for name, parent in parents.items()
    ]
    server.on["/v1/models"] = refusal(200, {"object": "list", "data": cards})


def settings(*servers: ScriptedServer, **more: Any) -> EngineSettings:
    return EngineSettings(_env_file=None, remote_url=",".join(server.url for server in servers), **more)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


async def test_a_name_reaches_the_server_as_the_model(server: ScriptedServer) -> None:
    serve(server, sql="m", m=None, other="elsewhere")
    async with RemoteEngine(settings(server)) as engine:
        assert (engine.info.name, engine.info.adapters) == ("m", ("sql",))
        for adapter in ("sql", None):
            server.say(reply(chunk("a", "stop"), DONE), reply(chunk("a", "stop"), DONE))
            _ = [delta async for delta in engine.chat(HI, options=ChatOptions(adapter=adapter))]
            _ = [delta async for delta in engine.complete("hi", adapter=adapter)]
        assert [one.body["model"] for one in server.generation_requests] == ["sql", "sql", "m", "m"]
        for unknown in ("other", "m"):
            with pytest.raises(InvalidRequestError, match="No adapter is loaded under the name"):
                _ = [delta async for delta in engine.chat(HI, options=ChatOptions(adapter=unknown))]


async def test_adapters_that_come_and_go_are_noticed(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "HEALTH_INTERVAL_SECONDS", 0.02)
    serve(server, m=None)
    async with RemoteEngine(settings(server)) as engine:
        assert engine.info.adapters == ()
        serve(server, m=None, sql="m")
        await eventually(lambda: engine.info.adapters == ("sql",))
        serve(server, m=None)
        await eventually(lambda: engine.info.adapters == ())


async def test_only_adapters_of_every_server_are_offered(server: ScriptedServer) -> None:
    async with ScriptedServer() as second:
        serve(server, m=None, sql="m", legal="m")
        serve(second, m=None, legal="m")
        async with RemoteEngine(settings(server, second)) as engine:
            assert engine.info.adapters == ("legal",)


async def test_several_models_are_ambiguous_whatever_adapters_they_have(server: ScriptedServer) -> None:
    serve(server, one=None, two=None, sql="one")
    with pytest.raises(ModelLoadError, match=r"serves several models \(one, two\)"):
        await RemoteEngine(settings(server)).start()
    async with RemoteEngine(settings(server, remote_model="two")) as engine:
        assert (engine.info.name, engine.info.adapters) == ("two", ())
