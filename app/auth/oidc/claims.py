"""What an account takes from a provider's claims: groups, names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from app.domain.accounts import MAX_NAME_CHARS, checked_name
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput

MAX_LABEL_CHARS = 200


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str] | None:
    """Returns the groups in a claim; None if there is no such claim.

    Args:
        claim: its name, or its path with dots, such as Keycloak's ``realm_access.roles``.
    """
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for name in claim.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        return None
    if isinstance(found, str):
        return frozenset([found])
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()


def username_of(claims: Mapping[str, Any]) -> str:
    """Returns the username of a new account: the provider's, or a verified e-mail address, or one made of the subject.

    It is a name and nothing else: no account is ever found by it.
    """
    offered = [claims.get("preferred_username")]
    if claims.get("email_verified") is not False:
        offered.append(claims.get("email"))
    for name in offered:
        if isinstance(name, str):
            try:
                return checked_name(name)
            except InvalidInput:
                continue
    return f"user-{hashlib.sha256(str(claims['sub']).encode()).hexdigest()[:12]}"


def display_name_of(claims: Mapping[str, Any]) -> str | None:
    """Returns the name that other users see; None for the username."""
    name = claims.get("name")
    return (one_line(clean_text(name)).strip()[:MAX_NAME_CHARS] or None) if isinstance(name, str) else None


def label_of(claims: Mapping[str, Any]) -> str:
    """Returns what the account page calls the identity: a name that its owner knows it by."""
    for claim in ("preferred_username", "email", "name", "sub"):
        if isinstance(claims.get(claim), str) and (label := one_line(clean_text(claims[claim])).strip()):
            return label[:MAX_LABEL_CHARS]
    return "unknown"
