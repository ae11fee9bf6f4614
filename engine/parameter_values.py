"""Checks the values of parameters: each kind's type and range, with an error that names parameter, value and range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from numbers import Integral, Real
from typing import Any

from engine.errors import InvalidRequestError
from engine.parameter_table import MAX_WHOLE, Kind, Parameter

MAX_SHOWN = 100
"""Characters of a refused value that the error message repeats; the rest is cut."""


def refusal(name: str, value: object, allowed: str) -> InvalidRequestError:
    """Returns the error for a value that is not ``allowed``."""
    return InvalidRequestError(f"{name} must be {allowed} (got {shown(value)})")


def shown(value: object) -> str:
    """Returns a refused value for an error message, cut to :data:`MAX_SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def checked_number(name: str, value: object, low: float, high: float) -> float | None:
    """Returns a value as a number within the bounds; None if it is None.

    Raises:
        InvalidRequestError: it is no number, or out of bounds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(name, value, f"a number between {low} and {high}")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not low <= number <= high:  # also refuses NaN, for which every comparison is false
        raise refusal(name, value, f"between {low} and {high}")
    return number


def checked_integer(name: str, value: object, low: int, high: int) -> int | None:
    """Returns a value as a whole number within the bounds; None if it is None.

    Raises:
        InvalidRequestError: it is no whole number, or out of bounds.
    """
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number, and some clients write 8 as 8.0
    allowed = f"between {low} and {high}"
    if high == MAX_WHOLE:
        above = isinstance(value, Integral) and int(value) > high
        allowed = f"at most {high}" if above else f"at least {low}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refusal(name, value, f"a whole number, {allowed}")
    number = int(value)
    if not low <= number <= high:
        raise refusal(name, value, allowed)
    return number


def checked_value(parameter: Parameter, value: object) -> Any:
    """Returns a parameter's value in its own type: a float, an int, a tuple of strings and so on.

    None is a number's default.

    Raises:
        InvalidRequestError: the value is out of range; names the parameter, the value and the range.
    """
    if value is None and (parameter.kind.is_number or parameter.default is None):
        return parameter.default
    if isinstance(value, Real) and not isinstance(value, bool):
        for alias, meant in parameter.aliases.items():
            if value == alias:
                return meant
    return _CHECKS[parameter.kind](parameter, value)


def _check_number(parameter: Parameter, value: object) -> float | None:
    return checked_number(parameter.name, value, parameter.low, parameter.high)


def _check_whole(parameter: Parameter, value: object) -> int | None:
    try:
        return checked_integer(parameter.name, value, int(parameter.low), int(parameter.high))
    except InvalidRequestError:
        if not parameter.range_note or (isinstance(value, Integral) and int(value) > parameter.high):
            raise
        raise refusal(parameter.name, value, f"a whole number, {parameter.range_note}") from None


def _check_flag(parameter: Parameter, value: object) -> bool:
    if not isinstance(value, bool):
        raise refusal(parameter.name, value, "true or false")
    return value


def _check_strings(parameter: Parameter, value: object) -> tuple[str, ...]:
    name, limit = parameter.name, parameter.max_chars
    strings = (value,) if isinstance(value, str) else _items(name, value, "a string or a list of strings")
    _check_length(parameter, strings)
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= limit:
            raise refusal(name, string, f"strings of 1 to {limit} characters")
    return strings


def _check_words(parameter: Parameter, value: object) -> tuple[str, ...]:
    name, limit = parameter.name, parameter.max_chars
    words = _items(name, value, f"a list of {parameter.range}")
    _check_length(parameter, words)
    for word in words:
        if not isinstance(word, str) or not word.strip() or len(word) > limit:
            raise refusal(name, word, f"words of 1 to {limit} characters, not only white space")
    return words


def _check_token_ids(parameter: Parameter, value: object) -> tuple[int, ...]:
    allowed = "a list of token ids, whole numbers of at least 0"
    items = _items(parameter.name, value, allowed)
    _check_length(parameter, items)
    return tuple(_token_id(parameter.name, item, allowed) for item in items)


def _check_token_biases(parameter: Parameter, value: object) -> dict[int, float]:
    name, low, high = parameter.name, parameter.low, parameter.high
    allowed = f"a mapping of token ids to numbers between {low} and {high}"
    if not isinstance(value, Mapping):
        raise refusal(name, value, allowed)
    if len(value) > parameter.max_items:
        raise refusal(name, f"{len(value)} token ids", f"for at most {parameter.max_items} token ids")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        number = checked_number(f"{name}[{token_id!r}]", bias, low, high)
        if number is None:
            raise refusal(f"{name}[{token_id!r}]", bias, f"a number between {low} and {high}")
        biases[_token_id(name, token_id, allowed)] = number
    return biases


_CHECKS: Mapping[Kind, Callable[[Parameter, object], Any]] = {
    Kind.NUMBER: _check_number,
    Kind.WHOLE: _check_whole,
    Kind.FLAG: _check_flag,
    Kind.STRINGS: _check_strings,
    Kind.WORDS: _check_words,
    Kind.TOKEN_IDS: _check_token_ids,
    Kind.TOKEN_BIASES: _check_token_biases,
}


def _check_length(parameter: Parameter, items: tuple[Any, ...]) -> None:
    if len(items) > parameter.max_items:
        kind = parameter.kind
        raise refusal(parameter.name, f"{len(items)} {kind}", f"at most {parameter.max_items} {kind}")


def _token_id(name: str, value: object, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise refusal(name, value, allowed)
    if int(value) > MAX_WHOLE:
        raise refusal(name, value, f"token ids of at most {MAX_WHOLE}")
    return int(value)


def _items(name: str, value: object, allowed: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise refusal(name, value, allowed)
    return tuple(value)
