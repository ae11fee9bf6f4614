"""Sends what webhooks are to be told, while the server runs."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable

import httpx2

from app.domain.webhooks import sign
from app.egress.client import checked_client
from app.egress.policy import EgressPolicy, EgressRefusedError
from app.errors import StorageUnavailable
from app.store.cases.delivery_queue import DeliveryQueue, DueDelivery

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  #: between two looks for what is due
FORGET_SECONDS = 3600.0  #: between two deletions of old deliveries
MAX_AT_ONCE = 8  #: requests; one that hangs holds up none of the others
TIMEOUT_SECONDS = 10.0  #: for a whole request
LEASE_SECONDS = 60.0  #: after which another process makes the delivery of one that was killed
MAX_ERROR_CHARS = 300


class WebhookSender:
    """Makes deliveries, each at least once: a receiver knows a second one by its ``webhook-id``."""

    def __init__(self, queue: DeliveryQueue, policy: EgressPolicy, *, clock: Callable[[], float] = time.time) -> None:
        self._queue = queue
        self._policy = policy
        self._clock = clock
        self._client: httpx2.AsyncClient | None = (
            None  # made when there is something to send: it reads all certificates
        )

    async def run(self) -> None:
        """Runs until cancelled. Survives an unavailable database, and tries again."""
        until_forgetting = 0.0
        try:
            while True:
                sent = 0
                try:
                    sent = await self.send_due()
                    if until_forgetting <= 0:
                        await self._queue.delete_old()
                        until_forgetting = FORGET_SECONDS
                except StorageUnavailable as error:
                    _log.warning("webhooks wait for the database: %s", error.message)
                if not sent:
                    await asyncio.sleep(LOOK_SECONDS)
                    until_forgetting -= LOOK_SECONDS
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the connections to receivers."""
        if self._client is not None:
            await self._client.aclose()

    async def send_due(self) -> int:
        """Makes the deliveries that are due, at most :data:`MAX_AT_ONCE`, and returns how many it tried."""
        due = await self._queue.claim(MAX_AT_ONCE)
        if due:
            if self._client is None:
                self._client = checked_client(self._policy, timeout_s=TIMEOUT_SECONDS)
            client = self._client
            await asyncio.gather(*(self._send(client, one) for one in due))
        return len(due)

    async def _send(self, client: httpx2.AsyncClient, due: DueDelivery) -> None:
        body = json.dumps(due.payload, ensure_ascii=False, separators=(",", ":")).encode()
        timestamp = int(self._clock())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Deskmate",
            "webhook-id": due.event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(due.secrets, due.event_id, timestamp, body),
        }
        status: int | None = None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                # The body of the response is not read: it may be endless.
                async with client.stream("POST", due.url, content=body, headers=headers) as response:
                    status = response.status_code
            error = _refusal(status)
        except TimeoutError:
            error = f"The receiver did not answer within {TIMEOUT_SECONDS:.0f} seconds."
        except EgressRefusedError as refused:
            error = str(refused)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as failed:
            error = f"The receiver cannot be reached: {failed or type(failed).__name__}"
        except Exception as failed:  # one receiver must not keep all others from being told
            _log.exception("a webhook's request failed")
            error = f"The request failed: {type(failed).__name__}"
        if error is None:
            assert status is not None
            await self._queue.delivered(due, status)
        else:
            await self._queue.failed(due, error[:MAX_ERROR_CHARS], status)


def _refusal(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"The receiver answered {status}, a redirect, which is not followed. Enter the address that it leads to."
    return f"The receiver answered {status}."
