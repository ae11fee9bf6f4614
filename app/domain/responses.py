"""Ids of stored responses and of their items, as OpenAI's API spells them."""

from __future__ import annotations

import re
import uuid

_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
_ITEM_ID = re.compile(r"[a-z]{2,3}_([0-9a-f]{32})_(i?)([0-9]{1,6})")


def response_id_of(id: str) -> str:
    """Returns the API's id of the response with this UUID."""
    return f"resp_{id.replace('-', '')}"


def id_of_response(response_id: str) -> str | None:
    """Returns the UUID in an id of the API; None if it is none."""
    found = _RESPONSE_ID.fullmatch(response_id)
    return None if found is None else str(uuid.UUID(found[1]))


def place_of_item(item_id: str) -> tuple[str, bool, int] | None:
    """Returns where an item is: its response's id, whether it is one of the input, and its place there.

    None if the id is not one that this server made.
    """
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None else (f"resp_{found[1]}", found[2] == "i", int(found[3]))
