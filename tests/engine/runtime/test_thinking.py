"""A reply's thinking, its budget and its stop strings, through the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import (
    ChatOptions,
    Delta,
    Engine,
    EngineSettings,
    FinishReason,
    SamplingParams,
    StructuredOutput,
    StructureKind,
)
from engine.interface import ChatMessage
from testing.models import make_model

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
MESSAGES: list[ChatMessage] = [{"role": "user", "content": "How do I make the answers less random?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_model(tmp_path_factory.mktemp("thinking"), eos=False)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    async with Engine(EngineSettings(model=str(model), dtype="float32", num_kv_blocks=64)) as engine:
        yield engine


async def chat(engine: Engine, params: SamplingParams, options: ChatOptions) -> tuple[str, str, Delta]:
    deltas = [delta async for delta in engine.chat(MESSAGES, params, options=options)]
    text, reasoning = ("".join(getattr(delta, name) for delta in deltas) for name in ("text", "reasoning"))
    return text, reasoning, deltas[-1]


async def test_thinking_that_the_prompt_opened_is_reasoning(engine: Engine) -> None:
    whole, nothing, _ = await chat(engine, GREEDY, ChatOptions(parse_reply=False))
    text, reasoning, _ = await chat(engine, GREEDY, ChatOptions())
    assert nothing == text == ""
    assert reasoning == whole.strip() != ""


@pytest.mark.parametrize("budget", [0, 7])
async def test_a_budget_closes_the_thinking(engine: Engine, budget: int) -> None:
    free, _, _ = await chat(engine, GREEDY, ChatOptions(parse_reply=False))
    text, reasoning, _ = await chat(engine, GREEDY, ChatOptions(max_thinking_tokens=budget))
    assert text
    assert "think>" not in text
    assert free.strip().startswith(reasoning)
    assert (budget == 0) == (reasoning == "")
    assert (text, reasoning) == (await chat(engine, GREEDY, ChatOptions(max_thinking_tokens=budget)))[:2]


async def test_stop_strings_and_forbidden_words_act_on_the_answer_alone(engine: Engine) -> None:
    _, reasoning, _ = await chat(engine, GREEDY, ChatOptions())
    middle = reasoning[len(reasoning) // 2 :][:4]
    params = SamplingParams(temperature=0, max_tokens=40, stop=(middle,))
    assert (await chat(engine, params, ChatOptions()))[1] == reasoning
    _, stopped, last = await chat(engine, params, ChatOptions(stop_in_reasoning=True))
    assert last.stop_reason == middle
    assert stopped == reasoning[: reasoning.index(middle)].strip()
    words = SamplingParams(temperature=0, max_tokens=40, forbidden_words=tuple(reasoning.split()[:8]))
    assert (await chat(engine, words, ChatOptions()))[1] == reasoning


async def test_thinking_goes_on_where_a_reply_was_stopped(engine: Engine) -> None:
    _, reasoning, _ = await chat(engine, GREEDY, ChatOptions())
    begun = reasoning[: len(reasoning) // 2].strip()
    partial: ChatMessage = {"role": "assistant", "content": "", "reasoning": begun, "unfinished": True}
    deltas = [delta async for delta in engine.chat([*MESSAGES, partial], GREEDY)]
    assert "".join(delta.text for delta in deltas) == ""
    assert "".join(delta.reasoning for delta in deltas)
    answer: ChatMessage = {"role": "assistant", "content": "Lower", "reasoning": begun, "unfinished": True}
    deltas = [delta async for delta in engine.chat([*MESSAGES, answer], GREEDY)]
    assert "".join(delta.text for delta in deltas)
    assert "".join(delta.reasoning for delta in deltas) == ""


#: Knows the tags, and leaves it to the model to open them; ``shut`` closes the thinking before it begins.
SELF_OPENED = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if shut %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
YES_OR_NO = StructuredOutput(StructureKind.JSON_SCHEMA, '{"enum": ["yes", "no"]}')


@pytest.fixture(scope="module")
def self_opening(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_model(tmp_path_factory.mktemp("thinking") / "self", "qwen3")
    (path / "chat_template.jinja").write_text(SELF_OPENED)
    return path


@pytest.mark.parametrize(
    ("options", "thinks"),
    [
        (ChatOptions(max_thinking_tokens=6), True),
        (ChatOptions(max_thinking_tokens=0), False),
        (ChatOptions(thinking=False), False),
        (ChatOptions(reasoning_effort="none"), False),
        (ChatOptions(template_kwargs={"shut": True}), False),
    ],
)
async def test_a_model_that_opens_thinking_itself_may_think_before_a_form(
    self_opening: Path, options: ChatOptions, thinks: bool
) -> None:
    async with Engine(EngineSettings(_env_file=None, model=str(self_opening), dtype="float32")) as engine:
        (opening,) = await engine.tokenize("<", add_special_tokens=False)
        for seed in range(3):
            # Wherever the form leaves a choice, the model likes to open thinking.
            params = SamplingParams(
                seed=seed, temperature=1.5, max_tokens=60, structured=YES_OR_NO, logit_bias={opening: 100.0}
            )
            text, reasoning, last = await chat(engine, params, options)
            assert text in ('"yes"', '"no"')
            assert bool(reasoning) == thinks
            assert last.finish_reason is FinishReason.STOP
        # It need not think.
        params = SamplingParams(temperature=1.5, max_tokens=60, structured=YES_OR_NO, logit_bias={opening: -100.0})
        assert (await chat(engine, params, options))[:2] in (('"yes"', ""), ('"no"', ""))


async def test_thinking_before_a_form_goes_on_where_it_was_stopped(self_opening: Path) -> None:
    async with Engine(EngineSettings(_env_file=None, model=str(self_opening), dtype="float32")) as engine:
        params = SamplingParams(temperature=1.5, seed=1, max_tokens=60, structured=YES_OR_NO)
        options = ChatOptions(max_thinking_tokens=4)
        for partial in (
            ChatMessage(role="assistant", content="", reasoning="Let me", unfinished=True),
            ChatMessage(role="assistant", content='"y', reasoning="Let me see.", unfinished=True),
            ChatMessage(role="assistant", content='"y', unfinished=True),
        ):
            deltas = [delta async for delta in engine.chat([*MESSAGES, partial], params, options=options)]
            text = partial["content"] + "".join(delta.text for delta in deltas)
            assert text in ('"yes"', '"no"'), partial


async def test_a_form_is_the_final_message_of_a_reply_in_channels(self_opening: Path) -> None:
    settings = EngineSettings(_env_file=None, model=str(self_opening), dtype="float32", reply_format="harmony")
    thought = set()
    async with Engine(settings) as engine:
        for seed in range(12):
            params = SamplingParams(seed=seed, temperature=1.5, max_tokens=200, structured=YES_OR_NO)
            text, reasoning, last = await chat(engine, params, ChatOptions(max_thinking_tokens=5))
            assert text in ('"yes"', '"no"')
            assert last.finish_reason is FinishReason.STOP
            thought.add(bool(reasoning))
    assert thought == {True, False}
