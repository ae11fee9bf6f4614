"""Responses to requests that the guard refuses: a redirect or page for a browser, an error object for a program."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from app.auth.authenticator import bearer_of, is_api_key
from app.auth.origins import SAFE_METHODS
from app.auth.policy import rule_on
from app.error_format import error_response, is_openai_path

_NOT_SIGNED_IN = "not_signed_in"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Deskmate</title>
<link rel="stylesheet" href="/ui/static/pages/account/account.css">
</head>
<body><main class="dm-card"><h1>Access denied</h1><p>{message}</p><p><a href="/">Back to the chat</a></p></main></body>
</html>
"""


class RequestRefused(Exception):
    """Raised when a request must not reach its route; becomes an error response."""

    key_hint = ""  #: tells a program without a valid API key where to get one

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def not_signed_in(key_hint: str = "") -> RequestRefused:
    """Creates the refusal of a request without valid credentials."""
    refusal = RequestRefused(401, _NOT_SIGNED_IN, "Sign in first.")
    refusal.key_hint = key_hint
    return refusal


def refusal_response(scope: Scope, refusal: RequestRefused) -> Response:
    """Converts a refusal to a response: a redirect or page if a browser opens a page, an error object otherwise."""
    path = scope["path"]
    if _opens_a_page(scope):
        if refusal.status == 401:
            return RedirectResponse(f"/sign-in?next={quote(_here(scope), safe='')}", 303)
        if refusal.status == 403 and refusal.code == "not_allowed":
            return HTMLResponse(_PAGE.format(message=escape(refusal.message)), 403)
    headers, message, code = refusal.headers, refusal.message, refusal.code
    bearer = bearer_of(scope)
    is_program = is_openai_path(path) or path == "/metrics" or (bearer is not None and is_api_key(bearer, scope))
    if refusal.status == 401 and is_program:
        headers = {**headers, "WWW-Authenticate": "Bearer"}
        if "authorization" in Headers(scope=scope):
            code = "invalid_api_key"
        message = _about_key(scope, refusal.key_hint)
    return error_response(path, refusal.status, code, message, headers=headers)


def _about_key(scope: Scope, hint: str) -> str:
    """Explains what is wrong with the key of a refused request: missing, not sent as a bearer token, or wrong."""
    is_wrong = bearer_of(scope) is not None
    sent_otherwise = "authorization" in Headers(scope=scope)
    if scope["path"] == "/metrics":
        if is_wrong:
            return "The token is not the value of APP_METRICS_TOKEN. Check it."
        return "Send the value of APP_METRICS_TOKEN as Authorization: Bearer TOKEN."
    if is_wrong:
        return f"Incorrect API key: it may be misspelt, expired or revoked. {hint}".rstrip()
    begin = "The Authorization header holds no Bearer key. " if sent_otherwise else ""
    return f"{begin}Send an API key as Authorization: Bearer KEY. {hint}".rstrip()


def _opens_a_page(scope: Scope) -> bool:
    if scope["method"] not in SAFE_METHODS:
        return False
    rule = rule_on("GET", scope["path"]).rule
    if rule is None or not rule.linkable:
        return False
    return Headers(scope=scope).get("sec-fetch-mode", "navigate") == "navigate"


def _here(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{quote(scope['path'])}?{query}" if query else quote(scope["path"])
