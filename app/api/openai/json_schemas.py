"""Checks the form of a JSON schema, so that an error names its place before anything is scheduled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from app.api.openai.fields import unsupported

MAX_SCHEMA_BYTES = 128 * 1024
"""Maximum size of a schema as JSON; larger ones are refused."""
MAX_SCHEMA_DEPTH = 64
"""Maximum nesting of a schema's objects and lists; deeper ones are refused."""
MAX_NAME_LENGTH = 64
"""Maximum characters of a property's name in an error's path; the rest is cut off."""

_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
#: Keywords by what they hold.
_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS_OF_SCHEMAS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS: Final = (
    *("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems"),
    *("not", "if", "then", "else", "contains", "propertyNames"),
)


def check_object_schema(path: str, schema: object) -> dict[str, Any]:
    """Returns ``schema`` if it is a well-formed JSON schema of an object.

    Args:
        path: where it is, relative to the validator that calls this.

    Raises:
        PydanticCustomError: it is malformed, too large, too deep, or a reference in it leads nowhere; names the place.
    """
    if not isinstance(schema, dict):
        raise unsupported(path, "The field '{param}' must be a JSON schema, an object.")
    check_json_size(path, schema, MAX_SCHEMA_BYTES)
    if schema.get("type", "object") != "object":
        raise unsupported(f"{path}.type", "The field '{param}' must be \"object\": a function's arguments are one.")
    checked: set[str] = set()
    for place, each in _subschemas(path, schema):
        _check_keywords(place, each)
        if isinstance(each.get("$ref"), str):
            _check_reference(f"{place}.$ref", each["$ref"], schema, checked)
    return schema


def check_depth(path: str, value: object) -> None:
    """Checks that a parsed JSON value is nested at most :data:`MAX_SCHEMA_DEPTH` levels deep.

    Raises:
        PydanticCustomError: it is deeper.
    """
    if _depth_exceeds(value, MAX_SCHEMA_DEPTH):
        raise unsupported(
            path, f"The field '{{param}}' is nested more than {MAX_SCHEMA_DEPTH} levels deep. Flatten it."
        )


def check_json_size(path: str, value: object, max_bytes: int) -> None:
    """Checks that a parsed JSON value is valid text of at most ``max_bytes``, and not too deep.

    Raises:
        PydanticCustomError: it is larger, deeper, or holds half of a surrogate pair.
    """
    check_depth(path, value)
    try:
        size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError:
        raise unsupported(path, "The field '{param}' is not valid text: it holds half of a surrogate pair.") from None
    if size > max_bytes:
        raise unsupported(path, f"The field '{{param}}' has {size} bytes; the maximum is {max_bytes}. Shorten it.")


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _subschemas(path: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the schema and all inside it, with their paths; not ``true`` and ``false``, which hold nothing."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise unsupported(path, "The field '{param}' must be a JSON schema: an object, true or false.")
    yield path, schema
    for keyword in _SCHEMAS_BY_NAME:
        named = schema.get(keyword, {})
        if not isinstance(named, dict):
            raise unsupported(f"{path}.{keyword}", "The field '{param}' must be an object that maps names to schemas.")
        for name, inner in named.items():
            yield from _subschemas(f"{path}.{keyword}.{name[:MAX_NAME_LENGTH]}", inner)
    for keyword in _LISTS_OF_SCHEMAS:
        if keyword in schema:
            yield from _listed(f"{path}.{keyword}", schema[keyword])
    for keyword in _SCHEMAS:
        inner = schema.get(keyword, True)
        if keyword == "items" and isinstance(inner, list):  # before draft 2020-12
            yield from _listed(f"{path}.{keyword}", inner)
        else:
            yield from _subschemas(f"{path}.{keyword}", inner)


def _listed(path: str, schemas: object) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schemas, list) or not schemas:
        raise unsupported(path, "The field '{param}' must be a list of at least one schema.")
    for index, inner in enumerate(schemas):
        yield from _subschemas(f"{path}[{index}]", inner)


def _check_keywords(path: str, schema: dict[str, Any]) -> None:
    kinds = schema.get("type", "object")
    if not all(isinstance(kind, str) and kind in _TYPES for kind in (kinds if isinstance(kinds, list) else [kinds])):
        allowed = ", ".join(sorted(_TYPES))
        raise unsupported(f"{path}.type", f"The field '{{param}}' must be one of {allowed}, or a list of these.")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise unsupported(f"{path}.required", "The field '{param}' must be a list of property names.")
    if not isinstance(schema.get("enum", []), list):
        raise unsupported(f"{path}.enum", "The field '{param}' must be a list of values.")
    if not isinstance(schema.get("$ref", ""), str):
        raise unsupported(f"{path}.$ref", "The field '{param}' must be a string such as \"#/$defs/item\".")


def _check_reference(path: str, reference: str, root: dict[str, Any], checked: set[str]) -> None:
    """Follows a chain of references; each must lead to another schema of the same document.

    Args:
        checked: references that are known to lead to a schema, to which those of this chain are added. Without it, a
            chain of n references would take n² steps.
    """
    seen: set[str] = set()
    target: Any = {"$ref": reference}
    while isinstance(target, dict) and isinstance(target.get("$ref"), str):
        pointer = target["$ref"]
        if pointer in checked:
            break
        if pointer in seen:
            raise unsupported(path, "The reference '{param}' only leads back to itself.")
        seen.add(pointer)
        target = _resolve(pointer, root)
        if not isinstance(target, dict | bool):
            raise unsupported(
                path, "The reference '{param}' leads to no schema of this document. Write it like \"#/$defs/item\"."
            )
    checked |= seen


def _resolve(pointer: str, root: dict[str, Any]) -> object:
    """Returns what a JSON pointer behind ``#`` leads to, or None. RFC 6901."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    target: object = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            return None
    return target
