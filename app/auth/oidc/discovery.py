"""The provider's discovery document (OpenID Connect Discovery 1.0), as far as sign-in needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from app.auth.oidc.errors import OidcError, OidcProblem
from app.auth.origins import LOOPBACK_NAMES

WELL_KNOWN = "/.well-known/openid-configuration"
#: Signatures that only the provider can make. HS256 and ``none`` are not among them: the one would take a public key
#: for a secret, the other anything.
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's endpoints."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    end_session_endpoint: str | None
    algorithms: tuple[str, ...]  #: of ID tokens' signatures
    posts_secret: bool  #: takes the client's secret in the form only, not in the Authorization header
    sends_issuer: bool  #: names itself in its redirects (RFC 9207)


def read_provider(issuer: str, document: Any) -> Provider:
    """Reads a discovery document.

    Raises:
        OidcError: it is another issuer's, or incomplete, or names an endpoint without TLS.
    """
    if not isinstance(document, Mapping):
        raise _unusable("it is no JSON object")
    if document.get("issuer") != issuer:
        raise _unusable(f"its issuer is {str(document.get('issuer'))[:200]!r}, and APP_OIDC_ISSUER is {issuer!r}")
    listed = document.get("id_token_signing_alg_values_supported", ["RS256"])
    offered = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    if not isinstance(methods, list):
        methods = ["client_secret_basic"]
    algorithms = tuple(name for name in ASYMMETRIC if name in offered)
    if not algorithms:
        raise _unusable(f"it signs ID tokens with {', '.join(offered) or 'nothing'}, none of which is asymmetric")
    return Provider(
        issuer=issuer,
        authorization_endpoint=_endpoint(issuer, document, "authorization_endpoint"),
        token_endpoint=_endpoint(issuer, document, "token_endpoint"),
        jwks_uri=_endpoint(issuer, document, "jwks_uri"),
        userinfo_endpoint=_optional(issuer, document, "userinfo_endpoint"),
        end_session_endpoint=_optional(issuer, document, "end_session_endpoint"),
        algorithms=algorithms,
        posts_secret="client_secret_basic" not in methods and "client_secret_post" in methods,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def is_secure(url: str) -> bool:
    """Whether requests to ``url`` are protected on their way: by TLS, or because they stay on this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if not parts.hostname or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES)


def _optional(issuer: str, document: Mapping[str, Any], name: str) -> str | None:
    return _endpoint(issuer, document, name) if document.get(name) is not None else None


def _endpoint(issuer: str, document: Mapping[str, Any], name: str) -> str:
    url = document.get(name)
    if not isinstance(url, str):
        raise _unusable(f"it has no {name}")
    if not is_secure(url) or (issuer.startswith("https:") and not url.startswith("https:")):
        raise _unusable(f"its {name} is not an https address")
    return url


def _unusable(why: str) -> OidcError:
    return OidcError(OidcProblem.UNAVAILABLE, f"the discovery document cannot be used: {why}")
