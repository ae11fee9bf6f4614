"""Exclusive bounds are narrowed only where llguidance would let a reply reach them, and values are left alone."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from engine import InvalidRequestError, StructuredOutput, StructureKind
from engine.text.schema_bounds import narrow_bounds
from testing.grammars import TextJudge, bytes_compiler

COMPILER = bytes_compiler()


def judge_of(schema: dict[str, Any]) -> TextJudge:
    return TextJudge(COMPILER, StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(schema)))


@pytest.mark.parametrize(
    ("bounds", "allowed", "forbidden"),
    [
        ({"exclusiveMinimum": 6, "maximum": 6.75}, ("6.1", "6.75"), ("6", "6.0", "6.76", "7")),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, ("0.001", "0.4"), ("0", "0.5", "1")),
        ({"exclusiveMaximum": -138, "minimum": -138.9}, ("-138.1", "-138.9"), ("-138", "-139")),
        ({"exclusiveMaximum": 0, "exclusiveMinimum": -0.25}, ("-0.1", "-0.20"), ("0", "-0.25", "-1")),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, ("0.0001", "0.9999"), ("0", "1")),
    ],
)
def test_an_exclusive_bound_is_not_reached(
    bounds: dict[str, float], allowed: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    for schema, before, after in (
        ({"type": "number", **bounds}, b"", b""),
        ({"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "number", **bounds}}}, b"[", b"]"),
    ):
        judge = judge_of(schema)
        assert all(judge.is_whole(before + text.encode() + after) for text in allowed), schema
        assert not any(judge.is_whole(before + text.encode() + after) for text in forbidden), schema


def test_values_and_other_bounds_are_left_alone() -> None:
    bounds = {"exclusiveMinimum": 6, "maximum": 6.75}
    assert narrow_bounds(bounds) != bounds
    for schema in (
        {"const": bounds, "enum": [bounds], "default": bounds, "examples": [bounds]},
        {"properties": {"exclusiveMinimum": {"type": "string"}, "maximum": {}}},
        {"exclusiveMinimum": 6, "maximum": 8.75},
        {"exclusiveMinimum": 6.5, "maximum": 6.75},
        {"exclusiveMinimum": True, "maximum": "6"},
        {"exclusiveMinimum": 6},
        {"exclusiveMinimum": 6, "maximum": 6},
    ):
        assert narrow_bounds(schema) == schema


@pytest.mark.full
def test_no_number_beyond_random_bounds_is_allowed() -> None:
    noise = Random(0)
    for _ in range(3000):
        low = round(noise.uniform(-30, 30), noise.choice((0, 0, 1, 3)))
        high = round(low + noise.choice((0.2, 1, 20)) * noise.random(), noise.choice((0, 1, 3)))
        lower, upper = noise.choice(("minimum", "exclusiveMinimum")), noise.choice(("maximum", "exclusiveMaximum"))
        try:
            judge = judge_of({"type": "number", lower: low, upper: high})
        except InvalidRequestError:  # no number lies between them
            continue
        for value in (low, high, int(low), int(high), low - 0.001, high + 0.001, low - 1, high + 1, 0):
            is_above = value > low or (value == low and lower == "minimum")
            is_below = value < high or (value == high and upper == "maximum")
            is_valid = is_above and is_below
            text = f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            assert is_valid or not judge.is_whole(text.encode()), (lower, low, upper, high, text)
