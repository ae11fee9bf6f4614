"""Says in plain words what a field must be, from Pydantic's errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_REQUIREMENTS: Final[Mapping[str, str]] = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "string_unicode": "must be valid text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "missing": "is missing",
    "too_many": "has {size} fields; the maximum is {limit}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "string_too_long": "must have at most {max_length} {characters}",
    "string_too_short": "must have at least {min_length} {characters}",
    "too_long": "must have at most {max_length} {entries}",
    "too_short": "must have at least {min_length} {entries}",
    "string_pattern_mismatch": "must match the regular expression {pattern}",
}
"""What a field must be, by the type of Pydantic's error, with the names of the error's context."""

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
    requirement = _REQUIREMENTS.get(error["type"], "has a value that is not allowed")
    context = error.get("ctx", {})
    is_one = context.get("max_length", context.get("min_length")) == 1
    return requirement.format(
        **{name: _plain_number(value) for name, value in context.items()},
        characters="character" if is_one else "characters",
        entries="entry" if is_one else "entries",
    )


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


def _plain_number(value: object) -> object:
    """Returns a whole number without its decimals, and anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
