"""Identifiers: UUIDv7, so that later ids sort later."""

from __future__ import annotations

import uuid
from datetime import datetime

import uuid_utils

#: The only user of a server without accounts. The first migration inserts the row.
LOCAL_USER_ID = "00000000-0000-7000-8000-000000000001"


_REQUESTS = uuid.UUID("0198c000-de5c-7a7e-8000-000000000001")


def id_of_request(user_id: str, request_id: str) -> str:
    """A deterministic id for a user's request, so that a repeated request is recognised."""
    return str(uuid.uuid5(_REQUESTS, f"{user_id} {request_id}"))


def new_id() -> str:
    """A new id, greater than all earlier ids of this process."""
    return str(uuid_utils.uuid7())


def first_id_of(moment: datetime) -> str:
    """A lower bound of all ids made at ``moment`` or later, and greater than all earlier ones."""
    milliseconds = f"{int(moment.timestamp() * 1000):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}-0000-0000-000000000000"
