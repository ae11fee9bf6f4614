"""Where a page of a desk's list ends: a moment and an id, which the next page begins after."""

from __future__ import annotations

from datetime import datetime

from app.errors import InvalidInput
from app.store.db.rows import is_id


def encode_cursor(moment: datetime, id: str) -> str:
    return f"{moment.isoformat()} {id}"


def decode_cursor(cursor: str) -> tuple[datetime, str]:
    """Returns the moment, with its time zone, and the id.

    Raises:
        InvalidInput: it is not a valid cursor.
    """
    at, _, id = cursor.partition(" ")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not is_id(id):
        raise InvalidInput("This cursor is not valid. Start again without one.")
    return moment, id
