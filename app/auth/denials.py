"""The guard's answers instead of a route's: in the shape that who asks can read."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from app.auth.authenticator import bearer_of
from app.auth.origins import SAFE_METHODS
from app.auth.policy import rule_on
from app.error_format import error_response, is_openai_path

_NOT_SIGNED_IN = "not_signed_in"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Deskmate</title>
<link rel="stylesheet" href="/ui/static/pages/pages.css">
</head>
<body><main class="dm-card"><h1>Not for you</h1><p>{message}</p><p><a href="/">Back to the chat</a></p></main></body>
</html>
"""


class RequestRefused(Exception):
    """Why a request does not reach its route."""

    key_hint = ""  #: to a program that is not known: where its API key comes from

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def not_signed_in(key_hint: str = "") -> RequestRefused:
    """Nobody is known by what the request shows."""
    refusal = RequestRefused(401, _NOT_SIGNED_IN, "Sign in first.")
    refusal.key_hint = key_hint
    return refusal


def refusal_response(scope: Scope, refusal: RequestRefused) -> Response:
    """The refusal as an answer: a person who opens a page sees a page, a program gets an error."""
    path = scope["path"]
    if _opens_a_page(scope):
        if refusal.status == 401:
            return RedirectResponse(f"/sign-in?next={quote(_here(scope), safe='')}", 303)
        if refusal.status == 403 and refusal.code == "not_allowed":
            return HTMLResponse(_PAGE.format(message=escape(refusal.message)), 403)
    headers, message, code = refusal.headers, refusal.message, refusal.code
    if refusal.status == 401 and (is_openai_path(path) or path == "/metrics"):
        headers = {**headers, "WWW-Authenticate": "Bearer"}
        if "authorization" in Headers(scope=scope):
            code = "invalid_api_key"
        message = _about_key(scope, refusal.key_hint)
    return error_response(path, refusal.status, code, message, headers=headers)


def _about_key(scope: Scope, hint: str) -> str:
    """What is wrong with the key of a request that is refused: it is missing, sent in another way, or wrong."""
    is_wrong = bearer_of(scope) is not None
    sent_otherwise = "authorization" in Headers(scope=scope)
    if scope["path"] == "/metrics":
        if is_wrong:
            return "The token that was sent is not the value of APP_METRICS_TOKEN. Check it."
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
