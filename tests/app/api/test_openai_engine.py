"""``/v1`` with the official client and the real engine: what only a model can answer."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.api.openai.logprobs import TextLogprobs, chat_logprobs
from engine import Engine, EngineSettings, Logprob, TokenLogprobs
from testing.models import make_model
from tests.app.live_server import serve_app

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
MODEL = "tiny"


class Reference:
    """A second copy of the model, to say what is right."""

    def __init__(self, path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self._module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def logprobs(self, sequence: list[int]) -> torch.Tensor:
        """For the token behind each of ``sequence``."""
        with torch.inference_mode():
            return self._module(torch.tensor([sequence])).logits[0].log_softmax(-1)

    def beams(self, prompt: list[int], **options: Any) -> list[list[int]]:
        """The replies of beam search, which no token ends."""
        ids = torch.tensor([prompt])
        config = {"do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(ids), **options}
        return self._module.generate(ids, **config)[:, len(prompt) :].tolist()

    def prompt(self) -> list[int]:
        return self.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)


class Door:
    """The server's address, and clients for it."""

    def __init__(self, url: str, http: httpx.AsyncClient, client: openai.AsyncOpenAI, reference: Reference) -> None:
        self.url = url
        self.http = http
        self.client = client
        self.reference = reference


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    path = make_model(tmp_path_factory.mktemp("models") / MODEL, "qwen3", seed=3)
    settings = EngineSettings(model=str(path), dtype="float32", max_model_len=128, kv_block_size=4, num_kv_blocks=200)
    async with (
        serve_app(tmp_path_factory.mktemp("data"), Engine(settings)) as (url, _app, http),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield Door(url, http, client, Reference(str(path)))


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_a_chat(door: Door, stream: bool) -> None:
    answer: Any = await door.client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=stream, logprobs=True, top_logprobs=3, max_tokens=20, seed=1,
        temperature=1.5, stop=["never there"], extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    parts = [part async for part in answer] if stream else [answer]
    choices = [part.choices[0] for part in parts]
    reply = [token for choice in choices for token in choice.model_extra.get("token_ids", [])]
    content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert len(reply) == len(content) == 20
    expected = door.reference.logprobs(door.reference.prompt() + reply)[len(door.reference.prompt()) - 1 :]
    for entry, token, row in zip(content, reply, expected, strict=False):
        assert entry.logprob == pytest.approx(float(row[token]), abs=2e-4)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(row.topk(3).values.tolist(), abs=2e-4)
        for top in entry.top_logprobs:
            assert top.token.startswith("bytes:") or bytes(top.bytes or b"").decode() in ("", top.token)
    said = "".join((c.delta.content if stream else c.message.content) or "" for c in choices)
    assert b"".join(bytes(entry.bytes or b"") for entry in content).decode(errors="replace") == said
    if stream:
        for choice in choices:
            assert len(choice.logprobs.content if choice.logprobs else ()) == len(choice.model_extra["token_ids"])


async def test_without_asking_there_are_none(door: Door) -> None:
    chat = await door.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
    text = await door.client.completions.create(model=MODEL, prompt="a", max_tokens=2)
    assert (chat.choices[0].logprobs, text.choices[0].logprobs) == (None, None)
    assert "prompt_logprobs" not in chat.model_dump()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
async def test_logprobs_of_a_completion(door: Door, stream: bool, echo: bool) -> None:
    prompt = "The quick brown fox, 日本"
    answer: Any = await door.client.completions.create(
        model=MODEL, prompt=prompt, stream=stream, echo=echo, logprobs=2, max_tokens=20, seed=1, temperature=1.5,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    parts = [part async for part in answer] if stream else [answer]
    text = "".join(part.choices[0].text for part in parts)
    told = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
    tokens, logprobs, best, offsets = (
        [each for one in told for each in getattr(one, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    prompt_ids = door.reference.tokenizer.encode(prompt)
    reply = [token for part in parts for token in part.choices[0].model_extra.get("token_ids", [])]
    expected = door.reference.logprobs(prompt_ids + reply)
    sequence = prompt_ids + reply
    shown = sequence if echo else reply
    assert text.startswith(prompt) == echo
    assert len(tokens) == len(logprobs) == len(best) == len(offsets) == len(shown)
    if echo:
        assert (logprobs[0], best[0]) == (None, None)
    for index in range(1 if echo else 0, len(shown)):
        row = expected[len(sequence) - len(shown) + index - 1]
        assert logprobs[index] == pytest.approx(float(row[shown[index]]), abs=2e-4)
        assert best[index][tokens[index]] == logprobs[index]
        assert sorted(best[index].values())[-2:] == pytest.approx(sorted(row.topk(2).values.tolist()), abs=2e-4)
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token) or "\ufffd" in text[offset : offset + 2]
    assert any(
        len(token) > 1 and text[offset:].startswith(token) for token, offset in zip(tokens, offsets, strict=True)
    )


async def test_echo_alone_is_the_prompts_text(door: Door) -> None:
    ids = door.reference.tokenizer.encode("The quick fox")
    for prompt in ("The quick fox", ids):
        answer = await door.client.completions.create(model=MODEL, prompt=prompt, echo=True, max_tokens=3)
        assert answer.choices[0].text.startswith("The quick fox")
        assert answer.choices[0].logprobs is None


async def test_prompt_logprobs(door: Door) -> None:
    prompt = door.reference.prompt()
    expected = door.reference.logprobs(prompt)
    extra = {"prompt_logprobs": 2}
    chat = await door.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1, extra_body=extra)
    text = await door.client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body=extra)
    assert text.choices[0].model_extra is not None
    assert chat.model_extra is not None
    told = chat.model_extra["prompt_logprobs"]
    assert told == text.choices[0].model_extra["prompt_logprobs"]
    assert told[0] is None
    assert len(told) == len(prompt)
    for position in range(1, len(prompt)):
        row = expected[position - 1]
        assert told[position][str(prompt[position])]["logprob"] == pytest.approx(float(row[prompt[position]]), abs=2e-4)
        for token in row.topk(2).indices.tolist():
            assert told[position][str(token)]["logprob"] == pytest.approx(float(row[token]), abs=2e-4)


async def test_a_logprob_that_json_cannot_hold() -> None:
    never = Logprob(5, -math.inf, "x", b"x")
    scores = [TokenLogprobs(never, 2, (never,))]
    chat = chat_logprobs(scores)["content"][0]
    assert (chat["logprob"], chat["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert TextLogprobs().append(scores)["token_logprobs"] == [-9999.0]


async def test_offsets_where_the_text_drops_the_first_space() -> None:
    """As SentencePiece's decoders do; tokens that share a character share its offset."""
    pieces = [b" The", b" fox", b"\xe6\x97", b"\xa5", b"!"]
    scores = [TokenLogprobs(Logprob(0, -1.0, piece.decode(errors="replace"), piece), 1, ()) for piece in pieces]
    assert TextLogprobs().append(scores, begins="The fox\u65e5!")["text_offset"] == [0, 3, 7, 7, 8]
    assert TextLogprobs().append(scores, begins=" The fox\u65e5!")["text_offset"] == [0, 4, 8, 8, 9]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"extra_body": {"prompt_logprobs": 1}, "echo": True}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"extra_body": {"stop_token_ids": [5000]}}, "stop_token_ids"),
        ({"extra_body": {"top_logprobs": 2}}, "top_logprobs"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"extra_body": {"forbidden_words": ["\u200b"]}}, "forbidden_words"),
    ],
)
async def test_what_a_completion_cannot_be_asked(door: Door, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await door.client.completions.create(model=MODEL, prompt="a", **asked)
    body: Any = caught.value.body
    assert body["param"] == param
    assert param in body["message"]


async def test_forbidden_and_bad_words(door: Door) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "a", "max_tokens": 40, "temperature": 1.5}
    letters = ["a", "e", "t", "o", "s"]

    def holds_one(text: str) -> bool:
        """Accents belong to their letter, "t" with one is another word; and what is invisible parts no word."""
        text = "".join(each for each in text if each.isspace() or unicodedata.category(each) not in ("Cc", "Cf"))
        return any(word in letters for word in re.findall(r"(?:[^\W_]|[\u0300-\u036f])+", text.casefold()))

    met = 0
    for seed in range(5):
        free = await door.client.completions.create(**asked, seed=seed)
        met += holds_one(free.choices[0].text)
        reply = await door.client.completions.create(**asked, seed=seed, extra_body={"forbidden_words": letters})
        assert not holds_one(reply.choices[0].text), reply.choices[0].text
    assert met
    greedy: Any = {**asked, "temperature": 0, "max_tokens": 1, "logprobs": 1}
    first = (await door.client.completions.create(**greedy)).choices[0].text
    other = await door.client.completions.create(**greedy, extra_body={"bad_words": [first]})
    assert other.choices[0].text != first


async def test_ends_and_token_ids_as_vllm_spells_them(door: Door) -> None:
    free: Any = await door.client.completions.create(
        model=MODEL, prompt="a", max_tokens=30, temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    ids = free.choices[0].model_extra["token_ids"]
    assert len(ids) == 30
    stopped: Any = await door.client.completions.create(
        model=MODEL, prompt="a", max_tokens=30, temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True, "stop_token_ids": [ids[9]]},
    )  # fmt: skip
    assert stopped.choices[0].model_extra["token_ids"] == ids[: ids.index(ids[9]) + 1]
    assert stopped.choices[0].model_extra["stop_reason"] == ids[9]
    longer: Any = await door.client.completions.create(
        model=MODEL, prompt="a", max_tokens=30, temperature=0,
        extra_body={"min_tokens": 30, "return_token_ids": True, "stop_token_ids": [ids[9]]},
    )  # fmt: skip
    assert len(longer.choices[0].model_extra["token_ids"]) == 30


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(door: Door, stream: bool) -> None:
    asked: dict[str, Any] = {"messages": HELLO, "model": MODEL, "max_tokens": 12, "seed": 1, "temperature": 1.5}
    alone = await door.client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    asked |= {"n": 3, "stream": stream}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    answer: Any = await door.client.chat.completions.create(**asked, extra_body={"ignore_eos": True, "priority": -1})
    usage: Any = None
    texts = {0: "", 1: "", 2: ""}
    if stream:
        roles, ends = [], []
        async for chunk in answer:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles += [choice.index] if choice.delta.role else []
                ends += [choice.index] if choice.finish_reason else []
        assert roles == sorted(ends) == [0, 1, 2]
    else:
        usage = answer.usage
        texts = {choice.index: choice.message.content for choice in answer.choices}
    assert texts[0] == alone.choices[0].message.content
    assert len(set(texts.values())) == 3
    assert alone.usage is not None
    assert usage.prompt_tokens == alone.usage.prompt_tokens
    assert usage.completion_tokens == 36


async def test_the_best_of_several_replies_are_returned_best_first(door: Door) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "prompt": ["hello", "The quick"], "max_tokens": 8, "seed": 5, "temperature": 1.5,
        "extra_body": {"return_token_ids": True},
    }  # fmt: skip
    every = await door.client.completions.create(**asked, n=5, logprobs=1)
    best = await door.client.completions.create(**asked, n=2, best_of=5, echo=True)
    means = [sum(found.token_logprobs or ()) / 8 for found in (one.logprobs for one in every.choices) if found]
    expected = [sorted(range(start, start + 5), key=means.__getitem__, reverse=True)[:2] for start in (0, 5)]
    tokens = [(one.model_extra or {})["token_ids"] for one in every.choices]
    assert [(one.model_extra or {})["token_ids"] for one in best.choices] == [
        tokens[index] for group in expected for index in group
    ]
    assert [one.index for one in best.choices] == [0, 1, 2, 3]
    assert [one.text.startswith(("hello", "The quick")) for one in best.choices] == [True] * 4
    assert [one.logprobs for one in best.choices] == [None] * 4
    assert every.usage is not None
    assert best.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens
    assert best.usage.prompt_tokens == every.usage.prompt_tokens


async def test_beam_search_returns_the_likeliest_replies_of_each_prompt(door: Door) -> None:
    prompts = ["hello", "The quick"]
    body = {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.6, "ignore_eos": True}
    answer = await door.client.completions.create(
        model=MODEL, prompt=prompts, n=2, max_tokens=8, logprobs=1, echo=True, temperature=0,
        extra_body={**body, "return_token_ids": True},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * 8
    for number, prompt in enumerate(prompts):
        ids = door.reference.tokenizer.encode(prompt)
        expected = door.reference.beams(ids, num_beams=4, num_return_sequences=2, length_penalty=0.6, max_new_tokens=8)
        for choice, tokens in zip(answer.choices[2 * number :], expected, strict=False):
            assert (choice.model_extra or {})["token_ids"] == tokens
            assert choice.text == prompt + door.reference.tokenizer.decode(tokens, skip_special_tokens=True)
            assert choice.logprobs is not None
            assert len(choice.logprobs.tokens or ()) == len(ids) + 8
    chat = await door.client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, max_tokens=6, extra_body={**body, "beam_width": None}
    )
    prompt_ids = door.reference.prompt()
    expected = door.reference.beams(
        prompt_ids, num_beams=3, num_return_sequences=3, length_penalty=0.6, max_new_tokens=6
    )
    texts = [door.reference.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in expected]
    assert [choice.message.content for choice in chat.choices] == texts


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"stop_regex": "a"}, "stop_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_what_beam_search_cannot_do_is_refused_by_name(door: Door, asked: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": HELLO, "use_beam_search": True, "n": 2, **asked}
    answer = await door.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_several_choices_of_a_text_each_with_its_prompt(door: Door) -> None:
    answer = await door.client.completions.create(
        model=MODEL, prompt="hello", n=2, echo=True, logprobs=1, max_tokens=3, temperature=1.5, seed=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.text.startswith("hello")
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[0] is None


async def test_several_prompts_are_scored_as_alone(door: Door) -> None:
    """As lm-eval's local-completions asks, and with max_tokens 0 for the prompts alone."""
    prompts = [door.reference.tokenizer.encode(text) for text in ("The quick fox", "a", "hello there, you")]
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    scored = await door.client.completions.create(prompt=prompts, max_tokens=1, **asked)
    bare = await door.client.completions.create(prompt=prompts, max_tokens=0, **asked)
    assert [choice.index for choice in scored.choices] == [choice.index for choice in bare.choices] == [0, 1, 2]
    assert scored.usage is not None
    assert bare.usage is not None
    total = sum(map(len, prompts))
    assert (scored.usage.prompt_tokens, scored.usage.completion_tokens) == (total, 3)
    assert (bare.usage.prompt_tokens, bare.usage.completion_tokens) == (total, 0)
    for prompt, choice, alone in zip(prompts, scored.choices, bare.choices, strict=True):
        expected = door.reference.logprobs(prompt)
        told, only = choice.logprobs, alone.logprobs
        assert told is not None
        assert only is not None
        assert told.token_logprobs is not None
        assert len(told.token_logprobs) == len(prompt) + 1
        assert only.token_logprobs == told.token_logprobs[:-1]
        assert only.top_logprobs == (told.top_logprobs or [])[:-1]
        assert alone.text == door.reference.tokenizer.decode(prompt)
        assert alone.finish_reason == "length"
        for position in range(1, len(prompt)):
            right = float(expected[position - 1][prompt[position]])
            assert told.token_logprobs[position] == pytest.approx(right, abs=2e-4)


async def test_a_scored_prompt_streams_and_needs_no_text(door: Door) -> None:
    stream = await door.client.completions.create(
        model=MODEL, prompt=[70, 71, 72], max_tokens=0, echo=True, logprobs=0, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == door.reference.tokenizer.decode([70, 71, 72])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == ["length"]
    told = await door.client.completions.create(
        model=MODEL, prompt=[70, 71, 72], max_tokens=0, extra_body={"prompt_logprobs": 0}
    )
    assert told.choices[0].text == ""
    assert len((told.choices[0].model_extra or {})["prompt_logprobs"]) == 3


async def test_no_likeliest_tokens_still_tell_the_token_itself(door: Door) -> None:
    answer = await door.client.completions.create(model=MODEL, prompt="a", max_tokens=2, logprobs=0, temperature=0)
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    expected = [{token: value} for token, value in zip(told.tokens, told.token_logprobs, strict=True)]
    assert told.top_logprobs == expected


async def test_a_prompt_is_read_without_its_special_tokens_where_that_is_asked(door: Door) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The quick fox", "max_tokens": 1, "echo": True}
    answer = await door.client.completions.create(**asked, extra_body={"add_special_tokens": False})
    assert answer.usage is not None
    bare = door.reference.tokenizer.encode("The quick fox", add_special_tokens=False)
    assert answer.usage.prompt_tokens == len(bare)
    assert answer.choices[0].text.startswith("The quick fox")


async def test_a_token_that_the_model_does_not_have_is_said_of_the_prompt(door: Door) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await door.client.completions.create(model=MODEL, prompt=[[1], [10**20]], max_tokens=1)
    body: Any = caught.value.body
    assert body["param"] == "prompt"


@pytest.mark.parametrize("asked", [{"logprobs": True, "top_logprobs": 21}, {"extra_body": {"prompt_logprobs": 21}}])
async def test_log_probabilities_beyond_the_servers_limit_name_the_callers_field(
    door: Door, asked: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match="ENGINE_MAX_LOGPROBS") as caught:
        await door.client.chat.completions.create(model=MODEL, messages=HELLO, **asked)
    body: Any = caught.value.body
    assert body["param"] == ("top_logprobs" if "logprobs" in asked else "prompt_logprobs")
