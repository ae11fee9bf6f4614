"""Conversations longer than the model's context: what is left out, when, and what is said about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.views import MessageView
from app.errors import ContextTooLong
from app.services.container import Services
from app.settings import AppSettings
from app.turns.live import TurnRef
from engine import ChatMessage, Engine, EngineSettings, PreparedPrompt, SamplingParams
from testing.fake_engine import FakeEngine
from testing.models import make_model
from testing.tokenizers import byte_level_tokenizer

WORDS = 9  #: of a message and of a reply below; the fake engine counts one more for each


async def ask(services: Services, after: TurnRef | None, text: str, **options: object) -> TurnRef:
    conversation_id = after.conversation_id if after else None
    ref = await services.turns.start(ME, text=text, conversation_id=conversation_id, **options)  # type: ignore[arg-type]
    async for _ in services.turns.events(ME, ref.turn_id):
        pass
    return ref


async def reply_of(services: Services, ref: TurnRef) -> MessageView:
    return await services.conversations.get_message(ME, ref.message_id)


@pytest.fixture
def engine() -> FakeEngine:
    fake = FakeEngine(max_model_len=200)
    fake.default.pieces = ["word "] * WORDS
    return fake


async def talk(services: Services, turns: int, **options: object) -> list[TurnRef]:
    refs: list[TurnRef] = []
    for number in range(turns):
        text = " ".join([f"{number}", *["word"] * (WORDS - 1)])
        refs.append(await ask(services, refs[-1] if refs else None, text, **options))
    return refs


async def test_a_talk_goes_on_beyond_the_context_and_says_so(services: Services, engine: FakeEngine) -> None:
    refs = await talk(services, 30, settings=ChatSettings(system_prompt="Be kind.", max_tokens=40))
    starts = []
    for ref, (messages, _) in zip(refs, engine.calls, strict=True):
        assert messages[0] == {"role": "system", "content": "Be kind."}
        assert [message["role"] for message in messages[1:]] == ["user", "assistant"] * (len(messages) // 2 - 1) + [
            "user"
        ]
        assert sum(len(message["content"].split()) + 1 for message in messages) <= 200 - 40
        starts.append(int(messages[1]["content"].split()[0]))
        reply = await reply_of(services, ref)
        assert reply.omitted_messages == ref.omitted_messages == 2 * starts[-1]
        assert reply.context_length == ref.context_length == 200
        assert reply.has_system_prompt
        assert ref.has_system_prompt
    assert starts[0] == 0
    assert starts == sorted(starts)
    # In steps: seven turns fit, then three are left out at once.
    assert len(set(starts)) <= 9
    view = await services.conversations.get(ME, refs[0].conversation_id)
    assert len(view.messages) == 60, "nothing is taken from the conversation itself"


async def test_another_start_of_the_server_goes_on_where_it_was(services: Services, engine: FakeEngine) -> None:
    refs = await talk(services, 10)
    assert refs[-1].omitted_messages > 0
    engine.calls.clear()
    await ask(services, refs[-1], "next")
    assert engine.calls[0][0][0]["content"].startswith(f"{refs[-1].omitted_messages // 2} ")


async def test_turns_come_back_once_a_long_system_prompt_is_gone(services: Services, engine: FakeEngine) -> None:
    long = ChatSettings(system_prompt="word " * 100, max_tokens=40)
    refs = await talk(services, 6, settings=long)
    assert refs[-1].omitted_messages > 0
    after = await ask(services, refs[-1], "and now?", settings=ChatSettings(max_tokens=40))
    assert after.omitted_messages == 0
    assert len(engine.calls[-1][0]) == 13


async def test_a_branch_from_before_is_whole(services: Services, engine: FakeEngine) -> None:
    refs = await talk(services, 12)
    branch = await ask(services, refs[-1], "once more", parent_id=refs[2].message_id)
    assert branch.omitted_messages == 0
    assert len(engine.calls[-1][0]) == 7


async def test_a_model_that_reads_more_is_sent_all_of_it(services: Services, engine: FakeEngine) -> None:
    refs = await talk(services, 12)
    assert refs[-1].omitted_messages > 0
    engine.resize(4000)
    after = await ask(services, refs[-1], "and now?")
    assert (after.omitted_messages, after.context_length) == (0, 4000)
    assert len(engine.calls[-1][0]) == 25


async def test_a_message_that_leaves_room_for_a_few_words_is_sent_alone(services: Services, engine: FakeEngine) -> None:
    first = await ask(services, None, "hi")
    ref = await ask(services, first, "word " * 190)
    assert ref.omitted_messages == 2
    assert len(engine.calls[-1][0]) == 1


@pytest.mark.parametrize(
    ("system", "message", "says"),
    [
        ("", 200, r"^This message is 201 tokens long; the model reads at most 200, its reply included\. Shorten it\.$"),
        ("word " * 100, 100, r"^With the system prompt, this message is 202 tokens .* 200.*Shorten it\.$"),
        ("word " * 200, 1, r"^The system prompt alone is 203 tokens .* 200.*Shorten it in the settings"),
    ],
)
@pytest.mark.parametrize("turns", [0, 3])
async def test_what_does_not_fit_alone_is_refused_by_name(
    services: Services, engine: FakeEngine, turns: int, system: str, message: int, says: str
) -> None:
    refs = await talk(services, turns)
    with pytest.raises(ContextTooLong, match=says):
        await ask(services, refs[-1] if refs else None, "word " * message, settings=ChatSettings(system_prompt=system))
    assert len(engine.calls) == turns


async def test_a_policy_of_refusing_says_what_to_do(settings: AppSettings, engine: FakeEngine) -> None:
    services = await Services.open(settings.model_copy(update={"context_policy": "refuse"}), engine)
    try:
        first = await ask(services, None, "word " * 180)
        with pytest.raises(ContextTooLong, match=r"With the conversation so far.* 2\d\d tokens.*200.*start a new chat"):
            await ask(services, first, "word " * 20)
        assert len((await services.conversations.get(ME, first.conversation_id)).messages) == 2
    finally:
        await services.close()


class Legible(Engine):
    """Writes what can be stored: whole characters, which a random model's bytes rarely are, and none of them NUL."""

    async def prepare(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None = None, **options: Any
    ) -> PreparedPrompt:
        tokenizer = byte_level_tokenizer()
        illegible = {token for token in range(len(tokenizer)) if {"\ufffd", "\0"} & set(tokenizer.decode([token]))}
        bias = dict.fromkeys(illegible.union(tokenizer.all_special_ids), -100.0)
        return await super().prepare(messages, replace(params or SamplingParams(), logit_bias=bias), **options)


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[tuple[Services, Engine]]:
    """A random model with a short context, and small blocks."""
    model = make_model(tmp_path / "model", "qwen2", eos=[1_000_000], max_position_embeddings=512)
    engine = Legible(EngineSettings(model=str(model), kv_block_size=4, num_kv_blocks=400, _env_file=None))
    async with engine:
        services = await Services.open(AppSettings(data_dir=tmp_path / "data", _env_file=None), engine)
        yield services, engine
        await services.close()


@pytest.mark.slow
async def test_most_turns_of_a_long_talk_find_the_last_one_in_the_cache(real: tuple[Services, Engine]) -> None:
    services, _ = real
    settings = ChatSettings(temperature=1.0, seed=5, max_tokens=20, system_prompt="Be kind.")
    ref: TurnRef | None = None
    steps, previous = 0, 0
    for number in range(24):
        last = await reply_of(services, ref) if ref else None
        ref = await ask(services, ref, f"Question {number}, please.", settings=settings)
        reply = await reply_of(services, ref)
        assert reply.stats is not None
        assert reply.stats.finish_reason == "length"
        assert reply.stats.prompt_tokens <= 512 - 20
        if last is None or last.stats is None:
            continue
        if ref.omitted_messages != previous:
            previous = ref.omitted_messages
            steps += 1
            continue
        # The last prompt with its reply, in whole blocks; nothing was computed of the last token sampled.
        computed = last.stats.prompt_tokens + last.stats.completion_tokens - 1
        assert reply.stats.cached_prompt_tokens is not None
        assert reply.stats.cached_prompt_tokens >= computed // 4 * 4
    assert 1 <= steps <= 8


async def test_the_end_of_the_context_in_mid_reply_is_its_length(real: tuple[Services, Engine]) -> None:
    services, _ = real
    ref = await ask(services, None, "Talk!", settings=ChatSettings(temperature=1.0, seed=5))
    reply = await reply_of(services, ref)
    assert reply.stats is not None
    assert reply.stats.finish_reason == "length"
    assert reply.stats.prompt_tokens + reply.stats.completion_tokens == reply.context_length == 512
    # And the talk goes on: that reply has no room beside a new one, so it is left out.
    after = await ask(services, ref, "And?", settings=ChatSettings(max_tokens=5))
    assert after.omitted_messages == 2
