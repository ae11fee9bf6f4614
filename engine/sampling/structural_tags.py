"""Writes the grammar of a structural tag: free text, in which tags hold what stands between them to a form.

Both shapes that vLLM takes are read: ``structures`` with ``triggers``, and ``format`` with formats inside each other,
see https://xgrammar.mlc.ai/docs/structural_tag/structural_tag.html.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from engine.text.lark import ANY_TEXT, LarkWriter

T = TypeVar("T")
ToLark = Callable[[str], str]

_FIELDS: Mapping[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style"}),
    "regex": frozenset({"pattern"}),
    "grammar": frozenset({"grammar"}),
    "any_text": frozenset({"excludes"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "optional": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "star": frozenset({"content"}),
    "repeat": frozenset({"content", "min", "max"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
}
"""The formats that are known, with their fields."""
_MAX_REPEATS = 1000
"""Maximum of ``min`` and ``max`` of a ``repeat``; more are refused."""


def write_structural_tag(
    structural_tag: object, special_tokens: Mapping[str, int], regex_to_lark: ToLark, grammar_to_lark: ToLark
) -> str:
    """Returns the grammar of a structural tag, with the grammars that it contains.

    Args:
        structural_tag: the structural tag, as JSON values.
        special_tokens: ids of special tokens by their names.
        regex_to_lark: writes a regular expression as a grammar.
        grammar_to_lark: writes a grammar in another notation as Lark.

    Raises:
        ValueError: it is malformed or not supported; says where.
    """
    if not isinstance(structural_tag, dict):
        raise ValueError("it must be an object")
    writer = _Writer(special_tokens, regex_to_lark, grammar_to_lark)
    if "format" in structural_tag:
        start = writer.write(structural_tag["format"], "format", ())
    elif "structures" in structural_tag:
        start = writer.write(_of_structures(structural_tag), "structures", ())
    else:
        raise ValueError('it needs "format", or "structures" and "triggers"')
    main = {"lark_grammar": "\n".join([f"start: {start}", *writer.rules])}
    return json.dumps({"grammars": [main, *writer.grammars]})


def _of_structures(structural_tag: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the older shape as the newer one."""
    structures = _list(structural_tag, "structures", "structures")
    tags = []
    for index, one in enumerate(structures):
        place = f"structures.{index}"
        if not isinstance(one, dict):
            raise ValueError(f"{place} must be an object")
        schema = one.get("schema", True)  # none is any JSON
        content = {"type": "json_schema", "json_schema": {} if schema is True else schema}
        tags.append({"begin": _field(one, "begin", str, place), "content": content, "end": one.get("end", "")})
    return {"type": "triggered_tags", "triggers": _list(structural_tag, "triggers", "triggers"), "tags": tags}


class _Writer(LarkWriter):
    """Writes formats.

    ``ends`` are the texts of which one follows a format and is written with it: free text needs them to know where it
    ends. Without any, the format is the reply's last; None: something else follows.
    """

    def __init__(self, special_tokens: Mapping[str, int], regex_to_lark: ToLark, grammar_to_lark: ToLark) -> None:
        super().__init__(special_tokens)
        self.grammars: list[dict[str, str]] = []
        self._regex_to_lark = regex_to_lark
        self._grammar_to_lark = grammar_to_lark

    def write(self, format: Any, place: str, ends: tuple[str, ...] | None) -> str:
        """Writes a format and one of its ends."""
        kind = format.get("type") if isinstance(format, dict) else None
        if not isinstance(kind, str) or kind not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise ValueError(f"{place}.type must be one of {known} (got {json.dumps(kind)[:40]})")
        for name, value in format.items():
            if name not in _FIELDS[kind] and name != "type" and value not in (None, False):
                raise ValueError(f"{place}.{name[:40]} is not supported for the type {kind}")
        match kind:
            case "any_text":
                self._check_excludes(format, place, ends or ())
                return self._free_text(place, ends)
            case "tag":
                return self._tag(format, place, ends)
            case "triggered_tags":
                return self._triggered_tags(format, place, ends)
            case "sequence":
                *firsts, last = self._elements(format, place)
                written = [self.write(one, f"{place}.elements", None) for one in firsts]
                return " ".join([*written, self.write(last, f"{place}.elements", ends)])
            case "or":
                written = [self.write(one, f"{place}.elements", ends) for one in self._elements(format, place)]
                return self.rule(" | ".join(one or '""' for one in written))
        return f"{self._bounded(kind, format, place)} {self._one_of(ends or ())}".strip()

    def _bounded(self, kind: str, format: Mapping[str, Any], place: str) -> str:
        """Writes a format that ends by itself."""
        match kind:
            case "const_string":
                return self.text(_field(format, "value", str, place)) or '""'
            case "json_schema":
                if format.get("style", "json") != "json":
                    raise ValueError(f"{place}.style is not supported: only json is")
                schema = format.get("json_schema")
                if not isinstance(schema, dict) and schema is not True:
                    raise ValueError(f"{place}.json_schema must be a schema")
                return self.json({} if schema is True else schema)
            case "regex":
                return self._grammar(self._regex_to_lark(_field(format, "pattern", str, place)))
            case "grammar":
                return self._grammar(self._grammar_to_lark(_field(format, "grammar", str, place)))
            case "tags_with_separator":
                return self._tags_with_separator(format, place)
        content = self.rule(self.write(format.get("content"), f"{place}.content", None))
        if kind != "repeat":
            return content + {"optional": "?", "plus": "+", "star": "*"}[kind]
        min_count, max_count = _field(format, "min", int, place), _field(format, "max", int, place)
        if not 0 <= min_count <= _MAX_REPEATS or (max_count != -1 and not min_count <= max_count <= _MAX_REPEATS):
            raise ValueError(f"{place} must repeat from min to max times, at most {_MAX_REPEATS}; max -1 is no limit")
        return f"{content}{{{min_count},{'' if max_count == -1 else max_count}}}"

    def _tag(self, format: Mapping[str, Any], place: str, ends: tuple[str, ...] | None) -> str:
        begin = self.text(_field(format, "begin", str, place))
        return f"{begin} {self._inside(format, place, ends)}".strip()

    def _inside(self, tag: Mapping[str, Any], place: str, ends: tuple[str, ...] | None) -> str:
        """Writes what follows a tag's beginning."""
        end = tag.get("end")
        closing = (end,) if isinstance(end, str) else tuple(end) if isinstance(end, list) else None
        if not closing or not all(isinstance(one, str) for one in closing):
            raise ValueError(f"{place}.end must be a text, or a list of texts")
        if "" in closing:
            if len(closing) > 1:
                raise ValueError(f"{place}.end must not be empty where there are others")
            return self.write(tag.get("content"), f"{place}.content", ends)
        content = self.write(tag.get("content"), f"{place}.content", closing)
        return f"{content} {self._one_of(ends or ())}".strip()

    def _triggered_tags(self, format: Mapping[str, Any], place: str, ends: tuple[str, ...] | None) -> str:
        triggers = sorted(_texts(format, "triggers", place), key=len)
        self._check_excludes(format, place, (*triggers, *(ends or ())))
        bodies: dict[str, list[str]] = {}
        whole = []
        for tag, tag_place in self._tags(format, place):
            begin = _field(tag, "begin", str, tag_place)
            trigger = next((one for one in triggers if begin.startswith(one)), None)  # the shortest one is seen first
            if trigger is None:
                raise ValueError(f"{tag_place}.begin must begin with one of the triggers")
            inside = self.rule(self._inside(tag, tag_place, None))
            whole.append(f"{self.text(begin)} {inside}")
            bodies.setdefault(trigger, []).append(f"{self.text(begin[len(trigger) :])} {inside}")
        tagged = self.rule(
            " | ".join(f"{self.until(trigger)} ({' | '.join(of_trigger)})" for trigger, of_trigger in bodies.items())
        )
        first = self.rule(" | ".join(whole))
        must, once = _flag(format, "at_least_one", place), _flag(format, "stop_after_first", place)
        if once:
            closing = self._one_of(ends or ())
            ending = f"{first if must else tagged} {closing}"
            return ending if must else f"({ending} | {self._free_text(place, ends)})"
        return f"{first if must else ''} {tagged}* {self._free_text(place, ends)}".strip()

    def _tags_with_separator(self, format: Mapping[str, Any], place: str) -> str:
        tags = [self._tag(tag, tag_place, None) for tag, tag_place in self._tags(format, place)]
        tag = self.rule(" | ".join(tags))
        separator = self.text(_field(format, "separator", str, place))
        more = "" if _flag(format, "stop_after_first", place) else f"({separator} {tag})*"
        return self.rule(f"{tag} {more}") + ("" if _flag(format, "at_least_one", place) else "?")

    def _free_text(self, place: str, ends: tuple[str, ...] | None) -> str:
        """Writes any text up to one of the ends."""
        if ends is None:
            raise ValueError(f"{place} is free text, which can only stand before the end of a tag, or come last")
        if not ends:
            return self.rule(ANY_TEXT)
        return self.rule(" | ".join(self.until(end) for end in ends))

    def until(self, text: str) -> str:
        """Writes any text that ends with the first occurrence of this one."""
        special = next((name for name in self.special_tokens if name in text), None)
        if special is None or special == text:
            return super().until(text)
        if not text.startswith(special):
            raise ValueError(f"{text[:40]!r} must begin with its special token {special}")
        return f"{super().until(special)} {self.text(text.removeprefix(special))}"

    def _one_of(self, ends: Sequence[str]) -> str:
        return f"({' | '.join(map(self.text, ends))})" if len(ends) > 1 else "".join(map(self.text, ends))

    def _grammar(self, lark: str) -> str:
        name = f"grammar_{len(self.grammars) + 1}"
        self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _elements(self, format: Mapping[str, Any], place: str) -> list[Any]:
        return _list(format, "elements", f"{place}.elements")

    def _tags(self, format: Mapping[str, Any], place: str) -> list[tuple[Mapping[str, Any], str]]:
        tags = _list(format, "tags", f"{place}.tags")
        for index, tag in enumerate(tags):
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                raise ValueError(f"{place}.tags.{index} must be a tag")
        return [(tag, f"{place}.tags.{index}") for index, tag in enumerate(tags)]

    def _check_excludes(self, format: Mapping[str, Any], place: str, stops: Sequence[str]) -> None:
        """Refuses texts to exclude, but for those with which the free text ends anyhow."""
        excluded = format.get("excludes") or []
        if not isinstance(excluded, list) or any(one not in stops for one in excluded):
            raise ValueError(f"{place}.excludes is not supported, but for what ends the text")


def _field(given: Mapping[str, Any], name: str, kind: type[T], place: str) -> T:
    value = given.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        _refuse(f"{place}.{name}", "a text" if kind is str else "a whole number")
    return value


def _list(given: Mapping[str, Any], name: str, place: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list) or not value:
        _refuse(place, "a list that is not empty")
    return value


def _texts(given: Mapping[str, Any], name: str, place: str) -> list[str]:
    values = _list(given, name, f"{place}.{name}")
    if not all(isinstance(one, str) and one for one in values):
        _refuse(f"{place}.{name}", "a list of texts that are not empty")
    return values


def _flag(given: Mapping[str, Any], name: str, place: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        _refuse(f"{place}.{name}", "true or false")
    return value


def _refuse(place: str, wanted: str) -> NoReturn:
    raise ValueError(f"{place} must be {wanted}")
