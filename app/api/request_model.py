"""The base of the request models of ``/api``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_BODY_ENTRIES = 10_000
"""Maximum entries of a request's lists and objects together, nested ones included; more are refused. Pydantic makes an
error of each wrong entry and each unknown field, and no other request runs meanwhile."""

RequestId = Annotated[
    str | None, Field(min_length=1, max_length=100, description="Idempotency key, see POST /api/turns.")
]


class RequestModel(BaseModel):
    """Base of request models: refuses unknown fields, and bodies of too many entries before each is validated."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_entries(cls, data: Any) -> Any:
        if _has_more_entries(data, MAX_BODY_ENTRIES):
            raise PydanticCustomError(
                "too_many", "it has more than {limit} fields and entries; send fewer", {"limit": MAX_BODY_ENTRIES}
            )
        return data


def _has_more_entries(value: Any, limit: int) -> bool:
    """Whether the lists and objects of a JSON value have more than ``limit`` entries. Looks at no more than those."""
    found = 0
    left = [value]
    while left:
        container = left.pop()
        if not isinstance(container, list | dict):
            continue
        found += len(container)
        if found > limit:
            return True
        left += container.values() if isinstance(container, dict) else container
    return False
