"""Wakes snoozed cases while the server runs, and forgets visitors' tokens that have expired."""

from __future__ import annotations

import asyncio
import logging

from app.errors import StorageUnavailable
from app.store.cases.snoozes import Snoozes
from app.store.cases.visitors import Visitors

_log = logging.getLogger(__name__)

WAKE_SECONDS = 5.0  #: between two looks for cases to wake
FORGET_SECONDS = 3600.0  #: between two deletions of expired tokens


async def sweep_cases(snoozes: Snoozes, visitors: Visitors) -> None:
    """Runs until cancelled. Survives an unavailable database, and tries again."""
    until_forgetting = 0.0
    while True:
        try:
            await snoozes.wake_due()
            if until_forgetting <= 0:
                await visitors.delete_expired()
                until_forgetting = FORGET_SECONDS
        except StorageUnavailable as error:
            _log.warning("snoozed cases wait for the database: %s", error.message)
        await asyncio.sleep(WAKE_SECONDS)
        until_forgetting -= WAKE_SECONDS
