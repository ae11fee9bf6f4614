"""Narrows bounds in a JSON schema that llguidance would let a reply reach although they are exclusive.

With ``exclusiveMinimum`` 6 and ``maximum`` 6.75, llguidance 1.9.1 allows 6: where both bounds of a number have the same
whole part, and the exclusive one is whole, it is taken as inclusive. A bound that is not whole is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeGuard

_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords that hold values, not schemas."""
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_KEPT_DIGITS = 3
"""Decimal digits by which the step from a bound is smaller than the distance to the other bound."""


def narrow_bounds(schema: Any) -> Any:
    """Returns a schema, or a list of schemas, with such bounds narrowed.

    A bound moves by at most a thousandth of the distance to the other one.
    """
    if isinstance(schema, list):
        return [narrow_bounds(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    narrowed = {
        key: value
        if key in _VALUES
        else {name: narrow_bounds(one) for name, one in value.items()}
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping)
        else narrow_bounds(value)
        for key, value in schema.items()
    }
    for exclusive, others in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum")),
    ):
        bound = schema.get(exclusive)
        if not _is_number(bound):
            continue
        gaps = [schema[other] - bound for other in others if _is_number(schema.get(other))]
        gap = min(gaps, key=abs, default=1)
        if gap and abs(gap) < 1 and bound == int(bound):
            step = Decimal(1).scaleb(Decimal(gap).adjusted() - _KEPT_DIGITS)
            narrowed[exclusive] = float(Decimal(bound) + step.copy_sign(Decimal(gap)))
    return narrowed


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
