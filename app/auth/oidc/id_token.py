"""Verifies ID tokens (OpenID Connect Core 1.0, section 3.1.3.7)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Sequence
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jwt import JWTClaimsRegistry

from app.auth.oidc.errors import OidcError, OidcProblem

LEEWAY_SECONDS = 60
"""How far the provider's clock may be off."""
MAX_KEYS = 100
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class UnknownKeyError(Exception):
    """The token names a key that the provider had not published when its keys were last read."""


def read_keys(document: Any) -> tuple[Key, ...]:
    """Reads a JSON Web Key Set. Leaves out what signs nothing: secrets, keys for encryption, unknown kinds.

    Raises:
        OidcError: it is no key set.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise OidcError(OidcProblem.UNAVAILABLE, "the provider's keys cannot be read: there is no list of keys")
    return tuple(key for one in listed[:MAX_KEYS] if (key := _read_key(one)) is not None)


def _read_key(one: Any) -> Key | None:
    if not isinstance(one, dict) or one.get("use", "sig") != "sig" or one.get("kty") == "oct":
        return None
    try:
        return JWKRegistry.import_key(one)
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def verify_id_token(
    token: str,
    keys: Sequence[Key],
    algorithms: Iterable[str],
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    now: int | None = None,
) -> dict[str, Any]:
    """Returns the claims of an ID token that ``issuer`` signed for this client and this sign-in.

    Args:
        keys: of :func:`read_keys`.
        algorithms: that the provider signs with, all of them asymmetric.
        nonce: that the sign-in sent along.
        now: Unix time; default: the present.

    Raises:
        UnknownKeyError: none of ``keys`` is the one that the token names.
        OidcError: the token does not prove who the user is.
    """
    header = _header(token)
    algorithm = header.get("alg")
    allowed = tuple(algorithms)
    if not isinstance(algorithm, str) or algorithm not in allowed:
        raise _invalid(f"its algorithm is {str(algorithm)[:20]!r}, and the provider signs with {', '.join(allowed)}")
    fitting = [key for key in keys if key.key_type == _KEY_TYPES[algorithm[:2]]]
    if (kid := header.get("kid")) is not None:
        fitting = [key for key in fitting if key.as_dict(private=False).get("kid") == kid]
    if not fitting:
        raise UnknownKeyError
    claims = _claims(token, fitting, algorithm)
    registry = JWTClaimsRegistry(
        now=now,
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True, "value": nonce},
    )
    try:
        registry.validate(claims)
    except JoseError as error:
        raise _invalid(f"{error.error}: {error.description}") from error
    if not isinstance(claims["nonce"], str) or len(claims["sub"]) > 255:
        raise _invalid("its nonce is no text, or its subject is too long")
    audience = claims["aud"]
    party = claims.get("azp", client_id if audience in (client_id, [client_id]) else None)
    if party != client_id:
        raise _invalid("it was issued to another client (azp)")
    return claims


def _claims(token: str, keys: Sequence[Key], algorithm: str) -> dict[str, Any]:
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    for key in keys:
        try:
            payload = jws.deserialize_compact(token, key, [algorithm], registry).payload
            claims = json.loads(payload or b"")
        except JoseError:
            continue
        except (ValueError, RecursionError, TypeError) as error:
            raise _invalid("it cannot be read") from error
        if isinstance(claims, dict):
            return claims
        raise _invalid("it holds no claims")
    raise _invalid("its signature is not the provider's")


def _header(token: str) -> dict[str, Any]:
    encoded = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError) as error:
        raise _invalid("it cannot be read") from error
    if not isinstance(header, dict):
        raise _invalid("it cannot be read")
    return header


def _invalid(why: str) -> OidcError:
    return OidcError(OidcProblem.INVALID, f"the ID token is not valid: {why}")
