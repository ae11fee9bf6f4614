"""Identifiers: UUIDv7, so that ids made later sort later."""

from __future__ import annotations

import uuid_utils

#: The person at this computer, while there are no accounts. The first migration makes the row.
LOCAL_USER_ID = "00000000-0000-7000-8000-000000000001"


def new_id() -> str:
    """A new id, greater than every id this process made before."""
    return str(uuid_utils.uuid7())
