"""Compiles structures to grammars, within limits of time, size and nesting, and caches them by content.

The library is llguidance (https://github.com/guidance-ai/llguidance), imported with the first structure.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isinf
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from engine.errors import InvalidRequestError
from engine.sampling.grammar import Grammar
from engine.sampling.grammar_errors import MAX_REASON_CHARS, TOO_LARGE, reason_of
from engine.sampling.regex_length import min_match_length
from engine.sampling.schema_place import find_place
from engine.sampling.structural_tags import write_structural_tag
from engine.structured_output import StructuredOutput, StructureKind, json_spacing
from engine.text.reply_formats.grammar import write_thinking_before
from engine.text.reply_formats.reply_format import ReplyFormat
from engine.text.schema_bounds import narrow_bounds

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_DEFINITION_CHARS = 256 * 1024
"""Characters of a schema, a grammar or a list of choices; a longer one is refused."""
MAX_REGEX_CHARS = 16 * 1024
MAX_FORCED_CHARS = 64 * 1024
"""Length of the shortest text that expressions may demand: 5 microseconds a character, with all else standing still."""
MAX_NESTING = 100
"""Levels of objects and lists in a schema; serde_json, which reads it, stops at 128."""
MAX_CHOICES = 2000
MAX_CACHED = 128
"""Compiled grammars and refusals that are kept; the one that was used longest ago is evicted."""
_INITIAL_LEXER_FUEL = 1_000_000  # llguidance states 50,000 a millisecond, so compiling a lexer stops within about 20 ms
_STEP_LEXER_FUEL = 200_000  # 14,000 a millisecond: about 14 ms for one token
_MAX_GRAMMAR_SIZE = 500_000  # symbols
_JSON_PATTERN = re.compile(
    r'"pattern"\s*:\s*("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")'
)  # in a schema in Lark
_LARK_REGEX = re.compile(r"/((?:\\.|[^/\\\n])+)/")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _TooLongError(ValueError):
    def __init__(self) -> None:
        super().__init__(f"only texts of more than {MAX_FORCED_CHARS:,} characters can match it")


class GrammarCompiler:
    """Compiles and caches the grammars of one model. Safe to use from several threads; compiles one at a time.

    Args:
        make_tokenizer: makes llguidance's view of the model's vocabulary; called once, with the first structure.
        vocab_size: number of the model's token ids.
        special_tokens: ids of special tokens by their names, which the tags of a structural tag may contain.
    """

    def __init__(
        self,
        make_tokenizer: Callable[[], LLTokenizer],
        vocab_size: int,
        special_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self._make_tokenizer = make_tokenizer
        self._special_tokens = special_tokens or {}
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[StructuredOutput, ReplyFormat | None], Grammar | str] = OrderedDict()
        self._lock = Lock()

    def compile(self, structure: StructuredOutput, thinking: ReplyFormat | None = None) -> Grammar:
        """Returns the grammar of a structure, compiled or from the cache.

        Args:
            thinking: the format in which the reply may think before the structure; it opens the thinking itself.

        Raises:
            InvalidRequestError: it is malformed, impossible or too large; names the place and the reason.
        """
        limit = MAX_REGEX_CHARS if structure.kind is StructureKind.REGEX else MAX_DEFINITION_CHARS
        if len(structure.definition) > limit:
            raise _refusal(
                structure.kind, f"it has {len(structure.definition):,} characters, and at most {limit:,} fit"
            )
        if _SURROGATE.search(structure.definition) or _SURROGATE.search(structure.whitespace_pattern or ""):
            raise _refusal(structure.kind, "it holds half of a surrogate pair, which is no text")
        key = (structure, thinking)
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                try:
                    found = self._compile(structure, thinking)
                except InvalidRequestError as error:
                    found = str(error)
                self._compiled[key] = found
                if len(self._compiled) > MAX_CACHED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
        if isinstance(found, str):
            raise InvalidRequestError(found)
        return found

    def _compile(self, structure: StructuredOutput, thinking: ReplyFormat | None) -> Grammar:
        from llguidance import LLMatcher

        try:
            text = _to_grammar(structure, self._special_tokens)
        except _TooLongError as error:
            raise _refusal(structure.kind, str(error)) from error
        if thinking is not None:
            before = write_thinking_before("answer", thinking, self._special_tokens)
            text = _put_before(before, text, "answer")
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise _refusal(structure.kind, _with_place(structure, reason_of(matcher.get_error()), self._tokenizer))
        probe = matcher.deep_copy()
        forced = probe.compute_ff_tokens()
        mask = np.frombuffer(probe.compute_bitmask(), dtype=np.uint8)
        if probe.is_error():
            raise _refusal(structure.kind, reason_of(probe.get_error()))
        if not mask.any() or probe.stop_reason() == "NoExtensionBias":
            raise _refusal(structure.kind, "no text can match it")
        # A value that must hold itself forces a text without end.
        if forced and not probe.consume_tokens(forced):
            raise _refusal(structure.kind, reason_of(probe.get_error()))
        return Grammar(matcher, self._vocab_size)


def _with_place(structure: StructuredOutput, reason: str, tokenizer: LLTokenizer) -> str:
    """Returns the reason for which a structure is refused, and for a part of a JSON schema where that is."""
    if structure.kind is not StructureKind.JSON_SCHEMA or reason == TOO_LARGE:
        return reason

    def reason_for(schema: dict[str, Any]) -> str | None:
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, _json_grammar(schema, structure), log_level=0, limits=_limits())
        return reason_of(matcher.get_error()) if matcher.is_error() else None

    place = find_place(json.loads(structure.definition), reason, reason_for)
    return f"{reason} (at {place[:MAX_REASON_CHARS]})" if place else reason


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=_INITIAL_LEXER_FUEL,
        step_lexer_fuel=_STEP_LEXER_FUEL,
        max_grammar_size=_MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )


def _to_grammar(structure: StructuredOutput, special_tokens: Mapping[str, int]) -> str:
    """Returns a structure in llguidance's own notation."""
    from llguidance import LLMatcher

    kind, definition = structure.kind, structure.definition
    if kind is StructureKind.JSON_OBJECT:
        return _json_grammar({"type": "object"}, structure)
    if kind is StructureKind.JSON_SCHEMA:
        schema = _read_json(kind, definition)
        if not isinstance(schema, dict | bool):
            raise _refusal(kind, f"a schema is an object, not {type(schema).__name__}")
        if schema is False:
            raise _refusal(kind, "no text can match it")
        _check_forced(_patterns_of(schema))
        return _json_grammar({} if schema is True else schema, structure)
    if kind is StructureKind.REGEX:
        _check_forced([definition])
        return LLMatcher.grammar_from_regex(definition)
    if kind is StructureKind.CHOICE:
        choices = _read_json(kind, definition)
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
            raise _refusal(kind, "it must be a list of one or more texts that are not empty")
        if len(choices) > MAX_CHOICES:
            raise _refusal(kind, f"it has {len(choices):,} choices, and at most {MAX_CHOICES:,} fit")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
    if kind is StructureKind.GRAMMAR:
        _check_forced(_LARK_REGEX.findall(definition))
        _check_forced(json.loads(text) for text in _JSON_PATTERN.findall(definition))
        return LLMatcher.grammar_from_lark(_as_lark(definition))
    tag = _read_json(kind, definition)
    _check_forced(_patterns_of(tag))
    try:
        return write_structural_tag(tag, special_tokens, _regex_as_lark, _as_lark)
    except (InvalidRequestError, _TooLongError):
        raise
    except ValueError as error:
        raise _refusal(kind, str(error)) from error


def _check_forced(patterns: Iterable[str]) -> None:
    """Refuses expressions that force so long a text that finding out what they force stops everything else.

    Raises:
        _TooLongError: they do.
    """
    if sum(map(min_match_length, patterns)) > MAX_FORCED_CHARS:
        raise _TooLongError


def _patterns_of(schema: Any) -> Iterator[str]:
    """Yields the regular expressions in a JSON schema; its nesting is limited."""
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword == "pattern" and isinstance(value, str):
                yield value
            yield from _patterns_of(value)
        yield from schema["patternProperties"] if isinstance(schema.get("patternProperties"), dict) else ()
    elif isinstance(schema, list):
        for value in schema:
            yield from _patterns_of(value)


def _put_before(start: str, grammar: str, name: str) -> str:
    """Returns a grammar that begins with ``start``, where another one in llguidance's notation has this name."""
    parts = json.loads(grammar)["grammars"] if grammar.lstrip().startswith("{") else [{"lark_grammar": grammar}]
    return json.dumps({"grammars": [{"lark_grammar": start}, {**parts[0], "name": name}, *parts[1:]]})


def _json_grammar(schema: dict[str, Any], structure: StructuredOutput) -> str:
    """Returns the grammar of a schema's values; without a pattern, white space is as ``json.dumps`` writes it."""
    from llguidance import LLMatcher

    pattern = structure.whitespace_pattern
    schema = narrow_bounds(schema)
    if pattern is None:
        return LLMatcher.grammar_from_json_schema(schema, overrides=cast("JsonCompileOptions", json_spacing()))
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": pattern})


def _regex_as_lark(pattern: str) -> str:
    from llguidance import LLMatcher

    if len(pattern) > MAX_REGEX_CHARS:
        raise ValueError(f"a regular expression has {len(pattern):,} characters, and at most {MAX_REGEX_CHARS:,} fit")
    _check_forced([pattern])
    grammar: str = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    return grammar


def _as_lark(text: str) -> str:
    """Returns a grammar as Lark: as it is, or converted from llama.cpp's GBNF."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # it raises Exception itself, for a rule that is missing
        raise _refusal(StructureKind.GRAMMAR, reason_of(str(error))) from error


def _read_json(kind: StructureKind, text: str) -> Any:
    depth = _nesting(text)
    if depth > MAX_NESTING:
        raise _refusal(kind, f"it is nested {depth:,} levels deep, and at most {MAX_NESTING} are read")
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=_no_number)
    except ValueError as error:
        raise _refusal(kind, f"it is not JSON: {error}") from error
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise _refusal(kind, "it holds half of a surrogate pair, which is no text")
    return value


def _integer(digits: str) -> int:
    """Reads a whole number; a larger one would lose its last digits in the library."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"{digits[:24]} does not fit into 64 bits")
    return int(digits)


def _fraction(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ValueError(f"{digits[:24]} is too large a number")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _nesting(text: str) -> int:
    """Returns how deep brackets are nested outside of strings, without recursion."""
    depth = deepest = 0
    in_string = is_escaped = False
    for character in text:
        if in_string:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


_NAMES = {
    StructureKind.JSON_OBJECT: "JSON object",
    StructureKind.JSON_SCHEMA: "JSON schema",
    StructureKind.REGEX: "regular expression",
    StructureKind.CHOICE: "list of choices",
    StructureKind.GRAMMAR: "grammar",
    StructureKind.STRUCTURAL_TAG: "structural tag",
}


def _refusal(kind: StructureKind, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured holds a {_NAMES[kind]} that cannot be used: {reason}.")
