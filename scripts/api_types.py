"""Writes app/ui/shared/api_types.d.ts, the JSON API's models as TypeScript types. Part of make docs.

The pages' scripts name these types in JSDoc, so a field that is renamed here fails ``make lint`` there.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from app.main import create_app  # noqa: E402
from app.settings import AppSettings  # noqa: E402
from app.turns.events import TurnEvent  # noqa: E402
from engine import Engine, EngineSettings  # noqa: E402

FILE = ROOT / "app" / "ui" / "shared" / "api_types.d.ts"
HEADER = "// Written by scripts/api_types.py (make docs) from the JSON API's models; edit those, not this.\n"
_PREFIX = "#/components/schemas/"
_PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
#: Fields of the models that clients do not get.
_INTERNAL = {"TurnText": {"sampled_at"}, "TurnReasoning": {"sampled_at"}}

Schema = Mapping[str, Any]


def api_types_text() -> str:
    """Returns the file's content."""
    openapi = create_app(AppSettings(), Engine(EngineSettings())).openapi()
    events = TypeAdapter(TurnEvent).json_schema(mode="serialization", ref_template=_PREFIX + "{model}")
    schemas = openapi["components"]["schemas"] | events["$defs"]
    operations = [
        operation
        for path, methods in openapi["paths"].items()
        if path.startswith("/api/")
        for operation in methods.values()
    ]
    sent = _reachable(schemas, [operation.get("requestBody", {}) for operation in operations])
    received = _reachable(schemas, [operation["responses"] for operation in operations] + [events])
    received.discard("HTTPValidationError")
    received.discard("ValidationError")
    names = sorted(sent | received)
    return HEADER + "".join("\n" + _declaration(name, schemas[name], is_sent=name in sent) for name in names)


def _reachable(schemas: Mapping[str, Schema], roots: Iterable[Any]) -> set[str]:
    """Returns the names of the schemas that ``roots`` refer to, directly or not."""
    found: set[str] = set()
    to_read = list(roots)
    while to_read:
        new = set(_references(to_read.pop())) - found
        found |= new
        to_read += [schemas[name] for name in new]
    return found


def _references(schema: Any) -> Iterator[str]:
    """Yields the names of the schemas that ``schema`` refers to."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "$ref":
                yield value.removeprefix(_PREFIX)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _declaration(name: str, schema: Schema, *, is_sent: bool) -> str:
    comment = _comment(schema.get("description"))
    if "properties" not in schema:
        return f"{comment}export type {_name(name)} = {_type(schema)};\n"
    lines = []
    for field, value in schema["properties"].items():
        if field in _INTERNAL.get(name, ()):
            continue
        # Responses have every field, requests those that have no default.
        mark = "?" if is_sent and field not in schema.get("required", ()) else ""
        lines.append(textwrap.indent(f"{_comment(value.get('description'))}{field}{mark}: {_type(value)};\n", "  "))
    return f"{comment}export interface {_name(name)} {{\n{''.join(lines)}}}\n"


def _type(schema: Schema) -> str:
    """Returns the TypeScript type of a schema.

    Raises:
        NotImplementedError: the schema uses a keyword that has no translation here.
    """
    if "$ref" in schema:
        return _name(schema["$ref"].removeprefix(_PREFIX))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(option) for option in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:  # of a tuple
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        item = _type(schema["items"])
        return f"({item})[]" if " " in item else f"{item}[]"
    if kind == "object":
        values = schema.get("additionalProperties", True)
        return f"Record<string, {_type(values) if isinstance(values, Mapping) else 'unknown'}>"
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if not schema.keys() - {"title", "description", "default"}:
        return "unknown"
    raise NotImplementedError(f"How is {schema} written in TypeScript?")


def _name(name: str) -> str:
    """Returns the type's name: ``Page_ConversationSummary_`` becomes ``ConversationSummaryPage``."""
    generic, _, argument = name.rstrip("_").partition("_")
    return argument + generic


def _comment(description: str | None) -> str:
    if not description:
        return ""
    text = " ".join(description.partition("\n\n")[0].split())
    return f"/** {text} */\n"


if __name__ == "__main__":
    FILE.write_text(api_types_text(), encoding="utf-8")
