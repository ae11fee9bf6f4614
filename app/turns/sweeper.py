"""Interrupts replies whose process has died while this process lives."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from datetime import datetime

from app.errors import StorageUnavailable
from app.store.chat.leases import Leases

_log = logging.getLogger(__name__)


async def sweep_expired(leases: Leases, lease_seconds: float, alive: Callable[[], Collection[str]]) -> None:
    """Interrupts replies whose lease has expired, every third of a lease, until cancelled. For PostgreSQL.

    A lease that expires while the database is unavailable says nothing about its owner. So a turn is taken only if its
    lease had expired by the previous look and the database has answered in time since. After a late answer nothing is
    taken for a whole lease, in which every live owner renews its own.

    Args:
        alive: the turns of this process, which are known to live without a lease: a locked row may have prevented
            the renewal.
    """
    third = lease_seconds / 3
    last_look: datetime | None = None
    while True:
        await asyncio.sleep(third)
        began = time.monotonic()
        try:
            now = await leases.now()
            if last_look is not None and (swept := await leases.sweep_expired(last_look, alive())):
                _log.warning(
                    "%d replies were interrupted: the process that wrote them did not renew their leases", swept
                )
            last_look = now
            in_time = time.monotonic() - began < third
        except StorageUnavailable:
            in_time = False
        if not in_time:
            last_look = None
            await asyncio.sleep(lease_seconds)
