"""Identifiers: UUIDv7, so that ids made later sort later."""

from __future__ import annotations

import uuid
from datetime import datetime

import uuid_utils

#: The person at this computer, while there are no accounts. The first migration makes the row.
LOCAL_USER_ID = "00000000-0000-7000-8000-000000000001"


_REQUESTS = uuid.UUID("0198c000-de5c-7a7e-8000-000000000001")


def id_of_request(user_id: str, request_id: str) -> str:
    """The id that a request of this user's always leads to, so that a repeated one is recognised."""
    return str(uuid.uuid5(_REQUESTS, f"{user_id} {request_id}"))


def new_id() -> str:
    """A new id, greater than every id this process made before."""
    return str(uuid_utils.uuid7())


def first_id_of(moment: datetime) -> str:
    """What every id made at ``moment`` or later is greater than, and every earlier one less."""
    milliseconds = f"{int(moment.timestamp() * 1000):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}-0000-0000-000000000000"
