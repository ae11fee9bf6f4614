"""A model that wants to cite what it was not given, and documents that hold a model's control tokens: a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.domain.citations import citation_pattern, cited_numbers
from app.templates.files import read_sources_prompt
from app.turns.admission import caller_of
from engine import Engine, EngineSettings, SamplingParams, StructuredOutput, StructureKind
from testing.injections import INJECTIONS
from testing.knowledge import passage
from testing.models import make_model


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    model = make_model(tmp_path / "model", "qwen2", eos=False, max_position_embeddings=4096)
    async with Engine(EngineSettings(model=str(model), dtype="float32", native=False)) as started:
        yield started


async def reply(engine: Engine, params: SamplingParams) -> str:
    messages = [{"role": "user", "content": "Hi"}]
    return "".join([delta.text async for delta in engine.chat(messages, params)])  # type: ignore[arg-type]


async def test_a_model_that_wants_to_cite_another_source_cannot(engine: Engine) -> None:
    """Its bias towards brackets and digits is far above all its scores."""
    tokens = await engine.tokenize("[9]29", add_special_tokens=False)
    params = SamplingParams(
        max_tokens=120, temperature=1, seed=3, ignore_eos=True, logit_bias=dict.fromkeys(tokens, 60.0)
    )
    assert cited_numbers(await reply(engine, params)) - {1, 2}
    form = StructuredOutput(StructureKind.REGEX, citation_pattern(2))
    text = await reply(engine, replace(params, structured=form))
    assert cited_numbers(text) == {2}
    assert "9" in text


async def test_control_tokens_in_a_document_are_text(engine: Engine) -> None:
    async def special(content: str) -> int:
        tokens = await engine.tokenize([{"role": "user", "content": content}])
        named = [await engine.token_strings([token]) for token in set(tokens)]
        control = {token for token, [name] in zip(set(tokens), named, strict=True) if name.startswith("<|")}
        return sum(token in control for token in tokens)

    prompt = read_sources_prompt()
    plain = await special(prompt.with_sources([passage("Nothing.")], "Hi"))
    assert plain > 0
    for injection in INJECTIONS:
        assert await special(prompt.with_sources([passage(injection, title=injection)], "Hi")) == plain


async def test_what_one_user_was_given_is_not_in_the_cache_for_another(engine: Engine) -> None:
    """Neither in the count of cached tokens nor in the time: the same sources are read anew for each user."""
    prompt = read_sources_prompt().with_sources([passage("The code of the vault is 4711. " * 20)], "What is the code?")

    async def cached(user: str) -> int | None:
        messages = [{"role": "system", "content": "Be brief.", "shared": True}, {"role": "user", "content": prompt}]
        caller = caller_of(user, accounts=True)
        async for delta in engine.chat(messages, SamplingParams(max_tokens=1), caller=caller):  # type: ignore[arg-type]
            if delta.cached_prompt_tokens is not None:
                return delta.cached_prompt_tokens
        raise AssertionError("no tokens")

    alone = await engine.tokenize([{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}])
    assert await cached("ada") == 0
    again = await cached("ada")
    assert again is not None
    assert again > len(alone)
    theirs = await cached("bob")
    assert theirs is not None
    assert theirs <= len(alone)
