"""What the grammar library says becomes one plain sentence, without its places, excerpts and panics."""

from __future__ import annotations

import json
import re

import pytest

from engine.errors import InvalidRequestError
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.grammar_errors import MAX_REASON_CHARS, reason_of
from engine.sampling.ll_tokenizer import make_ll_tokenizer
from engine.structured_output import StructuredOutput, StructureKind

TOO_LARGE = "it is too large to follow"


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokens = [bytes([value]) for value in range(256)] + [b"<eos>"]
    return GrammarCompiler(lambda: make_ll_tokenizer(tokens, [256], [256], lambda text: list(text.encode())), 257)


def tag_with_ends(number: int) -> str:
    ends = [f"{index:05}" for index in range(number)]
    return json.dumps({"format": {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ends}})


@pytest.mark.parametrize(
    ("kind", "definition", "reason"),
    [
        (StructureKind.REGEX, "(", "the expression ( is malformed: unclosed group"),
        (StructureKind.REGEX, r"a\b", "look-around and word boundaries are not supported"),
        (StructureKind.REGEX, r"(a)\1", r"the expression (a)\1 is malformed: backreferences are not supported"),
        (StructureKind.REGEX, "(" * 400 + ")" * 400, f"the expression {'(' * 60} is malformed: exceed"),
        (StructureKind.REGEX, "((a{90}){90}){90}", "only texts of more than 65,536"),
        (StructureKind.GRAMMAR, "start: /a{900000}/", "only texts of more than 65,536"),
        (StructureKind.JSON_SCHEMA, '{"items": {"pattern": "a{900000}"}}', "only texts of more than 65,536"),
        (StructureKind.GRAMMAR, 'start: %json {"pattern": "a{900000}"}', "only texts of more than 65,536"),
        (
            StructureKind.STRUCTURAL_TAG,
            '{"format": {"type": "json_schema", "json_schema": {"pattern": "a{900000}"}}}',
            "only texts of more than 65,536",
        ),
        (StructureKind.GRAMMAR, "start: a", "it names the rule a, which it does not define"),
        (StructureKind.GRAMMAR, "root ::= x", "it names the rule x, which it does not define"),
        (StructureKind.GRAMMAR, "start: <tool>", 'the model has no special token "<tool>"'),
        (StructureKind.GRAMMAR, 'start: "a" start | start start', TOO_LARGE),
        (StructureKind.GRAMMAR, f'start: {"(" * 3000}"a"{")" * 3000}', "it is nested too deep"),
        (StructureKind.JSON_SCHEMA, '{"pattern": "("}', "the expression ( is malformed: unclosed group"),
        (StructureKind.JSON_SCHEMA, '{"$ref": "http://a"}', "http://a lies outside of it"),
        (
            StructureKind.JSON_SCHEMA,
            '{"$ref": "http://a/panicked-assertion"}',
            "http://a/panicked-assertion lies outside",
        ),
        (StructureKind.JSON_SCHEMA, '{"not": {}}', 'these keywords of JSON Schema are not supported: "not"'),
        (StructureKind.STRUCTURAL_TAG, tag_with_ends(2000), TOO_LARGE),
    ],
)
def test_the_reason_is_in_plain_words(
    compiler: GrammarCompiler, kind: StructureKind, definition: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        compiler.compile(StructuredOutput(kind, definition))
    said = str(refused.value)
    assert f"cannot be used: {reason}" in said
    assert not re.search(r"\n|\^|\d\(\d+\)|\d \| |parse error|limit \d", said), said


NESTED = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"properties": {"q": {"type": "strin"}}}}},
}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (NESTED, " (at properties.rows.items.properties.q)"),
        (
            {"properties": {"fine": {"type": "string"}, "a": {"anyOf": [{"type": "null"}, {"pattern": "["}]}}},
            " (at properties.a.anyOf[1])",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"items": {"type": "strin"}}}},
            " (at $defs.b.items)",
        ),
        (
            {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"not": {}, "items": {"$ref": "#/$defs/a"}}}},
            " (at $defs.a)",
        ),
        ({"type": "strin"}, ""),
    ],
)
def test_the_place_in_a_schema_is_named(compiler: GrammarCompiler, schema: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        compiler.compile(StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema)))
    assert str(refused.value).endswith(f"{place}.")
    assert bool(place) == ("(at " in str(refused.value))


def test_a_panic_is_not_shown() -> None:
    said = reason_of("panicked at earley/parser.rs:123:45:\ncalled `Option::unwrap()` on a `None` value")
    assert said.startswith(TOO_LARGE)


@pytest.mark.parametrize(
    "message",
    [
        "lexer precomputation failed; either increase limits.initial_lexer_fuel or disable it",
        "lexer error: too many expressions constructed",
    ],
)
def test_the_names_of_the_library_s_limits_are_not_shown(message: str) -> None:
    assert reason_of(message).startswith(TOO_LARGE)


def test_other_words_are_cut_to_their_first_line() -> None:
    assert reason_of("at 1(8): something new.\n   1 | start\n       ^") == "something new"
    assert len(reason_of("x" * 5000)) == MAX_REASON_CHARS
