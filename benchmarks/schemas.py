"""Makes JSON schemas such as programs send: records of shops, desks, clinics and agents, put together at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_LEAVES: dict[str, Schema] = {
    "id": {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3,8}$"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email"},
    "date": {"type": "string", "format": "date"},
    "created_at": {"type": "string", "format": "date-time"},
    "url": {"type": "string", "pattern": "^https?://[a-z0-9.-]+(/[^ ]*)?$"},
    "phone": {"type": "string", "pattern": "^\\+[1-9][0-9]{6,14}$"},
    "name": {"type": "string", "minLength": 1, "maxLength": 80},
    "summary": {"type": "string", "maxLength": 600},
    "amount": {"type": "number", "minimum": 0, "maximum": 100_000},
    "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
    "rating": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "currency": {"type": "string", "enum": ["EUR", "USD", "GBP", "JPY", "CHF", "SEK"]},
    "status": {"enum": ["open", "pending", "solved", "closed", "on-hold"]},
    "priority": {"enum": ["low", "normal", "high", "urgent"]},
    "language": {"type": "string", "pattern": "^[a-z]{2}(-[A-Z]{2})?$"},
    "is_paid": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
    "version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
    "kind": {"const": "event"},
    "labels": {"type": "array", "items": {"type": "string", "maxLength": 24}, "maxItems": 8, "minItems": 0},
}
_RECORDS = ("order", "customer", "ticket", "invoice", "shipment", "address", "patient", "event", "step", "citation")


def make_schemas(count: int, seed: int = 11) -> list[Schema]:
    """Returns ``count`` different schemas, the same for the same seed."""
    noise = random.Random(seed)
    makers: tuple[Callable[[random.Random], Schema], ...] = (_record, _list, _union, _with_definitions, _map)
    return [makers[index % len(makers)](noise) | {"title": f"schema {index}"} for index in range(count)]


def _record(noise: random.Random, depth: int = 2) -> Schema:
    names = noise.sample(sorted(_LEAVES), noise.randint(3, 10))
    properties: dict[str, Any] = {name: _LEAVES[name] for name in names}
    if depth:
        for name in noise.sample(_RECORDS, noise.randint(0, 2)):
            properties[name] = _record(noise, depth - 1)
    required = [name for name in properties if noise.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(noise: random.Random) -> Schema:
    items = _record(noise, 1)
    listed = {"type": "array", "items": items, "minItems": noise.randint(0, 2), "maxItems": noise.randint(3, 40)}
    return {"type": "object", "properties": {"items": listed}, "required": ["items"], "additionalProperties": False}


def _union(noise: random.Random) -> Schema:
    kinds = noise.sample(_RECORDS, noise.randint(2, 4))
    choices = []
    for kind in kinds:
        record = _record(noise, 0)
        properties = {"type": {"const": kind}, **record["properties"]}
        choices.append(record | {"properties": properties, "required": ["type", *record["required"]]})
    return {"anyOf": choices}


def _with_definitions(noise: random.Random) -> Schema:
    node = _record(noise, 0)
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": noise.randint(2, 6)}
    node = node | {"properties": {**node["properties"], "children": children}}
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def _map(noise: random.Random) -> Schema:
    return {"type": "object", "additionalProperties": _record(noise, 0), "minProperties": 1}
