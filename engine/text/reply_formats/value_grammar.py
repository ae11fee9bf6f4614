"""Writes the grammar of a JSON schema's values in notations that are not JSON: Python's, and Gemma's in braces."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.text.lark import LarkWriter

Schema = Mapping[str, Any]

_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "strict"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "format", "contentMediaType", "contentEncoding"),
    }
)
"""Keywords that constrain nothing here: JSON Schema has ``format`` as a note, unless it is asked for otherwise."""
_KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_MAX_NUMBER = 10**15
"""Largest number where the schema has no bound: a larger one may have no value in Python or in JSON."""
_BARE_KEY = re.compile(r"[^,:{}\[\]\s\"]+")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/~%]+)")


@dataclass(frozen=True, slots=True)
class ValueNotation:
    """How values are written.

    Args:
        quote: text on both sides of a string.
        character: regular expression of one character of a string; empty if a string is any text without the quote.
        separator: text between the items of a list or an object.
        key_separator: text between a key and its value in an object.
        has_quoted_keys: keys are strings; otherwise they stand as they are.
        constants: how true, false and null are written.
    """

    quote: str
    character: str
    separator: str
    key_separator: str
    has_quoted_keys: bool
    constants: Mapping[object, str]


PYTHON = ValueNotation(
    '"', r"[^\"\\\x00-\x1f\x7f]|\\[\"\\nt]", ", ", ": ", has_quoted_keys=True, constants={True: "True", False: "False"}
)


def braces(quote: str) -> ValueNotation:
    """Returns the notation of ``{a:1,b:<escape>x<escape>}``."""
    return ValueNotation(quote, "", ",", ":", has_quoted_keys=False, constants={True: "true", False: "false"})


class ValueWriter:
    """Writes the values of one tool's parameters.

    Args:
        writer: collects the rules.
        notation: how values are written.
        root: the schema of the parameters, in which references are looked up.
    """

    def __init__(self, writer: LarkWriter, notation: ValueNotation, root: Schema) -> None:
        self._writer = writer
        self._notation = notation
        self._root = root
        self._references: dict[str, str] = {}
        self._any_value = ""

    def arguments(self) -> str:
        """Writes the parameters as an object.

        Raises:
            ValueError: a keyword is not supported in this notation, or a name cannot be written.
        """
        return self._value({"type": "object", **self._root})

    def keyword_arguments(self) -> str:
        """Writes the parameters as keyword arguments in Python, without the parentheses."""
        schema = {"type": "object", **self._root}
        self._check_keywords(schema, "object")
        properties = schema.get("properties", {})
        for name in properties:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"{name[:40]!r} is no name of an argument in Python, in which this model writes calls")
        items = [(f"{self._text(name)} {self._text('=')}", one) for name, one in properties.items()]
        return self._items(items, properties, schema.get("required", ()))

    def _value(self, schema: Any) -> str:
        """Writes a value of a schema, and returns its rule."""
        if schema is True:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise ValueError("no text can match it")
        if "$ref" in schema:
            return self._reference(schema)
        for key in ("anyOf", "allOf"):
            if key in schema:
                self._check_alone(schema, key)
                if key == "allOf" and len(schema[key]) != 1:
                    raise ValueError('the keyword "allOf" is supported only with one schema in this model\'s notation')
                return self._one_of(self._value(one) for one in schema[key])
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            self._check_alone(schema, "const" if "const" in schema else "enum", "type")
            return self._one_of(self._text(self._literal(value)) for value in values)
        if schema.keys() <= _ANNOTATIONS:
            return self._anything()
        kinds = schema["type"] if "type" in schema else _kind_of(schema)
        if isinstance(kinds, str):
            return self._of_kind(kinds, schema)
        every = frozenset().union(*(_KEYWORDS.get(kind, frozenset()) for kind in kinds))
        self._check_known(schema, every | {"type"})
        return self._one_of(
            self._of_kind(kind, {key: schema[key] for key in schema if key in _KEYWORDS.get(kind, ())})
            for kind in kinds
        )

    def _of_kind(self, kind: str, schema: Schema) -> str:
        self._check_keywords(schema, kind)
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(kind, schema)
            case "boolean":
                return self._one_of(self._text(self._literal(value)) for value in (True, False))
            case _:
                return self._rule(self._text(self._literal(None)))

    def _object(self, schema: Schema) -> str:
        notation = self._notation
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        between = self._text(notation.key_separator)
        if not properties and more is not False:
            if schema.get("required"):
                raise ValueError('"required" names what is none of the "properties"')
            key = self._string({}) if notation.has_quoted_keys else "/[A-Za-z_][A-Za-z0-9_]*/"
            pair = self._rule(f"{key} {between} {self._value(more)}")
            inside = f"({pair} ({self._text(notation.separator)} {pair})*)?"
        else:
            items = [(f"{self._text(self._key(name))} {between}", one) for name, one in properties.items()]
            inside = self._items(items, properties, schema.get("required", ()))
        return self._rule(f"{self._text('{')} {inside} {self._text('}')}")

    def _items(self, items: Sequence[tuple[str, Any]], names: Iterable[str], required: Iterable[str]) -> str:
        """Writes items in their order, those that are not required or not, with separators between them."""
        must = set(required)
        if unknown := must.difference(names):
            raise ValueError(f'"required" names {min(unknown)[:40]!r}, which is none of the "properties"')
        separator = self._text(self._notation.separator)
        written = [self._rule(f"{key} {self._value(schema)}") for key, schema in items]
        firsts: list[str] = []
        rest = ""  # what may follow an item
        for item, name in zip(reversed(written), reversed([*names]), strict=True):
            first = f"{item} {rest}".strip()
            firsts = [first] if name in must else [first, *firsts]
            rest = self._rule(f"({separator} {item}){'' if name in must else '?'} {rest}")
        return f"({' | '.join(firsts)}){'' if must else '?'}" if firsts else ""

    def _array(self, schema: Schema) -> str:
        item = self._value(schema.get("items", True))
        min_items, max_items = schema.get("minItems", 0), schema.get("maxItems")
        further = _times(max(min_items - 1, 0), max_items and max_items - 1)
        more = f"({self._text(self._notation.separator)} {item}){further}"
        inside = "" if max_items == 0 else f"{item} {more}" if min_items else f"({item} {more})?"
        return self._rule(f"{self._text('[')} {inside} {self._text(']')}")

    def _string(self, schema: Schema) -> str:
        notation, quote = self._notation, self._text(self._notation.quote)
        times = _times(schema.get("minLength", 0), schema.get("maxLength"))
        characters = f"(?s:{notation.character or '.'}){times}"
        if notation.character:
            return self._rule(f"{quote} {self._writer.terminal(f'/{characters}/')} {quote}")
        # The first quote ends the string, also one that is spelled in letters where it is a special token.
        end = re.escape(notation.quote).replace("/", r"\/")
        if notation.quote in self._writer.special_tokens:
            return self._rule(f"{quote} {self._writer.terminal(f'/{characters}/ & ~/(?s:.*){end}(?s:.*)/')} {quote}")
        return self._rule(f"{quote} {self._writer.terminal(f'/{characters}{end}/ & ~/(?s:.*){end}(?s:.+)/')}")

    def _number(self, kind: str, schema: Schema) -> str:
        bounded = {key: value for key, value in schema.items() if key not in _ANNOTATIONS} | {"type": kind}
        if not schema.keys() & {"minimum", "exclusiveMinimum"}:
            bounded["minimum"] = -_MAX_NUMBER
        if not schema.keys() & {"maximum", "exclusiveMaximum"}:
            bounded["maximum"] = _MAX_NUMBER
        return self._writer.json(bounded)

    def _anything(self) -> str:
        if not self._any_value:
            self._any_value = self._writer.reserve()
            kinds = [self._of_kind(kind, {}) for kind in _KEYWORDS if kind != "integer"]
            self._writer.define(self._any_value, " | ".join(kinds))
        return self._any_value

    def _reference(self, schema: Schema) -> str:
        self._check_alone(schema, "$ref")
        found = _REFERENCE.fullmatch(str(schema["$ref"]))
        target = self._root.get(found[1], {}).get(found[2]) if found else None
        if target is None:
            raise ValueError(f"the reference {str(schema['$ref'])[:60]!r} leads nowhere")
        rule = self._references.get(schema["$ref"])
        if rule is None:
            rule = self._references[schema["$ref"]] = self._writer.reserve()
            self._writer.define(rule, self._value(target))
        return rule

    def _literal(self, value: Any) -> str:
        """Returns a value as it is written."""
        notation = self._notation
        if value is None:
            return "None" if notation.has_quoted_keys else "null"
        if isinstance(value, bool):
            return notation.constants[value]
        if isinstance(value, str):
            if notation.character:
                return json.dumps(value, ensure_ascii=False)
            if notation.quote in value:
                raise ValueError(f"{value[:40]!r} cannot be written: it holds {notation.quote}")
            return f"{notation.quote}{value}{notation.quote}"
        if isinstance(value, list):
            return f"[{notation.separator.join(map(self._literal, value))}]"
        if isinstance(value, Mapping):
            pairs = (f"{self._key(key)}{notation.key_separator}{self._literal(one)}" for key, one in value.items())
            return f"{{{notation.separator.join(pairs)}}}"
        return json.dumps(value)

    def _key(self, name: str) -> str:
        if self._notation.has_quoted_keys:
            return json.dumps(name, ensure_ascii=False)
        if not _BARE_KEY.fullmatch(name):
            raise ValueError(f"{name[:40]!r} cannot be written as a key in this model's notation")
        return name

    def _check_keywords(self, schema: Schema, kind: str) -> None:
        known = _KEYWORDS.get(kind)
        if known is None:
            raise ValueError(f"{kind[:40]!r} is no type of JSON Schema")
        self._check_known(schema, known | {"type"})

    def _check_alone(self, schema: Schema, *names: str) -> None:
        self._check_known(schema, frozenset(names))

    def _check_known(self, schema: Schema, known: frozenset[str]) -> None:
        unknown = schema.keys() - known - _ANNOTATIONS
        if unknown:
            names = ", ".join(f'"{name[:40]}"' for name in sorted(unknown))
            raise ValueError(f"these keywords of JSON Schema are not supported in this model's notation: {names}")

    def _one_of(self, alternatives: Iterable[str]) -> str:
        return self._rule(" | ".join(alternatives))

    def _rule(self, definition: str) -> str:
        return self._writer.rule(definition)

    def _text(self, text: str) -> str:
        return self._writer.text(text)


def _kind_of(schema: Schema) -> str:
    """Returns the type whose keywords a schema has. Without ``type`` it allows every other type, too."""
    keywords = schema.keys() - _ANNOTATIONS
    return next((kind for kind, known in reversed(_KEYWORDS.items()) if keywords <= known), "object")


def _times(min_count: int, max_count: int | None) -> str:
    """Returns the suffix that repeats what is before it."""
    return f"{{{min_count},{'' if max_count is None else max_count}}}"
