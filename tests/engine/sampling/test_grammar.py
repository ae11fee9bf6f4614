"""Replies that are held to a form: each token is one that the form allows, and what cannot be a form is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from engine import (
    ChatMessage,
    Engine,
    EngineSettings,
    FinishReason,
    InvalidRequestError,
    SamplingParams,
    StructuredOutput,
    StructureKind,
)
from engine.sampling.grammar_compiler import MAX_CACHED, GrammarCompiler
from engine.sampling.ll_tokenizer import make_ll_tokenizer
from engine.text.vocabulary import Vocabulary
from testing.models import make_model
from testing.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

GUIDE = Path(__file__).parents[3] / "models" / "guide"
QUESTION: list[ChatMessage] = [{"role": "user", "content": "What is a token?"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 48}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(value: Any) -> StructuredOutput:
    return StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(value))


def pattern(text: str) -> StructuredOutput:
    return StructuredOutput(StructureKind.REGEX, text)


def compiler_of(tokenizer: PreTrainedTokenizerBase, size: int, eos: int) -> GrammarCompiler:
    vocabulary = Vocabulary(tokenizer, size)

    def encode(text: str) -> list[int]:
        return [int(one) for one in tokenizer(text, add_special_tokens=False)["input_ids"]]

    return GrammarCompiler(
        lambda: make_ll_tokenizer(
            [vocabulary.spelling(one) for one in range(size)],
            [one for one in range(size) if vocabulary.is_special(one)],
            [eos],
            encode,
        ),
        size,
    )


@cache
def guide_compiler() -> GrammarCompiler:
    tokenizer = AutoTokenizer.from_pretrained(GUIDE)
    return compiler_of(tokenizer, len(tokenizer), tokenizer.eos_token_id)


@pytest.fixture(params=["off", "prompt-lookup"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    config = EngineSettings(model=str(GUIDE), device="cpu", dtype="float32", speculation=request.param)
    async with Engine(config) as running:
        yield running


async def reply(
    engine: Engine, structure: StructuredOutput | None, messages: list[ChatMessage] = QUESTION, **changed: Any
) -> tuple[str, list[int], FinishReason | None]:
    params = SamplingParams(structured=structure, **(GREEDY | changed))
    text, token_ids, reason = "", list[int](), None
    async for delta in engine.chat(messages, params):
        text += delta.text
        token_ids += delta.token_ids
        reason = delta.finish_reason or reason
    return text, token_ids, reason


def by_brute_force(prompt: list[int], allows: Callable[[str], bool], ends: Callable[[str], bool], limit: int) -> str:
    """Returns transformers' greedy reply where each token of the vocabulary is tried against the form."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(GUIDE, dtype=torch.float32),
        AutoTokenizer.from_pretrained(GUIDE),
    )
    vocabulary, text = Vocabulary(tokenizer, model.config.vocab_size), ""
    for _ in range(limit):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        for token in logits.argsort(descending=True).tolist():
            if token == tokenizer.eos_token_id and ends(text):
                return text
            piece = vocabulary.data(token).decode(errors="replace")
            if piece and allows(text + piece):
                break
        prompt, text = [*prompt, token], text + piece
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["[A-Z][a-z]+( [a-z]+){2,5}[.]", "(yes|no|perhaps)( [a-z]{3,9}){1,4}", "[0-9a-f]{6,40}"]
)
async def test_a_greedy_reply_is_that_of_trying_every_token(engine: Engine, form: str) -> None:
    compiled = regex.compile(form)
    prompt = list(await engine.tokenize(QUESTION))
    expected = by_brute_force(
        prompt,
        lambda text: compiled.fullmatch(text, partial=True) is not None,
        lambda text: compiled.fullmatch(text) is not None,
        GREEDY["max_tokens"],
    )
    text, _ids, _reason = await reply(engine, pattern(form))
    assert text == expected


async def test_each_kind_of_form_is_kept(engine: Engine) -> None:
    forms: list[tuple[StructuredOutput, Callable[[str], object]]] = [
        (schema(PERSON), lambda text: json.loads(text).keys() == {"name", "age"}),
        (pattern("[a-z]{3}-[0-9]{2}"), lambda text: regex.fullmatch("[a-z]{3}-[0-9]{2}", text)),
        (StructuredOutput(StructureKind.CHOICE, '["red", "green"]'), lambda text: text in ("red", "green")),
        (
            StructuredOutput(StructureKind.GRAMMAR, 'start: "<" /[a-z]{4}/ ">"'),
            lambda text: regex.fullmatch("<[a-z]{4}>", text),
        ),
        (StructuredOutput(StructureKind.GRAMMAR, 'root ::= "a" | "b" root'), lambda text: regex.fullmatch("b*a", text)),
    ]
    for structure, is_kept in forms:
        text, _ids, reason = await reply(engine, structure, temperature=1.0, seed=1)
        assert is_kept(text), (structure, text)
        assert reason is FinishReason.STOP


async def test_the_end_of_the_form_ends_the_reply_and_its_maximum_length_says_so(engine: Engine) -> None:
    """It ends without a token for the end, also where a reply would go on or should be longer."""
    structure = pattern("[a-z]{6}")
    for changed in ({}, {"ignore_eos": True}, {"min_tokens": 40}):
        text, _ids, reason = await reply(engine, structure, **changed)
        assert regex.fullmatch("[a-z]{6}", text)
        assert reason is FinishReason.STOP
    text, ids, reason = await reply(engine, pattern("[a-z]{300}"), max_tokens=5)
    assert (len(ids), reason) == (5, FinishReason.LENGTH)


async def test_a_form_holds_only_its_own_reply(engine: Engine) -> None:
    """Replies beside it, in the same steps, are what they are alone; so are the replies to one prompt."""
    free, _ids, _reason = await reply(engine, None)
    params = SamplingParams(structured=schema(PERSON), n=3, seed=5, temperature=1.0, max_tokens=48)
    texts = dict.fromkeys(range(3), "")

    async def forked() -> None:
        async for delta in engine.chat(QUESTION, params):
            texts[delta.index] += delta.text

    beside, _ = await asyncio.gather(reply(engine, None), forked())
    assert beside[0] == free
    assert all(json.loads(text).keys() == {"name", "age"} for text in texts.values())


async def test_a_cut_reply_goes_on_within_its_form(engine: Engine) -> None:
    structure = schema(PERSON)
    whole, ids, _reason = await reply(engine, structure)
    for cut in range(1, len(ids), 3):
        begun, begun_ids, _ = await reply(engine, structure, max_tokens=cut)
        if not begun:
            continue
        unfinished: ChatMessage = {
            "role": "assistant",
            "content": begun,
            "token_ids": await engine.reply_tokens(begun, begun_ids),
            "unfinished": True,
        }
        rest, _ids, reason = await reply(engine, structure, [*QUESTION, unfinished])
        assert begun + rest == whole
        assert reason is FinishReason.STOP
    other: ChatMessage = {"role": "assistant", "content": "Not an object", "unfinished": True}
    with pytest.raises(InvalidRequestError, match="does not allow the unfinished reply"):
        await reply(engine, structure, [*QUESTION, other])


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        (StructuredOutput(StructureKind.JSON_SCHEMA, "{"), "it is not JSON"),
        (StructuredOutput(StructureKind.JSON_SCHEMA, "[]"), "a schema is an object"),
        (
            StructuredOutput(StructureKind.JSON_SCHEMA, '{"not":' * 1000 + "{}" + "}" * 1000),
            "1,000 levels|1,001 levels",
        ),
        (schema({"type": "strin"}), "strin"),
        (schema(False), "no text can match it"),
        (schema({"$ref": "#"}), "no text can match it"),
        (schema({"$ref": "#/nowhere"}), "/nowhere"),
        (schema({"type": "string", "minLength": 5, "maxLength": 3}), "minLength"),
        (schema({"if": {}, "then": {}}), r'not supported: "if", "then"\.'),
        (schema({"oneOf": [{"type": "integer"}, {"minimum": 2}]}), 'use "anyOf"'),
        (StructuredOutput(StructureKind.JSON_SCHEMA, f'{{"const": {2**64}}}'), "18446744073709551616 does not fit"),
        (StructuredOutput(StructureKind.JSON_SCHEMA, '{"const": ' + "9" * 5000 + "}"), "9{24} does not fit"),
        (StructuredOutput(StructureKind.JSON_SCHEMA, '{"const": 1e400}'), "1e400 is too large"),
        (StructuredOutput(StructureKind.JSON_SCHEMA, '{"const": NaN}'), "NaN is no number"),
        (StructuredOutput(StructureKind.JSON_SCHEMA, r'{"const": "\ud800"}'), "surrogate"),
        (StructuredOutput(StructureKind.CHOICE, r'["\ud800"]'), "surrogate"),
        (pattern("\ud800"), "surrogate"),
        (StructuredOutput(StructureKind.GRAMMAR, 'start: "\ud800"'), "surrogate"),
        (StructuredOutput(StructureKind.JSON_OBJECT, "", "\ud800"), "surrogate"),
        (schema({"enum": ["x" * 10] * 100_000}), "at most 262,144"),
        (schema(PERSON | {"properties": {"name": {"$ref": "#"}}, "required": ["name"]}), "too large to follow"),
        (pattern("(a"), "malformed"),
        (pattern("a" * 20_000), "at most 16,384"),
        (pattern("(a?){9999}a{9999}"), "too large to follow"),
        (StructuredOutput(StructureKind.CHOICE, "[]"), "one or more texts"),
        (StructuredOutput(StructureKind.GRAMMAR, "start: foo"), "foo"),
        (StructuredOutput(StructureKind.GRAMMAR, "root ::= foo"), "foo"),
        (StructuredOutput(StructureKind.GRAMMAR, 'start: %json {"not": {}}'), r'not supported: "not"\.'),
        (StructuredOutput(StructureKind.STRUCTURAL_TAG, "{"), "it is not JSON"),
        (StructuredOutput(StructureKind.STRUCTURAL_TAG, "{}"), 'needs "format"'),
    ],
)
def test_what_cannot_be_a_form_is_refused_in_a_sentence(structure: StructuredOutput, reason: str) -> None:
    for _ in range(2):  # compiled, and from the cache
        with pytest.raises(InvalidRequestError, match=reason) as caught:
            guide_compiler().compile(structure)
        assert "cannot be used" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 450


def test_equal_structures_share_a_grammar_and_the_cache_has_a_bound() -> None:
    compiler = compiler_of(byte_level_tokenizer(), len(byte_level_tokenizer()), 0)
    first = compiler.compile(pattern("a+"))
    assert compiler.compile(pattern("a+")) is first
    for number in range(MAX_CACHED):
        compiler.compile(pattern(f"b{{{number + 1}}}"))
    assert compiler.compile(pattern("a+")) is not first


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("extra", [-3, 0, 40])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_walk_through_a_grammar_writes_a_text_of_the_form(
    make: Callable[[], PreTrainedTokenizerBase], extra: int, data: st.DataObject
) -> None:
    """With a model that has fewer tokens than its tokenizer, or more; also where tokens are dropped on the way."""
    tokenizer = make()
    size = len(tokenizer) + extra
    eos = next(one for one in range(size) if tokenizer.eos_token_id in (one, None) or extra < 0)
    vocabulary = Vocabulary(tokenizer, size)
    compiled = regex.compile("[a-c]{1,6}( [a-c]+)?")
    matcher = compiler_of(tokenizer, size, eos).compile(pattern(compiled.pattern)).start("one")
    token_ids = [0, 0]
    for _ in range(12):
        banned = set(matcher.banned(token_ids, 2).tolist())
        allowed = [one for one in range(size) if one not in banned]
        text = b"".join(map(vocabulary.data, token_ids[2:])).decode()
        assert (eos in allowed) == (compiled.fullmatch(text) is not None)
        if not [one for one in allowed if one != eos]:
            assert matcher.is_complete(token_ids, 2)
            break
        token = data.draw(st.sampled_from([one for one in allowed if one != eos]))
        assert compiled.fullmatch(text + vocabulary.data(token).decode(), partial=True)
        token_ids.append(token)
        if len(token_ids) > 4 and data.draw(st.booleans()):
            del token_ids[-2:]


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("text", ['"yes, sir"', " a  b", "été — 日本"])
def test_a_form_whose_text_is_dictated_compiles_also_for_a_tokenizer_that_adds_a_space(
    make: Callable[[], PreTrainedTokenizerBase], text: str
) -> None:
    tokenizer = make()
    structure = StructuredOutput(StructureKind.CHOICE, json.dumps([f"{text}1", f"{text}2"]))
    matcher = compiler_of(tokenizer, len(tokenizer), 1).compile(structure).start("one")
    assert 0 < len(matcher.banned([0], 1)) < len(tokenizer)


async def test_a_model_that_knows_no_end_ends_with_its_form(tmp_path: Path) -> None:
    model = make_model(tmp_path / "endless", eos=False)
    structure = schema({"enum": ["yes", "no"]})
    async with Engine(EngineSettings(_env_file=None, model=str(model), dtype="float32")) as engine:
        params = SamplingParams(max_tokens=20, structured=structure)
        deltas = [delta async for delta in engine.chat(QUESTION, params)]
    assert json.loads("".join(delta.text for delta in deltas)) in ("yes", "no")
    assert deltas[-1].finish_reason is FinishReason.STOP
