"""Structural tags: text is free but for what follows a trigger; what is not supported is refused by its place."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from engine import InvalidRequestError, StructuredOutput, StructureKind
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.ll_tokenizer import make_ll_tokenizer
from testing.grammars import TextJudge, bytes_compiler

COMPILER = bytes_compiler()
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
DAY = {"type": "integer", "minimum": 1, "maximum": 31}
JSON_CITY = {"type": "json_schema", "json_schema": CITY}
JSON_DAY = {"type": "json_schema", "json_schema": DAY}
STRUCTURES = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=city>", "schema": CITY, "end": "</f>"},
        {"begin": "<f=day>", "schema": DAY, "end": "</f>"},
        {"begin": "[day]", "schema": DAY, "end": ""},
    ],
    "triggers": ["<f=", "[d"],
}


def tag(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


def structure_of(asked: Any) -> StructuredOutput:
    return StructuredOutput(StructureKind.STRUCTURAL_TAG, json.dumps(asked))


def judge_of(asked: Any) -> TextJudge:
    return TextJudge(COMPILER, structure_of(asked))


ANY_TEXT = {"type": "any_text"}
TAGS = [tag("<f=city>", JSON_CITY, "</f>"), tag("<f=day>", JSON_DAY, ["</f>", "<end>"])]
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": TAGS}
SEPARATED = {"type": "tags_with_separator", "tags": TAGS, "separator": ", "}
CITY_CALL = '<f=city>{"city": "Bonn"}</f>'


@pytest.mark.parametrize(
    ("asked", "whole", "impossible"),
    [
        (
            STRUCTURES,
            (
                "",
                "Free <f text.",
                CITY_CALL,
                f"a{CITY_CALL}b<f=day>7</f>\n",
                "on [day]12 or [day]3",
                "<f=day>1</f>[day]2",
            ),
            ("<f=x", '<f=city>{"town', "<f=day>32", "[dx", f"{CITY_CALL}<f=n", "<f=day>7 "),
        ),
        ({"format": const('a"b/\\ü')}, ('a"b/\\ü',), ("b",)),
        ({"format": JSON_CITY}, ('{"city": "Bonn"}',), ("x",)),
        ({"format": {"type": "json_schema", "json_schema": True}}, ("[1]", "null"), ("x",)),
        ({"format": {"type": "regex", "pattern": "a/[b/]{2}"}}, ("a/b/",), ("a/c",)),
        ({"format": {"type": "grammar", "grammar": 'root ::= "a" | "b" root'}}, ("bba",), ("c",)),
        ({"format": ANY_TEXT}, ("", "x\ny"), ()),
        ({"format": tag("<t>", ANY_TEXT, "</t>")}, ("<t>a</b></t>",), ("x", "<t></t>y")),
        ({"format": tag("<t>", {**ANY_TEXT, "excludes": ["</t>"]}, ["</t>", "</u>"])}, ("<t>a</u>",), ("<t></u>y",)),
        (
            {"format": {"type": "sequence", "elements": [tag("<t>", ANY_TEXT, "</t>"), const("\n"), JSON_DAY]}},
            ("<t>hm</t>\n12",),
            ("<t>hm</t>x", "<t>hm</t>\n32"),
        ),
        (
            {"format": {"type": "or", "elements": [const("yes"), tag("no", ANY_TEXT, "")]}},
            ("yes", "no, never"),
            ("x", "yesx"),
        ),
        (
            {"format": {"type": "sequence", "elements": [{"type": "optional", "content": const("a")}, const("b")]}},
            ("b", "ab"),
            ("aa",),
        ),
        ({"format": {"type": "plus", "content": const("ab")}}, ("ab", "abab"), ("b",)),
        ({"format": {"type": "star", "content": const("ab")}}, ("", "abab"), ("b",)),
        ({"format": {"type": "repeat", "min": 1, "max": 2, "content": const("ab")}}, ("ab", "abab"), ("ababa",)),
        ({"format": {"type": "repeat", "min": 2, "max": -1, "content": const("ab")}}, ("abab", "ababab"), ("b",)),
        ({"format": TRIGGERED}, ("", "a", f"a{CITY_CALL} <f=day>3<end>"), ("<f=x", "<f=day>3<x")),
        ({"format": TRIGGERED | {"at_least_one": True}}, (CITY_CALL, f"{CITY_CALL} b{CITY_CALL}"), ("a",)),
        ({"format": TRIGGERED | {"stop_after_first": True}}, ("", "a", f"a{CITY_CALL}"), (f"a{CITY_CALL}b",)),
        (
            {"format": TRIGGERED | {"at_least_one": True, "stop_after_first": True}},
            (CITY_CALL,),
            ("a", f"{CITY_CALL}b"),
        ),
        ({"format": tag("<a>", TRIGGERED, "</a>")}, ("<a>x</a>", f"<a>x{CITY_CALL}y</a>"), ("<a></a>x", "<a><f=x")),
        ({"format": SEPARATED}, ("", CITY_CALL, f"{CITY_CALL}, {CITY_CALL}"), ("a", f"{CITY_CALL};")),
        (
            {"format": SEPARATED | {"at_least_one": True, "stop_after_first": True}},
            (CITY_CALL,),
            (f"{CITY_CALL},", "a"),
        ),
    ],
)
def test_a_tag_holds_what_it_names_and_leaves_the_rest_free(
    asked: dict[str, Any], whole: tuple[str, ...], impossible: tuple[str, ...]
) -> None:
    judge = judge_of({"type": "structural_tag", **asked})
    for text in whole:
        assert judge.is_whole(text.encode()), text
    for text in impossible:
        assert not judge.allows(text.encode()), text
    for text in whole:
        assert judge.complete(text.encode(), Random(0)) == text.encode()


def test_at_least_one_asks_for_a_tag() -> None:
    for asked in (TRIGGERED, SEPARATED):
        assert judge_of({"format": asked}).is_whole(b"")
        assert not judge_of({"format": asked | {"at_least_one": True}}).is_whole(b"")


def test_tags_of_special_tokens_are_held_by_their_ids() -> None:
    """No text matches such a token, so a trigger in letters would never be met."""
    special = {"<|call|>": 257, "<|end|>": 258}
    tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>", *(name.encode() for name in special)]
    compiler = GrammarCompiler(
        lambda: make_ll_tokenizer(tokens, [256, 257, 258], [256], lambda text: list(text.encode())), 259, special
    )
    structures = [
        {"begin": "<|call|>day:", "schema": DAY, "end": "<|end|>"},
        {"begin": "<|call|>city:", "schema": CITY, "end": "<|end|>"},
    ]
    for triggers in (["<|call|>"], ["<|call|>day", "<|call|>c"]):
        matcher = compiler.compile(structure_of({"structures": structures, "triggers": triggers})).start("one")
        reply = [*b"Well. ", 257, *b"day:12", 258, *b" Done."]
        for end, token in enumerate(reply):
            assert token not in matcher.banned(reply[:end], 0), end
        assert matcher.banned(reply[:7], 0).tolist() == sorted({*range(259)} - {*b"cd"})
        assert 256 not in matcher.banned(reply, 0)
    with pytest.raises(InvalidRequestError, match="must begin with its special token"):
        compiler.compile(structure_of({"structures": [{"begin": "a<|call|>", "end": ""}], "triggers": ["a<|call|>"]}))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ([], "must be an object"),
        ({}, 'needs "format", or "structures"'),
        ({"format": {"type": "token"}}, r'format.type must be one of .* \(got "token"\)'),
        ({"format": 3}, r"format.type must be one of .* \(got null\)"),
        ({"format": {"type": "const_string"}}, "format.value must be a text"),
        ({"format": {"type": "json_schema", "json_schema": "x"}}, "format.json_schema must be a schema"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "format.style is not supported"),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "any_order": True}},
            "format.any_order is not supported",
        ),
        ({"format": {"type": "json_schema", "json_schema": {"not": {}}}}, 'not supported: "not"'),
        ({"format": {"type": "any_text", "max_tokens": 5}}, "format.max_tokens is not supported"),
        ({"format": {"type": "any_text", "excludes": ["x"]}}, "format.excludes is not supported"),
        ({"format": {"type": "any_text", "excludes": 3}}, "format.excludes is not supported"),
        ({"format": {"type": "regex", "pattern": "("}}, "malformed"),
        ({"format": {"type": "regex", "pattern": "a" * 20_000}}, "at most 16,384"),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, "x"),
        ({"format": {"type": "sequence", "elements": []}}, "format.elements must be a list that is not empty"),
        (
            {"format": {"type": "sequence", "elements": [ANY_TEXT, const("a")]}},
            "free text, which can only stand before",
        ),
        ({"format": {"type": "star", "content": ANY_TEXT}}, "free text, which can only stand before"),
        ({"format": {"type": "repeat", "min": 3, "max": 2, "content": const("a")}}, "must repeat from min to max"),
        ({"format": {"type": "repeat", "min": 0, "max": True, "content": const("a")}}, "format.max must be a whole"),
        ({"format": {"type": "tag", "begin": "a", "content": ANY_TEXT}}, "format.end must be a text"),
        ({"format": tag("a", ANY_TEXT, ["", "b"])}, "format.end must not be empty"),
        ({"format": TRIGGERED | {"triggers": ["x"]}}, "tags.0.begin must begin with one of the triggers"),
        ({"format": TRIGGERED | {"triggers": [""]}}, "triggers must be a list of texts that are not empty"),
        ({"format": TRIGGERED | {"tags": [3]}}, "format.tags.0 must be a tag"),
        ({"format": TRIGGERED | {"at_least_one": 1}}, "format.at_least_one must be true or false"),
        ({"structures": [3], "triggers": ["a"]}, "structures.0 must be an object"),
        ({"structures": [{"begin": "a"}]}, "triggers must be a list"),
        ({"structures": [{"begin": "b", "end": ""}], "triggers": ["a"]}, "begin must begin with one of the triggers"),
    ],
)
def test_what_is_malformed_or_not_supported_is_refused_by_its_place(asked: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        COMPILER.compile(structure_of(asked))
    assert "cannot be used" in str(caught.value)
    assert "\n" not in str(caught.value)
