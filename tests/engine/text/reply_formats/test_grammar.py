"""Any reply that a tool call's grammar accepts is read back as that call."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from engine import StructuredOutput, StructureKind
from engine.chat_options import Tool
from engine.text.reply_formats.catalogue import CALLS, HARMONY_NAME
from engine.text.reply_formats.detection import named_reply_format
from engine.text.reply_formats.grammar import write_grammar
from engine.text.reply_formats.parser import ReplyParser, ReplyParts
from testing.grammars import TextJudge, bytes_compiler, random_schema

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
FORMATS = [*CALLS, HARMONY_NAME]
ENDS = [end for calls in CALLS.values() for end in (calls.value.close, calls.string) if end]
ENDS += ["<|end|>", '"']
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


def sample(grammar: str, special: dict[int, str], seed: int) -> str | None:
    """Returns a random reply that the grammar accepts; None if it finds no end."""
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
        closing = [token for token in likely if token > 256 or chr(token) in '"}])<>/,: \n']
        printable = [token for token in likely if token > 256 or 32 <= token < 127]
        token = noise.choice((closing if noise.random() < 0.5 else printable) or printable or likely)
        assert matcher.consume_token(token)
        reply.append(token)
    else:
        return None
    return b"".join(special[token].encode() if token > 256 else bytes([token]) for token in reply).decode()


def parse(
    name: str, reply: str, *, is_thinking: bool = False, tools: Sequence[Tool] = TOOLS
) -> tuple[str, list[tuple[str, Any]]]:
    schemas = {tool.name: tool.parameters for tool in tools}
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
    texts = named_reply_format(name).markers
    markers = [
        text for text in texts if text.startswith(("<｜", "[", "<|", "<start_", "<end_", "<esc")) or "|>" in text
    ]
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
        assert reply is not None
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


def random_tool(noise: random.Random) -> Tool:
    """Returns a tool whose parameters every format can write."""
    while True:
        schema = random_schema(noise)
        text = json.dumps(schema)
        if schema.get("properties") and "prefixItems" not in text and "pattern" not in text:
            return Tool("f", parameters=json.loads(text.replace("b b", "b_b").replace('q\\"', "q")))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["pythonic", "functiongemma", "gemma4", HARMONY_NAME])
def test_a_random_tools_call_fits_its_schema(name: str, seed: int) -> None:
    check_random_call(name, random.Random(seed))


@pytest.mark.full
@pytest.mark.parametrize("name", ["pythonic", "functiongemma", "gemma4", HARMONY_NAME])
def test_many_random_tools_calls_fit_their_schemas(name: str) -> None:
    assert sum(check_random_call(name, random.Random(seed)) for seed in range(100, 700)) > 500


def check_random_call(name: str, noise: random.Random) -> bool:
    """Fails unless a random call is read back as one that fits its schema; False if the random call has no end."""
    tool = random_tool(noise)
    special = special_tokens(name) if noise.random() < 0.5 else {}
    grammar = write_grammar(
        named_reply_format(name), [tool], special, is_thinking=False, is_required=True, is_parallel=False
    )
    reply = sample(grammar, special, noise.randint(0, 999))
    if reply is None:
        return False
    text, calls = parse(name, reply, tools=[tool])
    assert text == "", reply
    ((called, arguments),) = calls
    assert called == "f"
    assert tool.parameters is not None
    jsonschema.Draft202012Validator(tool.parameters).validate(arguments)
    return True


def judge_of(name: str, **properties: Any) -> TextJudge:
    tool = Tool("f", parameters={"properties": properties, "required": [*properties]})
    grammar = write_grammar(
        named_reply_format(name), [tool], {}, is_thinking=False, is_required=True, is_parallel=False
    )
    return TextJudge(bytes_compiler(), StructuredOutput(StructureKind.GRAMMAR, grammar))


def test_a_string_of_limited_length_in_braces_holds_no_quote() -> None:
    judge = judge_of("functiongemma", s={"type": "string", "minLength": 2, "maxLength": 30})
    beginning = b"<start_function_call>call:f{s:<escape>"
    assert judge.is_whole(beginning + b"a<escap{}\n<escape>}<end_function_call>")
    assert not judge.allows(beginning + b"ab<escape>c")
    assert not judge.allows(beginning + b"a<escape>}")
    assert not judge.allows(beginning + b"x" * 31)


def test_values_are_written_as_the_notation_has_them() -> None:
    values = {
        "b": {"type": "boolean"},
        "n": {"type": "null"},
        "d": {"const": {"k": [True, None]}},
        "m": {"minLength": 1},
    }
    assert judge_of("pythonic", **values).is_whole(b'[f(b=True, n=None, d={"k": [True, None]}, m="x\\n")]')
    judge = judge_of("gemma4", **values)
    assert judge.is_whole(b'<|tool_call>call:f{b:true,n:null,d:{k:[true,null]},m:<|"|>x<|"|>}<tool_call|>')
    for name in ("pythonic", "gemma4"):
        judge = judge_of(name, a={"type": "number"}, o={"type": "object", "additionalProperties": {"type": "integer"}})
        opening, equals = (b"[f(", b"=") if name == "pythonic" else (b"<|tool_call>call:f{", b":")
        assert judge.allows(opening + b"a" + equals + b"-1.5,")
        assert not judge.allows(opening + b"a" + equals + b"1e9")  # it may be beyond any number
        assert not judge.allows(opening + b"a" + equals + b"9" * 17)


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
