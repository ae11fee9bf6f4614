"""A sign-in provider that follows a script: what it signs, and with what, is the test's choice."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey

from tests.app.live_server import serve_asgi

CLIENT_ID = "deskmate"
CLIENT_SECRET = "between us two & no one + else"

Forge = Callable[["ScriptedProvider", dict[str, Any]], str]
"""Makes the ID token of these claims."""


def signed(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": provider.kid}, claims, provider.key)


@dataclass
class ScriptedProvider:
    """Serves discovery, keys, tokens and claims; the test plays the user's part with :meth:`answer`."""

    url: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))
    kid: str = "first"
    forge: Forge = signed
    discovery: dict[str, Any] = field(default_factory=dict)  #: replaces fields of the document
    user_info: dict[str, Any] | None = None
    broken: dict[str, Any] = field(default_factory=dict)  #: path to a response, or to an event that is waited for
    requests: list[str] = field(default_factory=list)
    _codes: dict[str, tuple[dict[str, Any], str, str]] = field(default_factory=dict)

    def reset(self) -> None:
        self.forge = signed
        self.discovery.clear()
        self.broken.clear()
        self.user_info = None

    def rotate(self) -> None:
        """Signs with a new key from now on."""
        self.key, self.kid = RSAKey.generate_key(2048), secrets.token_hex(4)

    def answer(self, address: str, subject: str, **claims: Any) -> dict[str, str]:
        """Signs a user in at the address that the desk has sent the browser to; returns what the redirect back has."""
        query = dict(parse_qsl(urlsplit(address).query))
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        now = int(time.time())
        whole = {
            "iss": self.url,
            "sub": subject,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": query["nonce"],
            "preferred_username": subject,
            **claims,
        }
        told = {name: value for name, value in whole.items() if value is not None}
        self._codes[code] = (told, query["code_challenge"], query["redirect_uri"])
        return {"code": code, "state": query["state"], "iss": self.url}

    def redeem(self, form: dict[str, str], authorization: str) -> Response:
        kind, _, pair = authorization.partition(" ")
        expected = f"{CLIENT_ID}:{httpx.QueryParams({'s': CLIENT_SECRET})}".replace("s=", "", 1).replace("+", "%20")
        if kind != "Basic" or base64.b64decode(pair).decode().replace("+", "%20") != expected:
            return JSONResponse({"error": "invalid_client"}, 401)
        known = self._codes.pop(form.get("code", ""), None)
        if known is None:
            return JSONResponse({"error": "invalid_grant", "error_description": "the code was used"}, 400)
        claims, challenge, redirect_uri = known
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
        assert form["redirect_uri"] == redirect_uri
        return JSONResponse({"id_token": self.forge(self, claims), "access_token": "at", "token_type": "Bearer"})

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/me",
            "end_session_endpoint": f"{self.url}/end",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "authorization_response_iss_parameter_supported": True,
            **self.discovery,
        }


@asynccontextmanager
async def scripted_provider() -> AsyncIterator[ScriptedProvider]:
    provider = ScriptedProvider()
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def answer(path: str, request: Request) -> Response:
        provider.requests.append(path)
        broken = provider.broken.get(path)
        if isinstance(broken, asyncio.Event):
            await broken.wait()
        elif isinstance(broken, Response):
            return broken
        match path:
            case ".well-known/openid-configuration":
                return JSONResponse(provider.document())
            case "keys":
                key = {**provider.key.as_dict(private=False), "kid": provider.kid, "use": "sig"}
                return JSONResponse({"keys": [{"kty": "oct", "k": "AAAA", "kid": "secret"}, {"kty": "new"}, key]})
            case "token":
                form = dict(parse_qsl((await request.body()).decode()))
                return provider.redeem(form, request.headers.get("authorization", ""))
            case "me" if provider.user_info is not None:
                return JSONResponse(provider.user_info)
        return Response(status_code=404)

    async with serve_asgi(app) as (url, _):
        provider.url = url
        yield provider


# ---- ID tokens that prove nothing


def unsigned(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    registry = jws.JWSRegistry(algorithms=["none"])
    return jwt.encode({"alg": "none"}, claims, OctKey.import_key("x"), registry=registry)


def signed_with_the_public_key(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    """By hand: joserfc itself would not make it."""
    header = {"alg": "HS256", "kid": provider.kid}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    digest = hmac.new(provider.key.as_pem(private=False), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(digest).rstrip(b"=")]).decode()


def signed_by_another(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": provider.kid}, claims, RSAKey.generate_key(2048))


def with_a_key_in_its_header(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    own = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": own.as_dict(private=False)}, claims, own)


def changed_afterwards(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    header, _, signature = signed(provider, claims).split(".")
    _, payload, _ = signed(provider, {**claims, "sub": "root"}).split(".")
    return f"{header}.{payload}.{signature}"


def no_token(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    return "garbage"


def deep(provider: ScriptedProvider, claims: dict[str, Any]) -> str:
    registry = jws.JWSRegistry(algorithms=["RS256"])
    return jws.serialize_compact(
        {"alg": "RS256", "kid": provider.kid}, b"[" * 50_000, provider.key, ["RS256"], registry
    )


FORGED: dict[str, Forge] = {
    "alg none": unsigned,
    "HS256 with the public key": signed_with_the_public_key,
    "another key": signed_by_another,
    "its own key": with_a_key_in_its_header,
    "changed": changed_afterwards,
    "garbage": no_token,
    "deep": deep,
}
