"""Where a request really comes from, behind a proxy too."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers

UNKNOWN = "unknown"


class TrustedProxies:
    """Which neighbours' ``X-Forwarded-For`` is believed.

    Args:
        networks: addresses or networks, such as ``10.0.0.0/8``.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(one, strict=False) for one in networks)

    def client_address(self, scope: Mapping[str, Any]) -> str:
        """The address of whoever asks: the last one in the chain that is no proxy of ours.

        What stands before it in the header was written by the client and proves nothing.
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
                return address  # nothing before what is no address can be believed
            if not self._trusts(address):
                return address
        return address

    def is_https(self, scope: Mapping[str, Any]) -> bool:
        """Whether the browser came by https, as far as a proxy of ours says."""
        client = scope.get("client")
        told = client is not None and self._trusts(str(client[0]))
        return told and Headers(scope=dict(scope)).get("x-forwarded-proto", "").strip().lower() == "https"

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)
