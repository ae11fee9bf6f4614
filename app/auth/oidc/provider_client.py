"""Requests to the provider: discovery, keys, codes, claims."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from joserfc.jwk import Key

from app.auth.oidc.discovery import WELL_KNOWN, Provider, read_provider
from app.auth.oidc.errors import OidcError, OidcProblem
from app.auth.oidc.id_token import UnknownKeyError, read_keys, verify_id_token
from app.domain.text import one_line
from app.egress.client import checked_client
from app.egress.policy import EgressPolicy, EgressRefusedError

TIMEOUT_SECONDS = 10.0
"""For one request to the provider, from its name to its last byte. A user waits for it."""
MAX_ANSWER_BYTES = 2**20
FRESH_SECONDS = 3600.0
"""How long the discovery document and the keys are used before they are read again."""
MIN_KEYS_SECONDS = 20.0
"""Minimum between two readings of the keys because a token names an unknown one."""

Value = TypeVar("Value")


class Fetched(Generic[Value]):
    """A value that is read from the provider at most once at a time, and used for :data:`FRESH_SECONDS`.

    If a later reading fails, the value from before stays in use.
    """

    def __init__(self, read: Callable[[], Awaitable[Value]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._value: Value | None = None
        self._read_at = 0.0
        self._reading: asyncio.Task[Value] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the value was read; infinite if it was not."""
        return self._clock() - self._read_at if self._value is not None else float("inf")

    async def get(self, *, max_age_s: float = FRESH_SECONDS) -> Value:
        """Returns the value, which is read first if it is older.

        Raises:
            OidcError: it cannot be read, and never was.
        """
        if self._value is not None and self.age_s < max_age_s:
            return self._value
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh())
            self._reading.add_done_callback(self._read_ended)
        try:
            return await asyncio.shield(self._reading)
        except OidcError:
            if self._value is None:
                raise
            return self._value

    async def _refresh(self) -> Value:
        self._value = value = await self._read()
        self._read_at = self._clock()
        return value

    def _read_ended(self, task: asyncio.Task[Value]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # its waiting callers have it


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the provider gives for a code."""

    id_token: str
    claims: dict[str, Any]  #: of the ID token, verified
    access_token: str | None


class ProviderClient:
    """Talks to one provider. Connections go to addresses that the policy allows; the issuer's host is the operator's
    choice and may be private.

    Args:
        policy: for all other hosts that the discovery document names.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None,
        policy: EgressPolicy,
        *,
        timeout_s: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self.client_id = client_id
        self._secret = client_secret
        self._timeout_s = timeout_s
        host = (urlsplit(issuer).hostname or "").lower().rstrip(".")
        allowed = EgressPolicy(policy.hosts | {host}, policy.networks, policy.resolve)
        self._http = checked_client(allowed, headers={"Accept": "application/json"}, timeout_s=timeout_s)
        self._provider = Fetched(self._discover, clock)
        self._keys = Fetched(self._read_keys, clock)

    async def provider(self) -> Provider:
        """Returns the provider's endpoints.

        Raises:
            OidcError: the provider does not answer, or with garbage.
        """
        return await self._provider.get()

    async def redeem(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> Tokens:
        """Exchanges a code for tokens, and verifies the ID token.

        Raises:
            OidcError: the provider does not answer, takes the code for invalid, or its token proves nothing.
        """
        provider = await self.provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        if self._secret is not None and not provider.posts_secret:
            pair = f"{quote(self.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self.client_id
            if self._secret is not None:
                form["client_secret"] = self._secret
        answer = await self._request("POST", provider.token_endpoint, "the code", data=form, headers=headers)
        id_token = answer.get("id_token")
        access_token = answer.get("access_token")
        if not isinstance(id_token, str):
            raise OidcError(OidcProblem.INVALID, "the provider's answer to the code has no ID token")
        claims = await self._verify(provider, id_token, nonce)
        return Tokens(id_token, claims, access_token if isinstance(access_token, str) else None)

    async def user_info(self, access_token: str, subject: str) -> dict[str, Any]:
        """Returns the claims that the provider has about the user beside those in the ID token; empty if it has no such
        endpoint.

        Raises:
            OidcError: the provider does not answer, or about another user.
        """
        endpoint = (await self.provider()).userinfo_endpoint
        if endpoint is None:
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        claims = await self._request("GET", endpoint, "the question about the user", headers=headers)
        if claims.get("sub") != subject:
            raise OidcError(OidcProblem.INVALID, "the provider's answer about the user is about another one")
        return claims

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _verify(self, provider: Provider, token: str, nonce: str) -> dict[str, Any]:
        def verify(keys: tuple[Key, ...]) -> dict[str, Any]:
            return verify_id_token(
                token, keys, provider.algorithms, issuer=self.issuer, client_id=self.client_id, nonce=nonce
            )

        try:
            return verify(await self._keys.get())
        except UnknownKeyError:  # the provider may have new keys
            try:
                return verify(await self._keys.get(max_age_s=MIN_KEYS_SECONDS))
            except UnknownKeyError as error:
                raise OidcError(OidcProblem.INVALID, "the ID token's key is none of the provider's") from error

    async def _discover(self) -> Provider:
        url = self.issuer.rstrip("/") + WELL_KNOWN
        return read_provider(self.issuer, await self._request("GET", url, "discovery"))

    async def _read_keys(self) -> tuple[Key, ...]:
        return read_keys(await self._request("GET", (await self.provider()).jwks_uri, "the request for its keys"))

    async def _request(self, method: str, url: str, subject: str, **options: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.request(method, url, **options)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _unavailable(subject, f"took more than {self._timeout_s:g} s") from error
        except EgressRefusedError as error:
            raise _unavailable(subject, f"was not sent: {error}") from error
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise _unavailable(subject, f"failed: {type(error).__name__} {_shown(error)}") from error
        body = _object(response.content) if len(response.content) <= MAX_ANSWER_BYTES else None
        if response.status_code in (400, 401, 403) and body is not None and isinstance(body.get("error"), str):
            told = f"{body['error']} {body.get('error_description') or ''}"
            if body["error"] == "invalid_grant":
                raise OidcError(OidcProblem.INVALID, f"the provider refused the code: {_shown(told)}")
            raise _unavailable(subject, f"was refused: {_shown(told)}. Check the client's id, secret and redirect URI")
        if response.status_code != 200 or body is None:
            kind = "no JSON object" if response.status_code == 200 else f"status {response.status_code}"
            raise _unavailable(subject, f"was answered with {kind}")
        return body


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return dict(read) if isinstance(read, Mapping) else None


def _shown(told: object) -> str:
    return one_line(str(told))[:300]


def _unavailable(subject: str, what: str) -> OidcError:
    return OidcError(OidcProblem.UNAVAILABLE, f"{subject} {what}")
