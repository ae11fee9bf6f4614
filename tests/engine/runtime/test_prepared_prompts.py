"""A conversation that is prepared first and streamed later: the same reply and refusals, and nothing held meanwhile."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import (
    Caller,
    ChatEngine,
    ChatMessage,
    ContextLengthError,
    Delta,
    Engine,
    EngineOverloadedError,
    EngineSettings,
    EngineStoppedError,
    InvalidRequestError,
    RemoteEngine,
    SamplingParams,
    Truncation,
)
from engine.errors import PoisonedPromptError
from engine.runtime.rendered_chat import RenderedChat
from engine.runtime.request_processor import RequestProcessor
from testing.fake_engine import FakeEngine
from testing.models import make_model
from testing.waiting import eventually

GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=12)
ENDLESS = replace(GREEDY, max_tokens=400)
HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]
TALK: list[ChatMessage] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "two"},
]
UNFINISHED: list[ChatMessage] = [*TALK, {"role": "assistant", "content": "sec", "unfinished": True}]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generation: dict[str, object] = {"temperature": 0.5, "do_sample": True}
    return make_model(tmp_path_factory.mktemp("models") / "one", "qwen2", eos=False, generation=generation)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another tokenizer and other defaults."""
    generation: dict[str, object] = {"temperature": 0.9, "do_sample": True}
    path = tmp_path_factory.mktemp("models") / "two"
    return make_model(path, "qwen3", seed=5, vocab_size=320, eos=False, generation=generation)


def settings(model: Path, **more: Any) -> EngineSettings:
    chosen = {"kv_block_size": 4, "num_kv_blocks": 300, **more}
    return EngineSettings(model=str(model), dtype="float32", _env_file=None, **chosen)


@pytest.fixture
async def engine(one: Path) -> AsyncIterator[Engine]:
    async with Engine(settings(one)) as running:
        yield running
        assert running.stats().num_requests_running == 0
        running._core.check()


Said = dict[int, tuple[str, tuple[int, ...], object]]


def said(deltas: list[Delta]) -> Said:
    """Text, token ids and finish reason of each reply."""
    result: Said = {}
    for delta in deltas:
        text, ids, _ = result.get(delta.index, ("", (), None))
        result[delta.index] = (text + delta.text, ids + delta.token_ids, delta.finish_reason)
    return result


async def read(stream: AsyncIterator[Delta]) -> Said:
    return said([delta async for delta in stream])


async def prompt_ids(engine: Engine, messages: list[ChatMessage]) -> list[int]:
    prepared = await engine.prepare(messages)
    assert isinstance(prepared, RenderedChat)
    return prepared.prompt.token_ids


def count_renders(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects the number of messages of each conversation that is rendered from now on."""
    rendered: list[int] = []
    template = engine._core.request_processor._template
    render = template.render

    def counted(messages: Any, *others: Any) -> Any:
        rendered.append(len(messages))
        return render(messages, *others)

    monkeypatch.setattr(template, "render", counted)
    return rendered


def num_prepared() -> int:
    """Counts the prepared prompts that anything still refers to."""
    gc.collect()
    return sum(isinstance(one, RenderedChat) for one in gc.get_objects())


# -- the same reply -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "params"),
    [
        (HELLO, GREEDY),
        (TALK, replace(GREEDY, temperature=1.0, seed=7)),
        (TALK, replace(GREEDY, temperature=1.0, seed=7, n=3)),
        (TALK, replace(GREEDY, logprobs=2, prompt_logprobs=1, bad_words=("a",))),
        (UNFINISHED, GREEDY),
        (UNFINISHED, replace(GREEDY, temperature=1.0, seed=7, n=2)),
    ],
)
async def test_prepared_and_streamed_is_the_same_as_chat(
    engine: Engine, messages: list[ChatMessage], params: SamplingParams
) -> None:
    expected = [delta async for delta in engine.chat(messages, params)]
    prepared = await engine.prepare(messages, params)
    assert await read(engine.stream(prepared)) == said(expected)
    pushed: list[Delta] = []
    await engine.stream(prepared).forward_to(pushed.append)
    assert said(pushed) == said(expected)
    assert pushed[-1].timings is not None
    assert pushed[-1].timings.prompt_tokens == prepared.num_prompt_tokens == len(await engine.tokenize(messages))
    assert len(said(expected)) == params.n
    # Of each reply, as soon as it begins: one that is stopped has no timings.
    queued = [delta.queue_seconds for delta in pushed if delta.queue_seconds is not None]
    assert queued == [pushed[-1].timings.queue_seconds] * params.n


async def test_it_is_rendered_once_however_often_it_is_streamed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = count_renders(engine, monkeypatch)
    prepared = await engine.prepare(TALK, replace(GREEDY, temperature=1.5))
    replies = await asyncio.gather(*(read(engine.stream(prepared)) for _ in range(3)))
    assert len({ids for reply in replies for _, ids, _ in reply.values()}) == 3, "without a seed, each has its own"
    prepared = await engine.prepare(TALK, GREEDY)
    assert await read(engine.stream(prepared)) == await read(engine.stream(prepared))
    assert rendered == [4, 4]
    await read(engine.chat(TALK, GREEDY))
    assert rendered == [4, 4, 4]


async def test_the_defaults_of_the_model_are_filled_in(engine: Engine) -> None:
    prepared = await engine.prepare(HELLO, SamplingParams(top_k=3))
    assert (prepared.params.temperature, prepared.params.top_k) == (0.5, 3)
    assert prepared.requested_params == SamplingParams(top_k=3)
    assert prepared.max_model_len == engine.info.max_model_len
    assert (await engine.prepare(HELLO)).requested_params is None


async def test_later_changes_of_the_messages_are_not_streamed(engine: Engine, two: Path) -> None:
    expected = await read(engine.chat(TALK, GREEDY))
    messages = [message.copy() for message in TALK]
    prepared = await engine.prepare(messages, GREEDY)
    messages[1]["content"] = "something else"
    messages.append({"role": "assistant", "content": "more", "unfinished": True})
    assert await read(engine.stream(prepared)) == expected
    await engine.swap(str(two))
    assert await read(engine.stream(prepared)) == await read(engine.chat(TALK, GREEDY))


async def test_options_of_the_stream_are_its_own(engine: Engine) -> None:
    prepared = await engine.prepare(HELLO, ENDLESS)
    with pytest.raises(InvalidRequestError, match="deadline"):
        await read(engine.stream(prepared, deadline=-1))
    with pytest.raises(InvalidRequestError, match="priority"):
        await read(engine.stream(prepared, priority=10**20))
    assert len((await read(engine.stream(prepared)))[0][1]) == 400


# -- whose it is --------------------------------------------------------------------------------------------


async def test_the_caller_travels_within_it(engine: Engine) -> None:
    ann, bob = Caller("ann"), Caller("bob")
    secret: list[ChatMessage] = [{"role": "user", "content": "My number is 4711 and my dog is called Rex. " * 3}]

    async def cached(stream: AsyncIterator[Delta]) -> int:
        return sum([delta.cached_prompt_tokens or 0 async for delta in stream])

    prepared = await engine.prepare(secret, GREEDY, caller=ann)
    assert prepared.caller == ann
    await cached(engine.stream(prepared))
    shared = await cached(engine.chat(secret, GREEDY, caller=bob))
    assert shared < 40
    assert await cached(engine.stream(await engine.prepare(secret, GREEDY))) < 40
    assert await cached(engine.chat(secret, GREEDY, caller=ann)) > 100
    assert await cached(engine.stream(prepared)) > 100


@pytest.mark.parametrize("kind", [Engine, RemoteEngine, FakeEngine, ChatEngine])
def test_a_stream_takes_no_other_caller_and_no_other_parameters(kind: Any) -> None:
    assert list(inspect.signature(kind.stream).parameters) == ["self", "prepared", "deadline", "priority"]


async def test_the_caller_is_kept_when_it_is_rendered_again(
    engine: Engine, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[Caller | None] = []
    process = RequestProcessor.process

    def seen(self: RequestProcessor, *arguments: Any, **options: Any) -> Any:
        callers.append(options["caller"])
        return process(self, *arguments, **options)

    prepared = await engine.prepare(HELLO, GREEDY, caller=Caller("ann", "salt"))
    await engine.swap(str(two))
    monkeypatch.setattr(RequestProcessor, "process", seen)
    await read(engine.stream(prepared))
    assert callers == [Caller("ann", "salt")]


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "params", "error"),
    [
        ([{"role": "user", "content": "word " * 600}], None, ContextLengthError),
        ([], None, InvalidRequestError),
        ([{"role": "user"}], None, InvalidRequestError),
        (HELLO, SamplingParams(logit_bias={9999: 1.0}), InvalidRequestError),
        (HELLO, SamplingParams(logprobs=21), InvalidRequestError),
        (HELLO, SamplingParams(min_tokens=511), InvalidRequestError),
    ],
)
async def test_what_can_never_be_served_is_refused_by_both(
    engine: Engine, messages: Any, params: SamplingParams | None, error: type[Exception]
) -> None:
    with pytest.raises(error) as first:
        await engine.prepare(messages, params)
    with pytest.raises(error) as second:
        await read(engine.chat(messages, params))
    assert str(first.value) == str(second.value)


async def test_a_full_engine_refuses_both_steps(one: Path) -> None:
    async with Engine(settings(one, max_num_seqs=1, max_waiting=0)) as engine:
        prepared = await engine.prepare(HELLO, GREEDY)
        running = engine.stream(await engine.prepare(HELLO, ENDLESS))
        await anext(running)
        for refused in (
            engine.prepare(HELLO),
            read(engine.stream(prepared)),
            engine.stream(prepared).forward_to(print),
        ):
            with pytest.raises(EngineOverloadedError, match="of at most 1"):
                await refused
        await running.aclose()
        await eventually(lambda: not engine._supervisor.running_worker().readers)
        assert await read(engine.stream(prepared)) == await read(engine.chat(HELLO, GREEDY))


async def test_a_poisoned_prompt_is_refused_in_both_steps(engine: Engine) -> None:
    prepared = await engine.prepare(HELLO, GREEDY)
    ids = await prompt_ids(engine, HELLO)
    for _ in range(2):
        engine._supervisor.running_worker().quarantine.record_failure(ids, len(ids))
    for refused in (engine.prepare(HELLO), read(engine.stream(prepared)), read(engine.chat(HELLO))):
        with pytest.raises(PoisonedPromptError):
            await refused
    assert await read(engine.stream(await engine.prepare(TALK, GREEDY)))


async def test_a_draining_engine_refuses_both_steps(engine: Engine) -> None:
    prepared = await engine.prepare(HELLO, GREEDY)
    assert await engine.drain(5.0)
    for refused in (engine.prepare(HELLO), read(engine.stream(prepared))):
        with pytest.raises(EngineStoppedError, match="takes no new requests"):
            await refused


# -- another model in between -----------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [HELLO, UNFINISHED])
async def test_after_a_swap_it_is_rendered_for_the_new_model(
    engine: Engine, two: Path, messages: list[ChatMessage]
) -> None:
    params = SamplingParams(seed=3, max_tokens=12)  # the temperature is the model's
    prepared = await engine.prepare(messages, params)
    before, old = await read(engine.stream(prepared)), await prompt_ids(engine, messages)
    await engine.swap(str(two))
    assert await prompt_ids(engine, messages) != old
    after = [delta async for delta in engine.stream(prepared)]
    assert said(after) == await read(engine.chat(messages, params)) != before
    assert after[-1].timings is not None
    assert after[-1].timings.prompt_tokens == (await engine.prepare(messages)).num_prompt_tokens


async def test_what_the_new_model_cannot_read_is_refused_with_its_numbers(engine: Engine, two: Path) -> None:
    long: list[ChatMessage] = [{"role": "user", "content": "word " * 40}]
    prepared = await engine.prepare(long, GREEDY)
    await engine.swap(str(two), max_model_len=32)
    with pytest.raises(ContextLengthError, match="reads at most 32"):
        await read(engine.stream(prepared))


async def test_it_outlasts_a_sleep_and_a_stop(engine: Engine) -> None:
    prepared = await engine.prepare(TALK, GREEDY)
    expected = await read(engine.stream(prepared))
    await engine.sleep()
    with pytest.raises(EngineStoppedError, match="asleep"):
        await read(engine.stream(prepared))
    await engine.wake()
    assert await read(engine.stream(prepared)) == expected
    await engine.stop()
    with pytest.raises(EngineStoppedError):
        await read(engine.stream(prepared))
    await engine.start()
    assert await read(engine.stream(prepared)) == expected


async def test_one_of_another_engine_is_rendered_here(engine: Engine, two: Path) -> None:
    """Also one of another kind, which knows no token ids."""
    expected = await read(engine.chat(TALK, GREEDY))
    async with Engine(settings(two)) as other:
        prepared = await other.prepare(TALK, GREEDY)
        assert await read(engine.stream(prepared)) == expected
    assert await read(engine.stream(await FakeEngine().prepare(TALK, GREEDY))) == expected


# -- nothing is held --------------------------------------------------------------------------------------------


async def test_one_that_is_never_streamed_leaves_nothing_behind(engine: Engine) -> None:
    worker, before = engine._supervisor.running_worker(), num_prepared()
    prepared = [await engine.prepare(TALK, GREEDY) for _ in range(100)]
    assert worker.readers == {}
    assert engine.stats().num_requests_running + engine.stats().num_requests_waiting == 0
    unread = engine.stream(prepared[0])  # never iterated over
    assert worker.readers == {}
    assert num_prepared() == before + 100
    prepared.clear()
    del unread
    assert num_prepared() == before


async def test_it_does_not_keep_the_parts_of_a_model_that_was_replaced(engine: Engine, two: Path) -> None:
    prepared = await engine.prepare(TALK, GREEDY)
    old = weakref.ref(engine._core.request_processor)
    await engine.swap(str(two))
    gc.collect()
    assert old() is None
    assert prepared.num_prompt_tokens > 0


async def test_leaving_its_stream_aborts_the_request_alone(engine: Engine) -> None:
    prepared = await engine.prepare(HELLO, ENDLESS)
    left, stays = engine.stream(prepared), asyncio.create_task(read(engine.stream(prepared)))
    await anext(left)
    await left.aclose()
    pushed: list[Delta] = []
    pushing = asyncio.create_task(engine.stream(prepared).forward_to(pushed.append))
    await eventually(lambda: bool(pushed))
    pushing.cancel()
    assert len((await stays)[0][1]) == 400
    await eventually(lambda: not engine._supervisor.running_worker().readers)
    assert engine.stats().requests_finished["abort"] == 2


# -- the conversation's previous prompt, and its oldest turns ---------------------------------------------------


async def test_the_next_turn_continues_the_previous_prompt(engine: Engine, two: Path) -> None:
    text, ids, _ = (await read(engine.chat(TALK, GREEDY)))[0]
    kept = await engine.reply_tokens(text, ids)
    following: list[ChatMessage] = [
        *TALK,
        {"role": "assistant", "content": text, "token_ids": kept},
        {"role": "user", "content": "and?"},
    ]
    for previous in (
        await engine.prepare(TALK),
        await engine.prepare([*TALK, {"role": "assistant", "content": text[:2], "unfinished": True}]),
        await engine.prepare(HELLO),
        await engine.prepare(following),
        await FakeEngine().prepare(TALK),
    ):
        prepared = await engine.prepare(following, GREEDY, previous=previous)
        assert isinstance(prepared, RenderedChat)
        assert prepared.prompt.token_ids == await prompt_ids(engine, following)
    stale = await engine.prepare(TALK)
    await engine.swap(str(two))
    prepared = await engine.prepare(following, GREEDY, previous=stale)
    assert isinstance(prepared, RenderedChat)
    assert prepared.prompt.token_ids == await prompt_ids(engine, following)


def long_talk(turns: int) -> list[ChatMessage]:
    messages: list[ChatMessage] = [{"role": "system", "content": "Be kind."}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"{number} " + "abc " * (number % 7)})
        messages.append({"role": "assistant", "content": "def " * (number % 5 + 1)})
    return [*messages, {"role": "user", "content": "last"}]


async def test_the_oldest_turns_are_left_out_in_a_few_renders(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = long_talk(150)
    params = replace(GREEDY, max_tokens=50)
    with pytest.raises(ContextLengthError):
        await engine.prepare(messages, params)
    rendered = count_renders(engine, monkeypatch)
    prepared = await engine.prepare(messages, params, truncation=Truncation())
    assert len(rendered) <= 6  # a bisection needs 10
    omitted = prepared.num_omitted_messages
    assert omitted % 2 == 0
    assert list(prepared.messages) == [messages[0], *messages[1 + omitted :]]
    assert prepared.num_prompt_tokens == len(await prompt_ids(engine, list(prepared.messages))) <= 512 - 50
    # Three quarters of what fits, and not one turn less than that.
    shortest = (await engine.prepare([messages[0], messages[-1]])).num_prompt_tokens
    kept = shortest + 3 * (512 - 50 - shortest) // 4
    assert prepared.num_prompt_tokens <= kept
    with_one_more = [messages[0], *messages[1 + omitted - 2 :]]
    assert (await engine.prepare(with_one_more)).num_prompt_tokens > kept
    # The next turn starts from there, and needs no search.
    rendered.clear()
    later = await engine.prepare([*messages, *long_talk(0)[1:]], params, truncation=Truncation(omitted))
    assert later.num_omitted_messages == omitted
    assert len(rendered) <= 2  # the second has no old turns
    assert await read(engine.stream(prepared)) == await read(engine.chat(list(prepared.messages), params))


async def test_what_is_too_long_without_all_old_turns_is_refused(engine: Engine) -> None:
    messages: list[ChatMessage] = [*long_talk(3)[:-1], {"role": "user", "content": "word " * 600}]
    with pytest.raises(ContextLengthError) as alone:
        await engine.prepare([messages[0], messages[-1]])
    with pytest.raises(ContextLengthError) as truncated:
        await engine.prepare(messages, truncation=Truncation())
    assert truncated.value.prompt_tokens == alone.value.prompt_tokens
