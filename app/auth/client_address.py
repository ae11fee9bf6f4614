"""The real client address of a request, also behind proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers

UNKNOWN = "unknown"


class TrustedProxies:
    """The proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted.

    Args:
        networks: addresses or networks, such as ``10.0.0.0/8``.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(one, strict=False) for one in networks)

    def client_address(self, scope: Mapping[str, Any]) -> str:
        """Returns the client's address: the last one in the chain that is not a trusted proxy.

        Entries before it in the header come from the client and prove nothing.
        """
        client = scope.get("client")
        address = str(client[0]) if client else UNKNOWN
        if not self._trusts(address):
            return address
        forwarded = ",".join(Headers(scope=dict(scope)).getlist("x-forwarded-for"))
        for hop in reversed([one.strip() for one in forwarded.split(",") if one.strip()]):
            try:
                address = str(ipaddress.ip_address(hop.strip("[]")))
            except ValueError:
                return address  # entries before a malformed one cannot be trusted
            if not self._trusts(address):
                return address
        return address

    def is_https(self, scope: Mapping[str, Any]) -> bool:
        """Whether a trusted proxy says that the browser connected by https."""
        client = scope.get("client")
        is_trusted = client is not None and self._trusts(str(client[0]))
        return is_trusted and Headers(scope=dict(scope)).get("x-forwarded-proto", "").strip().lower() == "https"

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)
