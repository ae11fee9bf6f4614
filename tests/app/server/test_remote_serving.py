"""The application with its model elsewhere: on another Deskmate, and on a server that does not answer."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import main
from app.cli.main import main as cli_main
from engine import (
    ContextLengthError,
    Engine,
    EngineSettings,
    InvalidRequestError,
    RemoteEngine,
    SamplingParams,
)
from testing.fake_engine import Piece, Thought, call_pieces
from testing.json_events import parse_json_events
from testing.models import make_model
from testing.scripted_server import DONE, ScriptedServer, chunk, reply, usage
from testing.waiting import eventually
from tests.app.api.test_openai_fields import NEUTRAL, NEUTRAL_CHAT
from tests.app.live_server import RunningApp, live_server, serve_app

ROOT = Path(__file__).parents[3]
HI: list[Any] = [{"role": "user", "content": "hello there"}]


def remote(*urls: str) -> RemoteEngine:
    return RemoteEngine(EngineSettings(_env_file=None, remote_url=",".join(urls)))


@pytest.fixture(autouse=True)
def without_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds to build, and nobody looks at it here."""
    monkeypatch.setattr(main, "mount_ui", lambda app, _services: app)


@dataclass
class Pair:
    """A server with the model, and one without that asks it."""

    back: RunningApp
    front: httpx.AsyncClient
    engine: RemoteEngine


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        back = await stack.enter_async_context(live_server(tmp_path / "back", gradio=False))
        engine = remote(back.url)
        _url, _app, front = await stack.enter_async_context(serve_app(tmp_path / "front", engine, gradio=False))
        yield Pair(back, front, engine)


async def ended(http: httpx.AsyncClient, turn: dict[str, Any]) -> dict[str, Any]:
    """The reply once it has come to an end."""
    async with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as events:
        async for _line in events.aiter_lines():
            pass
    talk = (await http.get(f"/api/conversations/{turn['conversation_id']}")).json()
    reply: dict[str, Any] = talk["messages"][-1]
    return reply


async def test_a_chat_whose_model_is_elsewhere(pair: Pair) -> None:
    turn = (await pair.front.post("/api/turns", json={"text": "hi"})).json()
    reply = await ended(pair.front, turn)
    assert (reply["content"], reply["status"]) == ("Hello, world.", "complete")
    assert reply["stats"]["completion_tokens"] == 4
    assert reply["stats"]["cached_prompt_tokens"] == 3
    assert (await pair.front.get("/ready")).json() == {"status": "ready", "model": "fake"}
    (messages, _params) = pair.back.engine.calls[0]
    assert messages == [{"role": "user", "content": "hi"}]


async def test_tools_and_thoughts_pass_through_two_servers(pair: Pair) -> None:
    function = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    called = {
        "role": "assistant",
        "reasoning": "Oslo?",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    }
    asked = {
        "messages": [*HI, called, {"role": "tool", "tool_call_id": "1", "content": "Rain"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "enable_thinking": True,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"shade": "dark"},
        "thinking_token_budget": 7,
        "stop_in_reasoning": True,
    }
    script: tuple[Piece, ...] = (
        Thought("And "),
        Thought("Rome?"),
        "I ask. ",
        *call_pieces("weather", '{"city": ', '"Rome"}'),
    )
    direct: list[Any] = []
    through: list[Any] = []
    for http, answers in ((pair.back.http, direct), (pair.front, through)):
        for stream in (False, True):
            pair.back.engine.say(*script)
            answer = await http.post("/v1/chat/completions", json={**asked, "stream": stream})
            assert answer.status_code == 200, answer.text
            if stream:
                choices = [event.data["choices"][0] for event in parse_json_events(answer.content)]
                answers.append([(choice["delta"], choice["finish_reason"]) for choice in choices])
            else:
                answers.append([answer.json()["choices"][0]["message"], answer.json()["choices"][0]["finish_reason"]])
    assert direct == through
    here, there = pair.back.engine.options[0], pair.back.engine.options[2]
    kwargs = {**here.template_kwargs, "enable_thinking": True, "thinking": True}
    assert there == replace(here, template_kwargs=kwargs)
    assert pair.back.engine.calls[0] == pair.back.engine.calls[2]


async def test_only_what_a_model_server_can_and_tells_is_said_of_a_reply(tmp_path: Path) -> None:
    async with ScriptedServer(owned_by="somebody") as back:
        engine = remote(back.url)
        async with serve_app(tmp_path, engine, gradio=False) as (_url, _app, front):
            assert not engine.info.can_continue
            back.say(reply(chunk(), chunk("Hello"), chunk(None, "stop", stop_reason="END"), usage(7, 1), DONE))
            asked = {"text": "hi", "settings": {"stop": ["END"]}}
            said = await ended(front, (await front.post("/api/turns", json=asked)).json())
            assert said["stats"]["finish_reason"] == "stop_string"
            assert said["stats"]["cached_prompt_tokens"] is None
            refused = await front.post(f"/api/messages/{said['id']}/continue", json={})
            assert "A stop string ended this reply" in refused.json()["error"]["message"]
            said = await ended(front, (await front.post("/api/turns", json={"text": "hi"})).json())
            assert said["stats"]["finish_reason"] == "stop"
            completed = await front.post("/v1/chat/completions", json={"model": "m", "messages": HI})
            assert completed.json()["usage"]["prompt_tokens_details"] is None
            back.say(reply(chunk(), chunk("Hello"), chunk(None, "stop"), usage(7, 1, cached=0), DONE))
            said = await ended(front, (await front.post("/api/turns", json={"text": "hi"})).json())
            assert said["stats"]["cached_prompt_tokens"] == 0
    async with ScriptedServer() as back, remote(back.url) as engine:
        assert engine.info.can_continue


async def test_the_panel_is_told_where_the_model_is(pair: Pair) -> None:
    told = (await pair.front.get("/api/engine")).json()
    assert (told["remote"], told["state"], told["model"]["name"]) == (True, "ready", "fake")
    assert told["source"] == pair.back.url.removeprefix("http://")
    assert (await pair.back.http.get("/api/engine")).json()["remote"] is False
    for path, body in (("sleep", {}), ("wake", {}), ("swap", {"model": "x"})):
        answer = await pair.front.post(f"/api/engine/{path}", json=body)
        assert answer.status_code == 501
        assert "another server" in answer.json()["error"]["message"]


async def test_a_reply_is_stopped_and_goes_on(pair: Pair) -> None:
    script = pair.back.engine.say("one", " two", " three")
    script.gates = {1: asyncio.Event()}
    turn = (await pair.front.post("/api/turns", json={"text": "count"})).json()
    async with pair.front.stream("GET", f"/api/turns/{turn['turn_id']}/events") as events:
        async for line in events.aiter_lines():
            if "one" in line:
                break
    assert (await pair.front.post(f"/api/turns/{turn['turn_id']}/stop")).status_code == 204
    await eventually(lambda: pair.back.engine.aborted == 1)
    reply = await ended(pair.front, turn)
    assert (reply["content"], reply["status"]) == ("one", "stopped")
    assert reply["stats"]["completion_tokens"] == 1
    pair.back.engine.say(" two", " three")
    answer = await pair.front.post(f"/api/messages/{turn['message_id']}/continue", json={})
    assert answer.status_code == 201, answer.text
    whole = await ended(pair.front, turn)
    assert whole["content"] == "one two three"
    messages, _params = pair.back.engine.calls[-1]
    assert messages[-1] == {"role": "assistant", "content": "one", "unfinished": True}


async def test_fields_that_ask_for_nothing_are_accepted_and_not_handed_on(pair: Pair) -> None:
    body = {"messages": [{**HI[0], "name": "Ann"}], **NEUTRAL, **NEUTRAL_CHAT, "unheard_of": 1}
    answer = await pair.front.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "unheard_of"
    assert pair.back.engine.calls == [([{**HI[0], "name": "Ann"}], SamplingParams(max_tokens=8))]
    several = await pair.front.post("/v1/completions", json={"prompt": ["a b", [1, 2, 3]], **NEUTRAL})
    assert [choice["text"] for choice in several.json()["choices"]] == ["Hello, world."] * 2
    assert several.json()["usage"]["prompt_tokens"] == 5
    for asked, param in (({"use_beam_search": True}, "use_beam_search"), ({"echo": True}, "echo")):
        refused = await pair.front.post("/v1/chat/completions", json={"messages": HI, **asked})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_tokens_are_told_by_the_server_that_has_the_model(pair: Pair) -> None:
    for path in ("/tokenize", "/v1/tokenize"):
        told = (await pair.front.post(path, json={"prompt": "hi", "add_special_tokens": False})).json()
        assert told == {"count": 2, "max_model_len": 4096, "tokens": [104, 105], "token_strs": None}
    assert (await pair.front.post("/detokenize", json={"tokens": [104, 105]})).json() == {"prompt": "hi"}
    bare = {"prompt": "hi", "add_special_tokens": False, "max_tokens": 2}
    assert (await pair.front.post("/v1/completions", json=bare)).json()["usage"]["prompt_tokens"] == 2
    strings = await pair.front.post("/tokenize", json={"prompt": "hi", "return_token_strs": True})
    assert (strings.status_code, strings.json()["error"]["param"]) == (400, "return_token_strs")


async def test_tokens_are_counted_there(pair: Pair) -> None:
    assert (await pair.engine.prepare(HI)).num_prompt_tokens == 3
    pair.back.engine.resize(3)
    answer = await pair.back.http.post("/v1/tokenize", json={"model": "fake", "messages": HI})
    assert answer.json() == {"count": 3, "max_model_len": 3, "tokens": [0, 1, 2], "token_strs": None}
    with pytest.raises(ContextLengthError, match="3 tokens long"):
        async for _ in pair.engine.chat(HI):
            pass


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"continue_final_message": True}, "role 'assistant'"),
        ({"add_generation_prompt": False}, "opposite of continue_final_message"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "opposite of continue_final_message"),
    ],
)
async def test_continuing_what_is_no_reply(pair: Pair, asked: dict[str, Any], said: str) -> None:
    for path in ("/v1/chat/completions", "/v1/tokenize"):
        answer = await pair.back.http.post(path, json={"model": "fake", "messages": HI, **asked})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    answer = await pair.back.http.post("/v1/tokenize", json={"model": "other", "messages": HI})
    assert answer.status_code == 404
    assert pair.back.engine.calls == []


async def test_a_server_that_is_away_leaves_the_history(tmp_path: Path) -> None:
    async with (
        ScriptedServer() as back,
        serve_app(tmp_path / "front", remote(back.url), gradio=False) as (_url, _app, front),
    ):
        turn = (await front.post("/api/turns", json={"text": "hi"})).json()
        assert (await ended(front, turn))["content"] == "Hello world"
        await back.stop()
        said = (await front.post("/api/turns", json={"text": "hi"})).json()
        answer = await front.post("/api/turns", json={"text": "hi", "conversation_id": said.get("conversation_id")})
        assert answer.status_code == 503
        assert "cannot be reached" in answer.json()["error"]["message"]
        assert (await front.get("/ready")).status_code == 503
        assert (await front.get(f"/api/conversations/{turn['conversation_id']}")).status_code == 200


async def test_the_real_engine_elsewhere_says_the_same(tmp_path: Path) -> None:
    path = make_model(tmp_path / "tiny", "qwen3", seed=3)
    settings = EngineSettings(
        _env_file=None, model=str(path), dtype="float32", max_model_len=128, kv_block_size=4, num_kv_blocks=200
    )
    params = SamplingParams(temperature=1.5, seed=4, max_tokens=24, logprobs=2, ignore_eos=True, min_p=0.01)
    here = Engine(settings)
    async with AsyncExitStack() as stack:
        url, _app, _http = await stack.enter_async_context(serve_app(tmp_path / "back", here, gradio=False))
        there = await stack.enter_async_context(remote(url))
        assert there.info.max_model_len == 128
        assert (await there.prepare(HI)).num_prompt_tokens == (await here.prepare(HI)).num_prompt_tokens
        for one, other in (
            (here.chat(HI, params), there.chat(HI, params)),
            (here.complete([5, 6, 7], params), there.complete([5, 6, 7], params)),
        ):
            ours = [delta async for delta in one]
            theirs = [delta async for delta in other]
            assert "".join(d.text for d in theirs) == "".join(d.text for d in ours)
            ids = [token for d in theirs for token in d.token_ids]
            assert ids == [token for d in ours for token in d.token_ids]
            mine = [score.token for d in ours for score in d.logprobs]
            told = [score.token for d in theirs for score in d.logprobs]
            assert [token.token_id for token in told] == ids
            assert [token.logprob for token in told] == pytest.approx([token.logprob for token in mine])
            assert theirs[-1].finish_reason == ours[-1].finish_reason
            assert theirs[-1].timings is not None
            assert ours[-1].timings is not None
            assert theirs[-1].timings.prompt_tokens == ours[-1].timings.prompt_tokens
            assert theirs[-1].timings.completion_tokens == 24
        with pytest.raises(InvalidRequestError, match="stop_token_ids"):
            [delta async for delta in there.chat(HI, SamplingParams(stop_token_ids=[5000]))]


async def test_a_reply_goes_on_as_if_it_had_not_been_cut(tmp_path: Path) -> None:
    guide = ROOT / "models" / "guide"
    greedy = SamplingParams(temperature=0.0, max_tokens=40)
    question = {"role": "user", "content": "What does top-p do?"}
    here = Engine(EngineSettings(_env_file=None, model=str(guide), dtype="float32"))
    async with AsyncExitStack() as stack:
        url, _app, _http = await stack.enter_async_context(serve_app(tmp_path / "back", here, gradio=False))
        there = await stack.enter_async_context(remote(url))

        async def said(messages: list[Any], params: SamplingParams) -> str:
            return "".join([delta.text async for delta in there.chat(messages, params)])

        whole = await said([question], greedy)
        begun = await said([question], SamplingParams(temperature=0.0, max_tokens=12))
        unfinished = {"role": "assistant", "content": begun, "unfinished": True}
        assert whole.startswith(begun)
        assert begun + await said([question, unfinished], SamplingParams(temperature=0.0, max_tokens=28)) == whole


async def test_the_doctor_asks_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedServer("far-away") as back:
        command = ["doctor", "--remote-url", back.url, "--data-dir", str(tmp_path), "--port", "0"]
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(cli_main, command)
        assert ended.value.code == 0
        assert f"ok  model: far-away on {back.label}, context of 100 tokens" in capsys.readouterr().out
        await back.stop()
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(cli_main, command)
        assert ended.value.code == 2
        assert (
            f"!!  model: No model server is available ({back.label}: it cannot be reached)." in capsys.readouterr().out
        )


@pytest.mark.full
async def test_nothing_is_loaded_where_the_model_is_elsewhere(tmp_path: Path) -> None:
    """The whole server as a process that cannot import what runs models."""
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__name__} was imported')")
    async with ScriptedServer() as back:
        command = ["-m", "app", "serve", "--remote-url", back.url, "--port", "0", "--data-dir", str(tmp_path / "data")]
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        server = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=environment, cwd=tmp_path, stdout=PIPE, stderr=STDOUT
        )
        assert server.stdout is not None
        try:
            shown = ""
            while "is ready at" not in shown:
                line = (await server.stdout.readline()).decode()
                assert line, shown
                shown += line
            async with httpx.AsyncClient(base_url=shown.split("is ready at ")[1].strip(), timeout=60) as http:
                turn = (await http.post("/api/turns", json={"text": "hi"})).json()
                assert (await ended(http, turn))["content"] == "Hello world"
                assert (await http.get("/")).status_code == 200
                # The page says so where it says who is being talked to.
                assert (await http.get("/ui/options")).json()["model"]["remote"] is True
        finally:
            server.terminate()
            await server.wait()
