"""Any reply that a tool call's grammar accepts is read back as that call."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import numpy as np
import pytest

from engine.chat_options import Tool
from engine.text.reply_formats.catalogue import CALLS
from engine.text.reply_formats.detection import named_reply_format
from engine.text.reply_formats.grammar import is_constrainable, write_grammar
from engine.text.reply_formats.parser import ReplyParser, ReplyParts

TOOLS = (
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    Tool("now"),
)
FORMATS = [name for name in CALLS if is_constrainable(named_reply_format(name))]
ENDS = [CALLS[name].value.close for name in FORMATS if CALLS[name].value.close]
_VOCABULARY = 300  # bytes, then special tokens


class Words:
    """A vocabulary of bytes and of special tokens, as llguidance reads it."""

    eos_token_id, bos_token_id, unk_token_id = 256, None, None

    def __init__(self, special: dict[int, str]) -> None:
        names = [special.get(token, f"<unused{token}>").encode() for token in range(257, _VOCABULARY)]
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>", *names]
        self.special_token_ids = list(range(256, _VOCABULARY))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def sample(grammar: str, special: dict[int, str], seed: int) -> str:
    """Returns a random reply that the grammar accepts."""
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words(special)), n_vocab=_VOCABULARY)
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    noise = random.Random(seed)
    reply: list[int] = []
    for _ in range(2000):
        assert not matcher.get_error()
        if matcher.is_accepting() and (noise.random() < 0.3 or matcher.is_stopped()):
            break
        end = list(noise.choice(ENDS).encode())  # a text without a limit rarely ends by chance
        if noise.random() < 0.1 and matcher.validate_tokens(end) == len(end):
            assert matcher.consume_tokens(end)
            reply += end
            continue
        allowed = np.frombuffer(matcher.compute_logit_bias(), dtype=np.uint8)[:_VOCABULARY].nonzero()[0]
        likely = [int(token) for token in allowed if token != 256]
        closing = [token for token in likely if token > 256 or chr(token) in '"}<>/,: \n']
        printable = [token for token in likely if token > 256 or 32 <= token < 127]
        token = noise.choice((closing if noise.random() < 0.5 else printable) or printable or likely)
        assert matcher.consume_token(token)
        reply.append(token)
    else:
        pytest.skip("the random reply has no end")
    return b"".join(special[token].encode() if token > 256 else bytes([token]) for token in reply).decode()


def parse(name: str, reply: str, *, is_thinking: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    parser = ReplyParser(named_reply_format(name), is_thinking=is_thinking, tools=schemas)
    parts: list[ReplyParts] = [parser.push(reply), parser.finish()]
    calls: dict[int, tuple[str, str]] = {}
    for delta in (delta for part in parts for delta in part.tool_calls):
        called, arguments = calls.get(delta.index, (delta.name or "", ""))
        calls[delta.index] = (called, arguments + delta.arguments)
    text = "".join(part.text for part in parts)
    return text, [(called, json.loads(arguments)) for called, arguments in calls.values()]


def special_tokens(name: str) -> dict[int, str]:
    """Returns the format's tags as special tokens, where its models have such tokens."""
    markers = [text for text in CALLS[name].markers if text.startswith(("<｜", "[", "<|"))]
    return dict(enumerate(dict.fromkeys(markers), start=257))


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_is_read_back(name: str, has_special_tokens: bool) -> None:
    special = special_tokens(name) if has_special_tokens else {}
    for seed, is_parallel in enumerate([True, False] * 6):
        grammar = write_grammar(
            named_reply_format(name),
            TOOLS,
            special,
            is_thinking=False,
            is_required=True,
            is_parallel=is_parallel,
        )
        reply = sample(grammar, special, seed)
        text, calls = parse(name, reply)
        assert text == "", reply
        assert calls, reply
        assert is_parallel or len(calls) == 1
        for called, arguments in calls:
            assert called in {tool.name for tool in TOOLS}
            assert isinstance(arguments, dict)
            if called == "get_weather":
                assert isinstance(arguments["city"], str)
                assert arguments.get("unit") in (None, "C", "F")
                assert isinstance(arguments.get("days", 0), int)


@pytest.mark.parametrize("is_thinking", [True, False])
def test_thinking_comes_before_a_required_call(is_thinking: bool) -> None:
    grammar = write_grammar(
        named_reply_format("think+hermes"), TOOLS[1:], {}, is_thinking=is_thinking, is_required=True, is_parallel=False
    )
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words({})), n_vocab=_VOCABULARY)
    reply = f"{'' if is_thinking else '<think>'}hm <b></think>\n\n{call}".encode()
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert matcher.try_consume_tokens(list(reply)) == len(reply)
    assert matcher.is_accepting()
    assert parse("think+hermes", reply.decode(), is_thinking=is_thinking) == ("", [("now", {})])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "deepseek_v31", "mistral"])
def test_a_strict_tool_leaves_the_answer_free_and_holds_calls(name: str) -> None:
    special = special_tokens(name)
    grammar = write_grammar(
        named_reply_format(name), TOOLS, special, is_thinking=False, is_required=False, is_parallel=True
    )
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words(special)), n_vocab=_VOCABULARY)
    free = b"Any text, <b> and {}."
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert matcher.try_consume_tokens(list(free)) == len(free)
    assert matcher.is_accepting()
    opening = CALLS[name].section.open or CALLS[name].tags.open
    ids = {text: token for token, text in special.items()}
    assert matcher.try_consume_tokens([ids[opening]] if opening in ids else list(opening.encode()))
    assert not matcher.is_accepting()
    assert matcher.try_consume_tokens(list(b"\nnonsense")) < len(b"\nnonsense")
