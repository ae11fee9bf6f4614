"""The guard: ASGI middleware that authenticates and authorises every request, to our routes and Gradio's.

Only our own page may drive the server: the ``Host`` header must name this server (prevents DNS rebinding), and the
browser must say that the request comes from our page (prevents cross-site requests). The guard then identifies the
user, and :mod:`app.auth.policy` says whether they may use the route; routes that are not listed there answer 404.
Handlers rely on the guard and check nothing of this again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth.authenticator import bearer_of
from app.auth.cors import CrossOrigin
from app.auth.gradio_calls import check_call
from app.auth.gradio_sessions import SessionOwners
from app.auth.identity import Authenticator, Identity, set_identity
from app.auth.origins import LOOPBACK_NAMES, SAFE_METHODS, host_name, is_same_origin
from app.auth.policy import Access, Rule, SessionIn, rule_on
from app.auth.refusals import RequestRefused, not_signed_in, refusal_response
from app.auth.request_body import (
    BODY_SECONDS,
    MAX_BODY_BYTES,
    MAX_OPEN_BODY_BYTES,
    MAX_UPLOAD_BYTES,
    MAX_VISITOR_BODY_BYTES,
    limit_upload,
    read_body,
    replay_body,
)
from app.auth.revocable import MAX_STREAMS_PER_VISITOR, RevocableRequests, run_until_revoked
from app.auth.visitors import FindVisitor, VisitorIdentity, set_visitor
from app.domain.roles import UserRole
from app.errors import StorageUnavailable

_JSON = ("application/json",)
#: A form on another website can post text, multipart and url-encoded bodies without a preflight, but none of these.
_UPLOADS = ("application/json", "application/zip", "application/octet-stream")
_FORMS = ("multipart/form-data",)
_OPEN_LIMITS = {Access.OPEN: MAX_OPEN_BODY_BYTES, Access.VISITOR: MAX_VISITOR_BODY_BYTES}
NO_INBOXES = "This server has no inboxes: they need accounts. Set APP_ACCOUNTS to enable them."


class Guard:
    """Checks every request against the policy and attaches the caller's identity to its scope."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        allowed_hosts: Iterable[str] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
        body_seconds: float = BODY_SECONDS,
        sessions: SessionOwners | None = None,
        max_revocable_per_user: int | None = None,
        cross_origin: CrossOrigin | None = None,
        public_endpoints: Callable[[], Collection[int]] = tuple,
        endpoints: Callable[[], Mapping[int, int]] | None = None,
        is_streaming: Callable[[str], bool] | None = None,
        find_visitor: FindVisitor | None = None,
    ) -> None:
        """Args:
        allowed_hosts: accepted ``Host`` names, besides the loopback names.
        body_seconds: see :data:`app.auth.request_body.BODY_SECONDS`.
        max_revocable_per_user: maximum responses of ``revocable`` rules in flight per user; None is unlimited.
        public_endpoints: returns the ids (``fn_index``) of the Gradio endpoints that API keys may run.
        endpoints: returns the ids of all Gradio endpoints in Python, each with the number of values it takes; calls
            of others are refused. None refuses none.
        is_streaming: whether Gradio has a stream for a session; others are refused, because Gradio ends
            them with a traceback. None refuses none.
        find_visitor: finds the visitor of a bearer token. None: there are no visitors, as there are no accounts.
        """
        self._find_visitor = find_visitor
        self._visitor_streams = RevocableRequests(MAX_STREAMS_PER_VISITOR)
        self._revocable = RevocableRequests(max_revocable_per_user)
        self._app = app
        self._authenticator = authenticator
        self._hosts = LOOPBACK_NAMES | {name.lower().strip("[]") for name in allowed_hosts}
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._body_seconds = body_seconds
        self._sessions = sessions or SessionOwners()
        self._cross_origin = cross_origin or CrossOrigin()
        self._public_endpoints = public_endpoints
        self._endpoints = endpoints
        self._is_streaming = is_streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # there are no WebSocket routes
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_host(scope)
            if self._cross_origin.is_preflight(scope):
                await Response(status_code=204, headers=self._cross_origin.preflight_headers(scope))(
                    scope, receive, send
                )
                return
            rule = self._admit(scope)
            visitor = await self._visit(scope) if rule.access is Access.VISITOR else None
            identity = await self._identify(rule, scope)
            body = b""
            if rule.upload:
                _check_content_type(scope, _FORMS if rule.form else _UPLOADS)
                receive = limit_upload(scope, receive, self._max_upload_bytes, self._body_seconds)
            elif scope["method"] not in SAFE_METHODS:
                limit = _OPEN_LIMITS.get(rule.access, self._max_body_bytes)
                read = await read_body(scope, receive, limit, self._body_seconds)
                if read is None:  # the client left
                    return
                body = read
                if body:
                    _check_content_type(scope, _JSON)
                receive = replay_body(body, receive)
            if identity is not None:
                self._check_endpoint(rule, body, identity)
                self._check_session(rule, scope, body, identity)
                self._check_call(rule, body)
        except RequestRefused as refusal:
            await refusal_response(scope, refusal)(scope, receive, send)
            return
        if visitor is not None:
            await self._serve_visitor(visitor, rule, scope, receive, send)
            return
        if identity is None:
            await self._app(scope, receive, send)
            return
        set_identity(scope, identity)
        if not rule.revocable:
            await self._app(scope, receive, send)
            return
        try:
            with self._revocable.track(identity.user_id), self._authenticator.watch(identity) as revoked:
                await run_until_revoked(revoked, self._app, scope, receive, send)
        except RequestRefused as refusal:
            await refusal_response(scope, refusal)(scope, receive, send)

    def _check_host(self, scope: Scope) -> None:
        host = Headers(scope=scope).get("host")
        if host is None:
            raise RequestRefused(400, "bad_request", "The request has no Host header.")
        if host_name(host) not in self._hosts:
            raise RequestRefused(
                421,
                "wrong_host",
                "This server does not answer to that host name. Use http://127.0.0.1 or http://localhost with "
                "its port, or add the name to APP_ALLOWED_HOSTS.",
            )

    def _admit(self, scope: Scope) -> Rule:
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        ruling = rule_on("GET" if method == "HEAD" else method, path)
        rule = ruling.rule
        linkable, embeddable = (rule.linkable, rule.embeddable) if rule is not None else (False, False)
        if not is_same_origin(method, headers, linkable=linkable, embeddable=embeddable):
            if not self._cross_origin.allows(scope):
                raise RequestRefused(403, "cross_site", "Requests from another website are not allowed.")
            # The browser may send cookies along, but a page of another origin must not act with them: it needs a key.
            scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        if rule is None and ruling.allowed_methods:
            raise RequestRefused(
                405,
                "method_not_allowed",
                f"{method} is not allowed at this address.",
                Allow=", ".join(sorted(ruling.allowed_methods)),
            )
        if rule is None or rule.access is Access.DENIED:
            raise RequestRefused(404, "not_found", "There is nothing at this address.")
        return rule

    async def _visit(self, scope: Scope) -> VisitorIdentity:
        """Returns the visitor whose token the request carries. Cookies and API keys count for nothing here.

        Raises:
            RequestRefused: there is none.
        """
        if self._find_visitor is None:
            raise RequestRefused(404, "not_found", NO_INBOXES)
        token = bearer_of(scope)
        try:
            visitor = await self._find_visitor(token) if token is not None else None
        except StorageUnavailable as error:
            raise RequestRefused(error.status, error.code, error.message, **{"Retry-After": "1"}) from error
        if visitor is None:
            raise RequestRefused(401, "unknown_visitor", "This chat has ended on this device. Open it again.")
        return visitor

    async def _serve_visitor(
        self, visitor: VisitorIdentity, rule: Rule, scope: Scope, receive: Receive, send: Send
    ) -> None:
        set_visitor(scope, visitor)
        if not rule.revocable:
            await self._app(scope, receive, send)
            return
        try:
            with self._visitor_streams.track(visitor.contact_id):
                await self._app(scope, receive, send)
        except RequestRefused as refusal:
            await refusal_response(scope, refusal)(scope, receive, send)

    async def _identify(self, rule: Rule, scope: Scope) -> Identity | None:
        """Returns the caller's identity; None on routes that need none. Raises ``RequestRefused``."""
        if rule.access in (Access.OPEN, Access.VISITOR):
            return None
        if rule.access is Access.METRICS:
            if not self._authenticator.may_read_metrics(scope):
                raise not_signed_in()
            return None
        try:
            identity = await self._authenticator.identify(scope)
        except StorageUnavailable as error:
            raise RequestRefused(error.status, error.code, error.message, **{"Retry-After": "1"}) from error
        if identity is None:
            raise not_signed_in(self._authenticator.key_hint)
        _authorize(rule, identity)
        return identity

    def _check_endpoint(self, rule: Rule, body: bytes, identity: Identity) -> None:
        """Refuses an API key that names another endpoint than a public one: the rest are the page's own."""
        if identity.key_id is None or not rule.runs_endpoint:
            return
        named = (_fields(body) or {}).get("fn_index")
        # By type: Gradio also reads true, "1" and 1.0 as 1.
        if type(named) is not int or named not in self._public_endpoints():
            raise RequestRefused(403, "not_allowed", "An API key can only call the endpoint /chat.")

    def _check_call(self, rule: Rule, body: bytes) -> None:
        """Refuses a call that no Gradio endpoint takes. Comes last: in another user's session, every call is a 404."""
        if not rule.runs_endpoint or self._endpoints is None:
            return
        fields = _fields(body)
        if fields is not None:
            check_call(fields, self._endpoints())

    def _check_session(self, rule: Rule, scope: Scope, body: bytes, identity: Identity) -> None:
        for session_hash in _session_hashes(rule, scope, body):
            is_theirs = self._sessions.claim(session_hash, identity)
            if is_theirs and rule.session is SessionIn.QUERY and self._is_streaming is not None:
                is_theirs = self._is_streaming(session_hash)
            if not is_theirs:
                raise RequestRefused(404, "not_found", "There is nothing at this address.")


def _authorize(rule: Rule, identity: Identity) -> None:
    if identity.key_id is not None and (rule.scope is None or rule.scope not in identity.scopes):
        raise RequestRefused(
            403, "not_allowed", "This API key lacks the required scope. Create one that has it on your account page."
        )
    if rule.access is Access.ADMIN and identity.role is not UserRole.ADMIN:
        raise RequestRefused(403, "not_allowed", "Only admins can do this. Ask an admin.")
    if rule.access is Access.DESK_READER and not identity.role.may_read_desk:
        raise RequestRefused(403, "not_allowed", "Only admins and viewers can see this. Ask an admin for access.")
    if rule.access is Access.WRITER and not identity.role.may_write:
        raise RequestRefused(403, "not_allowed", "Your role is read-only. Ask an admin for access.")


def _check_content_type(scope: Scope, allowed: tuple[str, ...]) -> None:
    content_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if content_type in allowed:
        return
    if allowed is _JSON:
        raise RequestRefused(
            415, "unsupported_media_type", "The body must be JSON: send it with Content-Type: application/json."
        )
    if allowed is _FORMS:
        raise RequestRefused(415, "unsupported_media_type", "Send the file as a form (multipart/form-data).")
    raise RequestRefused(
        415,
        "unsupported_media_type",
        f"Send the file as the body, with one of these as Content-Type: {', '.join(allowed)}.",
    )


def _session_hashes(rule: Rule, scope: Scope, body: bytes) -> list[str]:
    """Returns every Gradio session that the request names; none for a body that Gradio will refuse anyway."""
    if rule.session is SessionIn.PATH:
        match = rule.match(scope["path"].rstrip("/"))
        return [match["session_hash"]] if match else []
    if rule.session is SessionIn.QUERY:
        # A blank value counts: Gradio reads it as a session too.
        return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("session_hash", [])
    if rule.session is SessionIn.BODY:
        named = (_fields(body) or {}).get("session_hash")
        return [named] if isinstance(named, str) else []
    return []


def _fields(body: bytes) -> dict[str, Any] | None:
    """Returns the fields of a JSON object; None if the body is something else."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
