"""An HTTP client whose connections go to checked addresses only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpcore2
import httpx2

from app.egress.policy import EgressPolicy

MAX_BODY_BYTES = 16 * 2**20
"""Bytes of a response that are read; more is an error. A stream of events may be longer: its reader limits each."""


class BodyTooLargeError(httpx2.StreamError):
    """A response is longer than :data:`MAX_BODY_BYTES`."""


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._body:
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise BodyTooLargeError(f"The response has more than {MAX_BODY_BYTES // 2**20} MiB.")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that the policy has checked. TLS still verifies the host's name."""

    def __init__(self, policy: EgressPolicy, backend: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._policy = policy
        self._backend = backend or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._policy.addresses(host, port)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise NotImplementedError("requests to other servers use no Unix sockets")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _CheckedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, policy: EgressPolicy) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False), network_backend=CheckedBackend(policy)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # Compression was not asked for. What is compressed all the same is not unpacked: it could grow a thousandfold.
        headers = [(name, value) for name, value in response.headers.multi_items() if name != "content-encoding"]
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        stream = response.stream if is_events else _BoundedBody(response.stream)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)


def checked_client(
    policy: EgressPolicy, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0
) -> httpx2.AsyncClient:
    """Returns a client for requests to other servers.

    It reads at most :data:`MAX_BODY_BYTES` of a response, follows no redirects, and ignores proxies of the environment:
    a proxy would connect where nothing is checked.
    """
    return httpx2.AsyncClient(
        transport=_CheckedTransport(policy),
        headers={"Accept-Encoding": "identity", **(headers or {})},
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
    )
