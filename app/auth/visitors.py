"""The visitor of a request: a contact of an inbox, known by a bearer token. The guard sets it, handlers read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from fastapi import Request

_KEY = "visitor"
_SITE_PREFIX = 64  # bits of an IPv6 address that one site has for itself


@dataclass(frozen=True, slots=True)
class VisitorIdentity:
    """A contact, and the token that named it."""

    contact_id: str
    inbox_id: str
    token_hash: str


FindVisitor = Callable[[str], Awaitable[VisitorIdentity | None]]
"""Finds the visitor of a token; None if the token is unknown or has expired. Raises ``StorageUnavailable``."""


def set_visitor(scope: MutableMapping[str, Any], visitor: VisitorIdentity) -> None:
    """Attaches the visitor to an ASGI scope. Only the guard calls this."""
    scope.setdefault("state", {})[_KEY] = visitor


def visitor_of(request: Request) -> VisitorIdentity:
    """Returns the visitor of a request.

    Raises:
        RuntimeError: the route is none of a visitor's (a bug, not the caller's mistake).
    """
    visitor = request.scope.get("state", {}).get(_KEY)
    if isinstance(visitor, VisitorIdentity):
        return visitor
    raise RuntimeError("The request has no visitor: its route is not one of theirs.")


def site_of(address: str) -> str:
    """The part of an address that tells one client from another: an IPv6 client has 2^64 of them."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _SITE_PREFIX), strict=False))
