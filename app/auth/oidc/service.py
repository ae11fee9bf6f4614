"""Signs users in with a provider, connects accounts to it, and signs out there."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

from app.auth.accounts import AccountService, Visitor
from app.auth.oidc.claims import display_name_of, groups_of, label_of, username_of
from app.auth.oidc.errors import OidcError, OidcProblem
from app.auth.oidc.pending import PendingCookie, PendingSignIn
from app.auth.oidc.provider_client import ProviderClient, Tokens
from app.auth.oidc.sealed import Sealer
from app.auth.policy import rule_on
from app.auth.rate_limits import OIDC_BY_ADDRESS, RateLimiter
from app.domain.audit import AuditAction
from app.domain.group_roles import GroupRoles
from app.egress.policy import EgressPolicy
from app.errors import Conflict, TooManyRequests
from app.settings import AppSettings
from app.store.accounts.identities import ProvidedUser, Refusal
from app.store.db.database import Database
from app.store.desk.audit import Audit

_log = logging.getLogger(__name__)

CALLBACK = "/api/account/oidc/callback"
"""Where the provider sends the browser back to; it must know this address."""

_REFUSED = {
    Refusal.NO_ROLE: OidcProblem.NO_ROLE,
    Refusal.DISABLED: OidcProblem.DISABLED,
    Refusal.NAME_TAKEN: OidcProblem.NAME_TAKEN,
}
#: Errors of OAuth by which a provider says that the fault is its own.
_ITS_FAULT = frozenset(("server_error", "temporarily_unavailable"))


@dataclass(frozen=True, slots=True)
class Finished:
    """A sign-in that succeeded."""

    next_path: str
    token: str | None  #: of the new session; None if an account was connected


class OidcSignIn:
    """Sign-in with the provider of the settings. One per process; the browser keeps what a sign-in needs, so that any
    process can finish what another has started.

    Raises:
        ValueError: the settings name no provider, or there are no accounts.
    """

    def __init__(self, accounts: AccountService, database: Database, settings: AppSettings) -> None:
        roles, secret_key = settings.oidc_roles, settings.secret_key
        if settings.oidc_issuer is None or settings.oidc_client_id is None or roles is None or secret_key is None:
            raise ValueError("Sign-in with a provider needs an issuer, a client id, roles and accounts.")
        secret = settings.oidc_client_secret
        self.name = settings.oidc_name
        self.issuer = settings.oidc_issuer
        self.client = ProviderClient(
            settings.oidc_issuer,
            settings.oidc_client_id,
            secret.get_secret_value() if secret is not None else None,
            EgressPolicy.allowing(settings.egress_allow),
        )
        self.identities = accounts.identities
        self.cookie = PendingCookie(
            secret_key.get_secret_value(), secure=(settings.public_url or "").startswith("https://")
        )
        self._accounts = accounts
        self._audit = Audit(database)
        self._roles = GroupRoles.parse(roles)
        self._scopes = settings.oidc_scopes
        self._groups_claim = settings.oidc_groups_claim
        self._lifetime = timedelta(hours=settings.oidc_session_hours)
        self._tokens = Sealer(secret_key.get_secret_value(), "ID token")
        self._rate_limiter = RateLimiter()

    async def start(
        self, visitor: Visitor, redirect_uri: str, next_path: str, *, link_session: str | None = None
    ) -> tuple[str, PendingSignIn]:
        """Begins a sign-in; returns the provider's address for the browser, and what its cookie must hold.

        Args:
            redirect_uri: our callback, as the provider knows it.
            next_path: the page to open afterwards; what is no page of ours is the chat.
            link_session: id of the caller's session, to connect their account instead.

        Raises:
            OidcError: the provider does not answer, or there were too many attempts.
        """
        self._limit(visitor)
        provider = await self.client.provider()
        pending = PendingSignIn.new(redirect_uri, page_within(next_path), link_session)
        query = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": pending.challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(provider.authorization_endpoint, query), pending

    async def finish(self, answer: Mapping[str, str], pending: PendingSignIn | None, visitor: Visitor) -> Finished:
        """Ends a sign-in with the parameters that the provider's redirect brought.

        Raises:
            OidcError: it failed; recorded in the log, and in the audit log.
        """
        self._limit(visitor)
        try:
            return await self._finish(answer, pending, visitor)
        except OidcError as error:
            _log.warning("sign-in with %s failed (%s): %s", self.issuer, error.problem, error.detail)
            await self._audit.record(
                None, AuditAction.SIGN_IN_FAILED, address=visitor.address, provider_problem=error.problem.value
            )
            raise

    async def sign_out_address(self, user_id: str, session_id: str, back_to: str) -> str | None:
        """Returns the provider's address that ends the session there, too; None if this session did not begin there,
        or the provider has no such address. Call it before the session ends.

        Args:
            back_to: the page that the provider shows afterwards, as it knows it.
        """
        found = await self._accounts.sessions.find_provided(user_id, session_id)
        if found is None:
            return None
        try:
            endpoint = (await self.client.provider()).end_session_endpoint
        except OidcError as error:
            _log.warning("sign-out at %s is not possible: %s", self.issuer, error.detail)
            return None
        if endpoint is None:
            return None
        query = {"client_id": self.client.client_id, "post_logout_redirect_uri": back_to}
        if found.id_token is not None and (content := self._tokens.open(found.id_token)) is not None:
            query["id_token_hint"] = content["token"]
        return _with_query(endpoint, query)

    async def close(self) -> None:
        """Closes the connections to the provider."""
        await self.client.close()

    def _limit(self, visitor: Visitor) -> None:
        try:
            self._rate_limiter.hit(OIDC_BY_ADDRESS, visitor.address, "Too many sign-in attempts.")
        except TooManyRequests as error:
            raise OidcError(OidcProblem.TOO_MANY, "too many attempts from one address") from error

    async def _finish(self, answer: Mapping[str, str], pending: PendingSignIn | None, visitor: Visitor) -> Finished:
        state = answer.get("state", "")
        if pending is None or not hmac.compare_digest(state.encode(), pending.state.encode()):
            raise OidcError(OidcProblem.EXPIRED, "the state is not the one of this browser's sign-in")
        provider = await self.client.provider()
        issuer = answer.get("iss")
        if issuer != self.issuer and (issuer is not None or provider.sends_issuer):
            raise OidcError(OidcProblem.INVALID, "the redirect is another provider's (iss)")
        if (error := answer.get("error")) is not None:
            problem = OidcProblem.UNAVAILABLE if error in _ITS_FAULT else OidcProblem.DENIED
            raise OidcError(problem, f"the provider answered {error[:100]!r}")
        code = answer.get("code")
        if not code:
            raise OidcError(OidcProblem.INVALID, "the redirect has no code")
        tokens = await self.client.redeem(code, pending.verifier, pending.redirect_uri, pending.nonce)
        if pending.link_session is not None:
            await self._connect(pending.link_session, tokens.claims, visitor)
            return Finished(pending.next_path, None)
        claims = await self._all_claims(tokens)
        return Finished(pending.next_path, await self._sign_in(tokens, claims, visitor))

    async def _all_claims(self, tokens: Tokens) -> dict[str, Any]:
        """The ID token's claims, and those that the provider has elsewhere if groups or names are missing."""
        claims = tokens.claims
        has_name = any(name in claims for name in ("preferred_username", "email"))
        if tokens.access_token is None or (has_name and groups_of(claims, self._groups_claim) is not None):
            return claims
        return {**await self.client.user_info(tokens.access_token, claims["sub"]), **claims}

    async def _sign_in(self, tokens: Tokens, claims: dict[str, Any], visitor: Visitor) -> str:
        role = self._roles.role_of(groups_of(claims, self._groups_claim) or frozenset())
        user = ProvidedUser(
            self.issuer, claims["sub"], username_of(claims), display_name_of(claims), label_of(claims), role
        )
        resolved = await self.identities.resolve(user)
        if resolved.changed:
            self._accounts.changed()
        if resolved.refusal is not None:
            raise OidcError(_REFUSED[resolved.refusal], f"refused: {resolved.refusal}")
        assert resolved.user_id is not None
        if resolved.kept_admin:
            _log.warning("the last admin keeps this role, although the provider's groups say %s", role)
        return await self._accounts.begin_session(
            resolved.user_id, visitor, ends_at=datetime.now(UTC) + self._lifetime, id_token=self._sealed(tokens)
        )

    async def _connect(self, session_id: str, claims: dict[str, Any], visitor: Visitor) -> None:
        token = visitor.token
        session = await self._accounts.sessions.find(self._accounts.mint.hash(token)) if token is not None else None
        if session is None or session.id != session_id:
            raise OidcError(OidcProblem.EXPIRED, "the session that wanted to connect its account has ended")
        try:
            await self.identities.connect(
                session.user_id, self.issuer, claims["sub"], label_of(claims), actor_id=session.user_id
            )
        except Conflict as error:
            raise OidcError(OidcProblem.CONNECTED_ELSEWHERE, error.message) from error

    def _sealed(self, tokens: Tokens) -> str | None:
        try:
            return self._tokens.seal({"token": tokens.id_token})
        except ValueError:  # without it, the provider may ask the user whether to sign out
            return None


def page_within(path: str) -> str:
    """Returns ``path`` if it is a page of ours that a redirect may open, else the chat."""
    is_plain = path.isascii() and path.isprintable() and "\\" not in path and len(path) <= 1000
    if not is_plain or not path.startswith("/") or path.startswith("//"):
        return "/"
    rule = rule_on("GET", urlsplit(path).path).rule
    return path if rule is not None and rule.linkable and rule.path != CALLBACK else "/"


def _with_query(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(query)}"
