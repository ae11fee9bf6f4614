"""Pings a pooled connection before its use, but only after a pause: a busy server saves a round trip each time."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

PING_AFTER_SECONDS = 1.0
"""A connection that was used within this time is taken to be alive."""

_CHECKED_AT = "checked_at"  # when it was opened, or last pinged
_RETURNED_AT = "returned_at"


def ping_after_pauses(engine: Engine) -> None:
    """Replaces dead connections of the pool before they are used, as ``pool_pre_ping`` does.

    If the database restarts, those that were returned within :data:`PING_AFTER_SECONDS` are not checked: transactions
    that take them may fail, and write nothing then; reads are repeated. Once one has failed, all that are older are
    pinged before they are used again, also those that were in use then.
    """
    disconnected_at = 0.0

    @event.listens_for(engine, "connect")
    def record_connect(_connection: Any, record: Any) -> None:
        record.info[_CHECKED_AT] = monotonic()

    @event.listens_for(engine, "checkin")
    def record_checkin(_connection: Any, record: Any) -> None:
        record.info[_RETURNED_AT] = monotonic()

    @event.listens_for(engine, "invalidate")
    def record_invalidation(_connection: Any, _record: Any, _error: BaseException | None) -> None:
        nonlocal disconnected_at
        disconnected_at = monotonic()

    @event.listens_for(engine, "checkout")
    def ping_if_stale(connection: Any, record: Any, _proxy: Any) -> None:
        now = monotonic()
        returned_at = record.info.get(_RETURNED_AT, math.inf)  # one that has just been opened was not returned yet
        if disconnected_at < record.info[_CHECKED_AT] and returned_at > now - PING_AFTER_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error
        record.info[_CHECKED_AT] = now
