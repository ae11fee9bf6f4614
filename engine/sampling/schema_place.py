"""Finds the part of a JSON schema that makes it unusable, since the grammar library names only the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

MAX_SEARCH_S: Final = 0.1
"""Seconds of a search; where they end, the place is the smallest part found by then."""

_SCHEMAS: Final = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else")
_LISTS_OF_SCHEMAS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS_OF_SCHEMAS: Final = ("properties", "patternProperties", "dependentSchemas")
_DEFINITIONS: Final = ("$defs", "definitions")


def find_place(schema: dict[str, Any], reason: str, reason_of: Callable[[dict[str, Any]], str | None]) -> str:
    """Returns the path of the smallest part that is refused for this reason, such as ``properties.a.items``.

    Empty for the schema itself.

    Args:
        reason_of: returns why a schema is refused; None if it is not.
    """
    deadline = monotonic() + MAX_SEARCH_S
    definitions: dict[str, Any] = {keyword: schema[keyword] for keyword in _DEFINITIONS if keyword in schema}
    place, part = _follow(schema, "", schema)
    places = {place}
    while True:
        for path, child in _children(place, part):
            path, child = _follow(schema, path, child)
            if path in places or not isinstance(child, dict):
                continue
            if monotonic() > deadline:
                return place
            if reason_of({**child, **definitions}) == reason:
                place, part = path, child
                places.add(path)
                break
        else:
            return place


def _children(place: str, part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the paths and schemas inside a part."""
    start = f"{place}." if place else ""
    for keyword in _MAPS_OF_SCHEMAS:
        if isinstance(schemas := part.get(keyword), dict):
            yield from ((f"{start}{keyword}.{name}", child) for name, child in schemas.items())
    for keyword in _LISTS_OF_SCHEMAS:
        if isinstance(listed := part.get(keyword), list):
            yield from ((f"{start}{keyword}[{index}]", child) for index, child in enumerate(listed))
    yield from ((f"{start}{keyword}", part[keyword]) for keyword in _SCHEMAS if keyword in part)


def _follow(root: dict[str, Any], path: str, part: Any) -> tuple[str, Any]:
    """Returns the definition that a part refers to, with its path; any other part as it is."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    for keyword in _DEFINITIONS:
        prefix, definitions = f"#/{keyword}/", root.get(keyword)
        if isinstance(reference, str) and reference.startswith(prefix) and isinstance(definitions, dict):
            name = reference.removeprefix(prefix)
            if isinstance(definitions.get(name), dict):
                return f"{keyword}.{name}", definitions[name]
    return path, part
