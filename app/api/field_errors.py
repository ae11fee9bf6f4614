"""Says in plain words what a field must be, from Pydantic's errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_WHOLE: Final = "must be a whole number"
_REQUIREMENTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "bool_type": lambda _: "must be true or false",
    "dict_type": lambda _: "must be an object",
    "model_type": lambda _: "must be an object",
    "model_attributes_type": lambda _: "must be an object",
    "list_type": lambda _: "must be a list",
    "string_type": lambda _: "must be a string",
    "string_unicode": lambda _: "must be valid text",
    "int_type": lambda _: _WHOLE,
    "int_from_float": lambda _: _WHOLE,
    "int_parsing": lambda _: _WHOLE,
    "int_parsing_size": lambda _: "must be a smaller whole number",
    "float_type": lambda _: "must be a number",
    "float_parsing": lambda _: "must be a number",
    "bool_parsing": lambda _: "must be true or false",
    "finite_number": lambda _: "must be a finite number",
    "missing": lambda _: "is missing",
    "too_many": lambda about: f"has {about['size']} fields; the maximum is {about['limit']}",
    "literal_error": lambda about: f"must be {about['expected']}",
    "enum": lambda about: f"must be {about['expected']}",
    "less_than_equal": lambda about: f"must be at most {_number(about['le'])}",
    "less_than": lambda about: f"must be less than {_number(about['lt'])}",
    "greater_than_equal": lambda about: f"must be at least {_number(about['ge'])}",
    "greater_than": lambda about: f"must be greater than {_number(about['gt'])}",
    "string_too_long": lambda about: f"must have at most {_counted(about['max_length'], 'character')}",
    "string_too_short": lambda about: f"must have at least {_counted(about['min_length'], 'character')}",
    "too_long": lambda about: f"must have at most {_counted(about['max_length'], 'entry', 'entries')}",
    "too_short": lambda about: f"must have at least {_counted(about['min_length'], 'entry', 'entries')}",
    "string_pattern_mismatch": lambda about: f"must match the regular expression {about['pattern']}",
}
"""What a field must be, by the type of Pydantic's error, from the error's context."""

_MEMBERS: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "dict[str,any]": "an object",
    "list[str]": "a list of strings",
    "literal['never']": '"never"',
    "str": "a string",
}
"""The members of unions, by the name that Pydantic puts into the paths of their errors."""


def requirement_of(error: Mapping[str, Any]) -> str:
    """Returns what follows the field's name in the sentence: that it "must be a string"."""
    write = _REQUIREMENTS.get(error["type"])
    return "has a value that is not allowed" if write is None else write(error.get("ctx", {}))


def union_members(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns what a field may be whose type is a union, if the first error is about its first member; else None."""
    place = errors[0]["loc"]
    if len(place) < 2 or place[-1] not in _MEMBERS:
        return None
    depth = len(place) - 1
    named = [
        error["loc"][depth] for error in errors if len(error["loc"]) > depth and error["loc"][:depth] == place[:-1]
    ]
    names = list(dict.fromkeys(map(str, named)))
    if len(names) < 2 or any(name not in _MEMBERS for name in names):
        return None
    *others, last = [_MEMBERS[name] for name in names]
    return f"{', '.join(others)} or {last}"


def _number(value: float) -> str:
    return str(int(value) if value == int(value) else value)


def _counted(number: int, one: str, more: str | None = None) -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
