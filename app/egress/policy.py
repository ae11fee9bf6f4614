"""Decides which addresses this server may connect to on behalf of users, models and documents.

A URL that a model, a tool or a document names must not reach what only this machine can reach: cloud metadata,
databases, other services of the network (server-side request forgery). So a host's addresses are resolved once, each of
them is checked, and the connection goes to an address that was checked: a second answer of the name server changes
nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host for a port."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address in their last 32 bits (RFC 6052)."""


class EgressRefusedError(Exception):
    """A connection that the policy does not allow; says why and what to do."""


async def resolve_host(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, as the system resolves it.

    Raises:
        OSError: the host is unknown.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """Public addresses, and the private ones that the operator has listed.

    Args:
        hosts: names of hosts that may have private addresses, in lower case.
        networks: private addresses that may be connected to.
        resolve: the name service.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPNetwork, ...] = ()
    resolve: Resolve = resolve_host

    @classmethod
    def allowing(cls, listed: Iterable[str], resolve: Resolve = resolve_host) -> EgressPolicy:
        """Makes the policy from a list of host names, addresses and networks such as ``10.0.0.0/8``."""
        hosts: set[str] = set()
        networks: list[IPNetwork] = []
        for one in listed:
            try:
                networks.append(ipaddress.ip_network(one, strict=False))
            except ValueError:
                hosts.add(one.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks), resolve)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host, all of which may be connected to.

        Raises:
            EgressRefusedError: one of them may not, or there are none.
        """
        try:
            found = await self.resolve(host, port)
        except OSError as error:
            raise EgressRefusedError(f"The host {host} cannot be found: {error.strerror or error}.") from error
        except UnicodeError as error:  # a part of the name is empty, or longer than 63 characters
            raise EgressRefusedError(f"{host} is no valid name of a host.") from error
        if not found:
            raise EgressRefusedError(f"The host {host} has no address.")
        if host.lower().rstrip(".") not in self.hosts:
            for address in found:
                self._check(host, address)
        return found

    def _check(self, host: str, address: str) -> None:
        ip = ipaddress.ip_address(address.partition("%")[0])  # an IPv6 address may name its interface
        if not is_public(ip) and not any(ip in network for network in self.networks):
            raise EgressRefusedError(
                f"{host} has the private address {ip}, which this server does not connect to. If it should, add "
                f"{host} to APP_EGRESS_ALLOW."
            )


def is_public(ip: IPAddress) -> bool:
    """Whether an address belongs to the public internet; of an address that wraps another one, whether that does."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _inner_address(ip)
        if inner is not None:
            return is_public(inner)
    return ip.is_global and not ip.is_multicast


def _inner_address(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Returns the IPv4 address that packets to ``ip`` end up at, if it wraps one."""
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip.teredo is not None:
        return ip.teredo[1]
    return ip.ipv4_mapped or ip.sixtofour
