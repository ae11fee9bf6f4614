"""Checks the form of a JSON schema, so that an error names its place before anything is scheduled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS_OF_SCHEMAS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {
        *("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems"),
        *("not", "if", "then", "else", "contains", "propertyNames"),
    }
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
    pending: list[tuple[str, Any]] = [(path, schema)]
    while pending:  # no recursion: a request may hold ten thousand schemas, and other requests wait meanwhile
        place, each = pending.pop()
        if isinstance(each, bool):
            continue
        if not isinstance(each, dict):
            raise unsupported(place, "The field '{param}' must be a JSON schema: an object, true or false.")
        for keyword, value in each.items():
            if keyword == "$ref":
                _check_reference(f"{place}.$ref", value, schema, checked)
            elif keyword in _VALUES:
                _VALUES[keyword](f"{place}.{keyword}", value)
            else:
                pending += _inner_schemas(place, keyword, value)
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
    """Checks that a parsed JSON value is valid JSON of at most ``max_bytes``, and not too deep.

    Raises:
        PydanticCustomError: it is larger, deeper, or holds half of a surrogate pair, or a number that is none.
    """
    check_depth(path, value)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except UnicodeEncodeError:
        raise unsupported(path, "The field '{param}' is not valid text: it holds half of a surrogate pair.") from None
    except ValueError:
        raise unsupported(path, "The field '{param}' holds NaN or an infinite number, which JSON lacks.") from None
    if size > max_bytes:
        raise unsupported(path, f"The field '{{param}}' has {size} bytes; the maximum is {max_bytes}. Shorten it.")


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict) or isinstance(inner, list)  # noqa: SIM101 - twice as fast, for large lists
        ]
        if not level:
            return False
    return any(level)


def _inner_schemas(path: str, keyword: str, value: object) -> Sequence[tuple[str, Any]]:
    """Returns the schemas that a keyword holds, with their paths. An unknown keyword holds none."""
    place = f"{path}.{keyword}"
    if keyword in _SCHEMAS_BY_NAME:
        if not isinstance(value, dict):
            raise unsupported(place, "The field '{param}' must be an object that maps names to schemas.")
        return [(f"{place}.{name[:MAX_NAME_LENGTH]}", inner) for name, inner in value.items()]
    if keyword in _LISTS_OF_SCHEMAS or (keyword == "items" and isinstance(value, list)):  # before draft 2020-12
        if not isinstance(value, list) or not value:
            raise unsupported(place, "The field '{param}' must be a list of at least one schema.")
        return [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
    return [(place, value)] if keyword in _SCHEMAS else ()


def _check_type(path: str, value: object) -> None:
    kinds = value if isinstance(value, list) else [value]
    if not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
        allowed = ", ".join(sorted(_TYPES))
        raise unsupported(path, f"The field '{{param}}' must be one of {allowed}, or a list of these.")


def _check_required(path: str, value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise unsupported(path, "The field '{param}' must be a list of property names.")


def _check_enum(path: str, value: object) -> None:
    if not isinstance(value, list):
        raise unsupported(path, "The field '{param}' must be a list of values.")


_VALUES: Final[Mapping[str, Callable[[str, object], None]]] = {
    "type": _check_type,
    "required": _check_required,
    "enum": _check_enum,
}


def _check_reference(path: str, reference: object, root: dict[str, Any], checked: set[str]) -> None:
    """Follows a chain of references; each must lead to another schema of the same document.

    Args:
        checked: references that are known to lead to a schema, to which those of this chain are added. Without it, a
            chain of n references would take n² steps.
    """
    if not isinstance(reference, str):
        raise unsupported(path, "The field '{param}' must be a string such as \"#/$defs/item\".")
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
