"""What ``/v1`` makes of fields that ask for nothing, for what is not there, or that it does not know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import ValidationError

from app.api.openai.errors import IGNORED_FIELDS, MAX_LISTED
from app.api.openai.fields import REQUEST_FIELDS
from app.api.openai.requests import ChatCompletionRequest, CompletionRequest
from engine import PARAMETERS
from testing.json_events import parse_json_events
from testing.waiting import eventually
from tests.app.live_server import RunningApp, live_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

HALF = "\ud800"
CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello there"}]}
TEXT: dict[str, Any] = {"model": "fake", "prompt": "hello there"}
#: The fields that strangers' programs were seen to send at these values, and had refused.
NEUTRAL: dict[str, Any] = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
    "length_penalty": 1,
    "include_stop_str_in_output": False,
    "truncate_prompt_tokens": None,
    "allowed_token_ids": None,
    "structured_outputs": None,
    "guided_json": None,
    "return_tokens_as_token_ids": False,
    "cache_salt": None,
    "kv_transfer_params": None,
    "vllm_xargs": {},
    "session_id": "s-1",
    "cache_prompt": True,
    "id_slot": -1,
    "n_keep": 0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "dry_multiplier": 0.0,
    "grammar": "",
    "timings_per_token": False,
    "lora_path": None,
    "separate_reasoning": True,
    "safety_identifier": "hash",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "in_memory",
    "store": False,
    "service_tier": "auto",
    "metadata": {"a": "b"},
    "user": "u",
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "verbosity": "medium",
    "reasoning_effort": None,
    "seed": -1,
    "max_tokens": 8.0,
    "stop": [],
    "logit_bias": {},
    "stream_options": None,
}
NEUTRAL_CHAT: dict[str, Any] = {"chat_template_kwargs": {}, "chat_template": None, "documents": None, "echo": False}


async def ask(live: RunningApp, body: dict[str, Any]) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return await live.http.post(path, json=body)


@pytest.mark.parametrize(
    "body", [CHAT | NEUTRAL | NEUTRAL_CHAT, TEXT | NEUTRAL | {"suffix": "", "best_of": 1}], ids=["chat", "text"]
)
async def test_fields_that_ask_for_nothing_are_accepted(live: RunningApp, body: dict[str, Any]) -> None:
    answer = await ask(live, body)
    assert answer.status_code == 200, answer.text
    assert IGNORED_FIELDS not in answer.headers


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
async def test_every_known_field_is_taken_at_its_neutral_values_and_refused_by_name_at_others(kind: Any) -> None:
    start = CHAT if kind is ChatCompletionRequest else TEXT
    refused = 0
    for name, field in REQUEST_FIELDS.items():
        if name in kind.model_fields:
            continue
        for value in (None, *field.neutral):
            assert list(kind.model_validate({**start, name: value}).unknown_fields()) == []
        other = {"asks": "for something"}
        if field.accepts_any:
            kind.model_validate({**start, name: other})
            continue
        with pytest.raises(ValidationError, match=r"'\{param\}'") as caught:
            kind.model_validate({**start, name: other})
        assert caught.value.errors()[0]["ctx"]["param"] == name
        refused += 1
    assert refused > 70


async def test_no_sampling_parameter_is_listed_as_unsupported() -> None:
    assert not REQUEST_FIELDS.keys() & PARAMETERS.keys()


async def test_true_is_not_one_and_one_is_not_true(live: RunningApp) -> None:
    for asked in ({"use_beam_search": 0}, {"best_of": True}, {"cache_prompt": 1}):
        answer = await ask(live, CHAT | asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == next(iter(asked))


async def test_unknown_fields_are_ignored_and_listed(live: RunningApp) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi", "shade": 1}], "mood": "good"}
    for stream in (False, True):
        body = {"model": "fake", "messages": [message], "stream": stream, "top_n_magic": {"deep": [1]}}
        answer = await ask(live, body)
        assert answer.status_code == 200
        assert answer.headers[IGNORED_FIELDS] == "top_n_magic, messages[0].mood, messages[0].content[0].shade"


async def test_names_of_unknown_fields_cannot_forge_a_header(live: RunningApp) -> None:
    body: dict[str, Any] = CHAT | {"a\r\nSet-Cookie: b=c": 1, "é" * 500: 2}
    answer = await ask(live, body)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert answer.headers[IGNORED_FIELDS] == f"a??Set-Cookie??b?c, {'?' * 64}"
    many = await ask(live, CHAT | {f"unknown_{number}": 1 for number in range(5000)})
    assert len(many.headers[IGNORED_FIELDS].split(", ")) == MAX_LISTED


async def test_unknown_fields_are_refused_where_that_is_set(
    live: RunningApp, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with live_server(tmp_path_factory.mktemp("strict"), gradio=False, strict_fields=True) as strict:
        answer = await ask(strict, CHAT | {"top_n_magic": 1})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "top_n_magic"
        assert (await ask(strict, CHAT | NEUTRAL)).status_code == 200
        nested = await strict.http.post("/tokenize", json=CHAT | {"messages": [{**CHAT["messages"][0], "mood": 1}]})
        assert nested.json()["error"]["param"] == "messages[0].mood"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([], ""),
        ("plain", "plain"),
        (["a", {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}], "a\nb"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": [{}]}], "a\nb"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
    ],
)
async def test_contents(live: RunningApp, content: Any, text: str) -> None:
    message = {"role": "user", "content": content, "cache_control": {"type": "ephemeral"}}
    answer = await ask(live, CHAT | {"messages": [message]})
    assert answer.status_code == 200, answer.text
    assert live.engine.calls[0][0] == [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "user", "content": HALF}]},
        {"messages": [{"role": "user", "content": [HALF]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        {"messages": [{"role": "user", "content": [{"type": HALF}]}]},
        {"messages": [{"role": HALF, "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "name": HALF}]},
        {"model": HALF},
        {"stop": HALF},
        {"request_id": HALF},
        {"tools": [HALF]},
        {"prompt": HALF},
        {"prompt": ["a", HALF]},
        {"logit_bias": {HALF: 1}},
        {"forbidden_words": [HALF]},
        {HALF: 1},
    ],
)
async def test_half_a_surrogate_pair_is_no_text(live: RunningApp, asked: dict[str, Any]) -> None:
    """JSON can write it, and no answer could repeat it."""
    body = json.dumps((TEXT if "prompt" in asked else CHAT) | asked)
    path = "/v1/completions" if "prompt" in asked else "/v1/chat/completions"
    answer = await live.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert live.engine.calls == []


async def test_names_reach_the_model_and_a_reply_may_lack_its_content(live: RunningApp) -> None:
    messages = [{"role": "user", "content": "hi", "name": "Ann-1"}, {"role": "assistant"}, *CHAT["messages"]]
    assert (await ask(live, CHAT | {"messages": messages})).status_code == 200
    assert live.engine.calls[0][0][0] == {"role": "user", "content": "hi", "name": "Ann-1"}
    assert live.engine.calls[0][0][1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("message", "param", "says"),
    [
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content[0]", "is an image"),
        ({"content": ["a", {"type": "input_audio"}]}, "messages[0].content[1]", "is sound"),
        ({"content": [{"type": "file"}]}, "messages[0].content[0]", "is a file"),
        ({"content": [{"type": "thing"}]}, "messages[0].content[0]", "of the type 'thing'"),
        ({"content": [{"type": "text"}]}, "messages[0].content[0].text", "must be a string"),
        ({"content": [5]}, "messages[0].content[0]", "must be a part"),
        ({"content": {"a": 1}}, "messages[0].content", "must be a string, a list"),
        ({}, "messages[0].content", "is missing"),
        ({"content": "x", "function_call": {"name": "f"}}, "messages[0].function_call", "tool_calls"),
        ({"content": "x", "name": "a b"}, "messages[0].name", "regular expression"),
    ],
)
async def test_what_a_message_cannot_hold_is_said_exactly(
    live: RunningApp, message: dict[str, Any], param: str, says: str
) -> None:
    answer = await ask(live, CHAT | {"messages": [{"role": "user", **message}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert param in error["message"]
    assert says in error["message"]


async def test_every_answer_has_what_openai_gives(live: RunningApp) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused") as client:
        reply = await client.chat.completions.create(**CHAT, extra_headers={"X-Request-Id": "mine-1"})
        assert reply._request_id == "mine-1"
        assert "refusal" in reply.choices[0].message.model_fields_set
        assert reply.choices[0].message.refusal is None
        assert reply.system_fingerprint is not None
        assert reply.system_fingerprint.startswith("fp_")
        stream = await client.chat.completions.create(**CHAT, stream=True)
        prints = {chunk.system_fingerprint async for chunk in stream}
        text = await client.completions.create(**TEXT)
        assert prints == {reply.system_fingerprint} == {text.system_fingerprint}
        named = await client.chat.completions.create(**CHAT, extra_body={"request_id": "mine-2"})
        assert named.id == "chatcmpl-mine-2"


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "né", "a\tb"])
async def test_an_id_that_is_no_word_gives_way_to_one_of_ours(live: RunningApp, sent: str) -> None:
    answer = await live.http.get("/v1/models", headers={b"X-Request-Id": sent.encode("latin-1")})
    assert answer.headers["x-request-id"] != sent
    assert len(answer.headers["x-request-id"]) == 32


async def test_usage_with_every_chunk(live: RunningApp) -> None:
    """As guidellm asks for it."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    for body in (CHAT, TEXT):
        answer = await ask(live, body | {"stream": True, "stream_options": options, "stop": None, "ignore_eos": True})
        events = [event.data for event in parse_json_events(answer.content)]
        written = [event["usage"]["completion_tokens"] for event in events]
        assert written == sorted(written)
        assert written[0] == (0 if body is CHAT else 1)
        assert written[-1] == 4
        assert {event["usage"]["prompt_tokens"] for event in events} == {events[-1]["usage"]["prompt_tokens"]}


async def test_several_prompts_each_with_its_choices(live: RunningApp) -> None:
    prompts = [["one two"], ["one", "two three", "four five six"], [[1, 2], [3]], [5, 6, 7]]
    for prompt, count, tokens in zip(prompts, (1, 3, 2, 1), (2, 6, 3, 3), strict=True):
        answer = (await ask(live, TEXT | {"prompt": prompt})).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(count))
        assert [choice["text"] for choice in answer["choices"]] == ["Hello, world."] * count
        assert answer["usage"]["prompt_tokens"] == tokens
        assert answer["usage"]["completion_tokens"] == 4 * count
    streamed = await ask(live, TEXT | {"prompt": ["a", "b"], "stream": True})
    texts = {0: "", 1: ""}
    for event in parse_json_events(streamed.content):
        for choice in event.data["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "Hello, world.", 1: "Hello, world."}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 16}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_prompts_that_cannot_be_taken(live: RunningApp, asked: dict[str, Any], param: str) -> None:
    answer = await ask(live, TEXT | asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert live.engine.running == 0


async def test_one_prompt_that_fails_ends_the_others(live: RunningApp) -> None:
    answer = await ask(live, TEXT | {"prompt": ["a", "word " * 5000, "b"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert live.engine.running == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_replies_to_all_its_prompts(live: RunningApp, stream: bool) -> None:
    live.engine.default.gates = gates = {1: asyncio.Event()}
    asking = asyncio.create_task(ask(live, TEXT | {"prompt": ["a", "b", "c"], "n": 1, "stream": stream}))
    try:
        await eventually(lambda: live.engine.running == 3)
        asking.cancel()
        await eventually(lambda: live.engine.running == 0)
        assert live.engine.aborted == 3
    finally:
        gates[1].set()
        live.engine.default.gates = {}


async def test_tokens_as_vllm_tells_them(live: RunningApp) -> None:
    told = (await live.http.post("/tokenize", json={"prompt": "hi"})).json()
    assert told == {"count": 3, "max_model_len": 4096, "tokens": [0, 104, 105], "token_strs": None}
    bare = {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True, "model": "fake"}
    told = (await live.http.post("/tokenize", json=bare)).json()
    assert (told["tokens"], told["token_strs"]) == ([104, 105], ["h", "i"])
    chat = {**CHAT, "add_generation_prompt": True}
    assert (await live.http.post("/v1/tokenize", json=chat)).json()["count"] == 3
    assert (await live.http.post("/detokenize", json={"tokens": [104, 105]})).json() == {"prompt": "hi"}
    assert (await live.http.get("/version")).json() == {"version": "0.1.0"}
    assert (await live.http.get("/load")).json() == {"server_load": 0}
    for path, body in (
        ("/tokenize", {"model": "fake"}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
    ):
        answer = await live.http.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert "tag:" not in answer.text
    other = await live.http.post("/tokenize", json={"prompt": "hi", "model": "gpt-9"})
    assert other.json()["error"]["code"] == "model_not_found"


async def test_a_text_too_long_to_be_tokenized_at_once_is_refused(live: RunningApp) -> None:
    """The one tokenizer would be busy with it for half a minute."""
    long = "a b " * 50_001
    for path, body in (
        ("/tokenize", {"prompt": long}),
        ("/v1/tokenize", {"messages": [{"role": "user", "content": long}]}),
    ):
        answer = await live.http.post(path, json=body)
        assert answer.status_code == 400
        assert "APP_MAX_MESSAGE_CHARS" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] in body


async def test_the_version_is_the_projects() -> None:
    import tomllib
    from pathlib import Path

    from app import __version__

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert __version__ == project["project"]["version"]


async def test_an_alias_names_the_model(live: RunningApp) -> None:
    live.engine.serve_as("gpt-4o", "other")
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused") as client:
        assert [model.id async for model in client.models.list()] == ["gpt-4o", "other"]
        assert (await client.models.retrieve("other")).id == "other"
        for name in ("gpt-4o", "other"):
            assert (await client.chat.completions.create(**{**CHAT, "model": name})).model == "gpt-4o"
        with pytest.raises(openai.NotFoundError, match="loaded model is 'gpt-4o'"):
            await client.chat.completions.create(**CHAT)
    unnamed = await live.http.post("/v1/chat/completions", json={"messages": CHAT["messages"]})
    assert unnamed.json()["model"] == "gpt-4o"
