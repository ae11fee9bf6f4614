"""Checks of what components are given: values that listeners return, and props."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

_Item = TypeVar("_Item", bound=Mapping[str, Any])


def validate_items(adapter: TypeAdapter[list[_Item]], value: object, *, whole: str, item: str, key: str) -> list[_Item]:
    """Returns ``value`` as a list of items.

    Args:
        whole: what the list is, for errors.
        item: what an item is, for errors; ``{}`` is its position.
        key: the items that have it differ in it.

    Raises:
        ValueError: ``value`` is no such list; says which item and key is wrong.
    """
    try:
        items = adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = first["loc"]
        place = ", ".join([item.format(path[0]), *map(str, path[1:])]) if path else whole
        raise ValueError(f"{place}: {first['msg']}.") from None
    counted = Counter(each[key] for each in items if key in each)
    if twice := [name for name, count in counted.items() if count > 1]:
        raise ValueError(f"{whole} needs different {key}s, but {twice[0]!r} occurs more than once.")
    return items


def validate_text(value: object, what: str) -> str:
    """Returns ``value``, a string; None is an empty one.

    Raises:
        ValueError: it is neither; ``what`` names it.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string (got {type(value).__name__}).")
    return value


def check_names(what: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raises ``ValueError`` if a name in ``given`` is not ``known``; ``what`` they are, in the plural."""
    if unknown := set(given) - set(known):
        raise ValueError(f"Unknown {what}: {', '.join(sorted(unknown))}. Known: {', '.join(known)}.")
