"""Replies held to random schemas, under everything that happens to replies: each is one that its schema describes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import ChatMessage, Engine, EngineSettings, FinishReason, SamplingParams, StructuredOutput, StructureKind
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.ll_tokenizer import make_ll_tokenizer
from engine.text.vocabulary import Vocabulary
from testing.grammars import TextJudge, bytes_compiler, random_schema
from testing.models import make_model
from testing.tokenizers import byte_level_tokenizer

MAX_TOKENS = 60
PATTERNS = ("[a-f]{2,20}(, [a-f]{2,9})*", "(yes|no)( because [a-z ]{4,40})?[.]", "[0-9]{3}(-[0-9]{3}){1,4}")


def structure_of(schema: dict[str, Any]) -> StructuredOutput:
    return StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema))


def check(schema: dict[str, Any], text: str | bytes) -> None:
    """Fails unless the text is JSON that the schema describes; numbers count with all their digits."""
    value = json.loads(text, parse_float=Decimal)
    jsonschema.Draft202012Validator(schema).validate(value)


@cache
def byte_grammars() -> GrammarCompiler:
    return bytes_compiler()


@cache
def token_grammars() -> tuple[GrammarCompiler, list[bytes]]:
    """Returns a compiler for a real tokenizer, and its tokens."""
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    ids = range(len(tokenizer))
    special = [one for one in ids if vocabulary.is_special(one)]
    tokens = [vocabulary.spelling(one) for one in ids]
    compiler = GrammarCompiler(
        lambda: make_ll_tokenizer(
            tokens, special, [len(tokens) - 1], lambda text: tokenizer.encode(text, add_special_tokens=False)
        ),
        len(tokens),
    )
    return compiler, tokens


@given(noise=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_walk_through_a_schemas_grammar_writes_what_it_describes(noise: Random) -> None:
    walk(noise)


@pytest.mark.full
@given(noise=st.randoms(use_true_random=False))
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_walks_through_schemas_grammars_write_what_they_describe(noise: Random) -> None:
    walk(noise)


def walk(noise: Random) -> None:
    """Walks by a tokenizer's tokens, some of which are dropped again, as where a reply is put out and comes back."""
    schema = random_schema(noise)
    structure = structure_of(schema)
    compiler, tokens = token_grammars()
    matcher = compiler.compile(structure).start("one")
    judge = TextJudge(byte_grammars(), structure)
    eos = len(tokens) - 1
    token_ids = [0]
    for _ in range(noise.randint(0, 30)):
        if matcher.is_complete(token_ids, 1):
            break
        allowed = set(range(len(tokens))).difference(matcher.banned(token_ids, 1).tolist(), [eos])
        token_ids.append(noise.choice(sorted(allowed)))
        if noise.random() < 0.1:
            del token_ids[noise.randint(1, len(token_ids)) :]
    whole = judge.complete(b"".join(tokens[token] for token in token_ids[1:]), noise)
    assert whole is not None
    check(schema, whole)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen2", "qwen2")


def crowded(model: Path, speculation: str) -> EngineSettings:
    """Returns settings with which replies put each other out of the KV cache."""
    return EngineSettings(
        _env_file=None,
        model=str(model),
        device="cpu",
        dtype="float32",
        max_model_len=220,
        num_kv_blocks=60,
        kv_block_size=4,
        max_num_seqs=8,
        max_batched_tokens=48,
        speculation=speculation,
    )


class Crowd:
    """Sends chats that are held to random schemas and regular expressions, and checks every reply."""

    def __init__(self, engine: Engine, model: Path, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(model)
        self._vocabulary = Vocabulary(tokenizer, self._model.config.vocab_size)
        self._eos = tokenizer.eos_token_id
        self.ends: set[str] = set()

    async def visit(self, visitor: int) -> None:
        """Sends one chat. Every seventh reader leaves, and of the others, every second one asks for greedy replies."""
        noise = Random(f"{self._seed}, {visitor}")
        schema = random_schema(noise) if noise.random() < 0.8 else None
        pattern = StructuredOutput(StructureKind.REGEX, noise.choice(PATTERNS))
        structure = pattern if schema is None else structure_of(schema)
        judge = TextJudge(byte_grammars(), structure)
        # Chats begin alike, so that prompts are found in the cache; and repeat themselves, so that drafts are made.
        question = "Answer as told. " * noise.randint(1, 3) + noise.choice(("Go on: 1, 2, 1, 2, 1", '{"a": {"a": '))
        messages: list[ChatMessage] = [{"role": "user", "content": question}]
        params = SamplingParams(
            structured=structure,
            max_tokens=noise.choice((5, MAX_TOKENS, MAX_TOKENS)),
            temperature=0.0 if visitor % 2 else noise.choice((0.7, 1.5)),
            seed=noise.randint(0, 99),
            n=noise.choice((1, 1, 3)),
        )
        aborted_after = noise.randint(1, 4) if visitor % 7 == 0 else None
        replies = await self._read(messages, params, aborted_after)
        if replies is None:
            self.ends.add("abort")
            return
        for text, token_ids, reason in replies:
            if reason is FinishReason.LENGTH and params.n == 1:
                text, token_ids, reason = await self._continue(messages, params, text, token_ids)
            self._check(schema, judge, text, token_ids, reason, noise)
            if params.temperature == 0 and params.n == 1:
                self.ends.add("greedy")
                prompt = list(await self._engine.tokenize(messages))
                await asyncio.to_thread(self._check_greedy, prompt, judge, token_ids)

    async def _read(
        self, messages: Sequence[ChatMessage], params: SamplingParams, aborted_after: int | None = None
    ) -> list[tuple[str, list[int], FinishReason]] | None:
        """Returns text, token ids and end of each reply; None where the reader leaves after some deltas."""
        texts, ids = [""] * params.n, [list[int]() for _ in range(params.n)]
        reasons: dict[int, FinishReason] = {}
        async with aclosing(self._engine.chat(messages, params)) as deltas:
            num_read = 0
            async for delta in deltas:
                texts[delta.index] += delta.text
                ids[delta.index] += delta.token_ids
                if delta.finish_reason is not None:
                    reasons[delta.index] = delta.finish_reason
                num_read += 1
                if num_read == aborted_after:
                    return None
        return [(texts[index], ids[index], reasons[index]) for index in range(params.n)]

    async def _continue(
        self, messages: Sequence[ChatMessage], params: SamplingParams, text: str, token_ids: list[int]
    ) -> tuple[str, list[int], FinishReason]:
        """Returns a reply that was cut off with what follows it in a second one."""
        kept = await self._engine.reply_tokens(text, token_ids)
        if not text or not kept:
            return text, token_ids, FinishReason.LENGTH
        self.ends.add("continued")
        unfinished: ChatMessage = {"role": "assistant", "content": text, "token_ids": kept, "unfinished": True}
        replies = await self._read([*messages, unfinished], params)
        assert replies is not None
        ((rest, rest_ids, reason),) = replies
        return text + rest, [*kept, *rest_ids], reason

    def _check(
        self,
        schema: dict[str, Any] | None,
        judge: TextJudge,
        text: str,
        token_ids: Sequence[int],
        reason: FinishReason,
        noise: Random,
    ) -> None:
        self.ends.add(reason)
        if reason is FinishReason.STOP:
            assert judge.is_whole(text.encode())
            if schema is not None:
                check(schema, text)
            return
        # Not the text: it may end within a character.
        whole = judge.complete(b"".join(map(self._vocabulary.data, token_ids)), noise)
        assert whole is not None
        if schema is not None:
            check(schema, whole)

    def _check_greedy(self, prompt: list[int], judge: TextJudge, reply: Sequence[int]) -> None:
        """Fails unless each token is the likeliest of those that the structure allows, found by trying each of them.

        Where the structure dictates the next byte, the tokens that usually spell the dictated text are taken.
        """
        written = b""
        for token in [*reply, self._eos]:
            if not judge.is_dictated(written):
                with torch.inference_mode():
                    logits = self._model(torch.tensor([prompt])).logits[0, -1]
                allowed = (
                    one for one in logits.argsort(descending=True).tolist() if self._may_follow(judge, written, one)
                )
                expected = next(allowed)
                if token == self._eos and expected != token:  # the reply was cut off, or nothing may follow it
                    return
                assert token == expected, (written, token, expected)
            prompt, written = [*prompt, token], written + self._vocabulary.data(token)

    def _may_follow(self, judge: TextJudge, written: bytes, token: int) -> bool:
        if token == self._eos:
            return judge.is_whole(written)
        piece = self._vocabulary.data(token)
        return bool(piece) and not self._vocabulary.is_special(token) and judge.allows(written + piece)


async def write_freely(engine: Engine) -> None:
    """Reads a long reply without a form, which takes the others' place in the cache."""
    params = SamplingParams(max_tokens=150, ignore_eos=True, seed=1)
    async for _ in engine.complete(list(range(100, 140)), params):
        pass


async def run_crowd(model: Path, speculation: str, seed: int, visitors: int) -> set[str]:
    """Returns how replies ended, and what else happened."""
    async with Engine(crowded(model, speculation)) as engine:
        crowd = Crowd(engine, model, seed)
        await asyncio.gather(*(crowd.visit(visitor) for visitor in range(visitors)), *map(write_freely, [engine] * 6))
        stats = engine.stats()
        if stats.num_preemptions:
            crowd.ends.add("preemption")
        if stats.cached_prompt_tokens:
            crowd.ends.add("prefix hit")
        assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 0)
    return crowd.ends


EVERYTHING = {"stop", "length", "abort", "continued", "greedy", "preemption", "prefix hit"}


@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
async def test_replies_in_a_crowd_are_what_their_schemas_describe(model: Path, speculation: str) -> None:
    assert await run_crowd(model, speculation, seed=1, visitors=24) >= EVERYTHING


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("speculation", ["off", "prompt-lookup"])
async def test_replies_in_many_crowds_are_what_their_schemas_describe(model: Path, speculation: str, seed: int) -> None:
    assert await run_crowd(model, speculation, seed=seed, visitors=80) >= EVERYTHING
