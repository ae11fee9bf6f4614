"""FastAPI dependencies, which route handlers request by type.

All are coroutines: FastAPI runs plain functions in a thread pool, and the switch takes longer than the function.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

from fastapi import Depends, Request

from app.api.chat.turn_events import OpenStreams
from app.api.request_middleware import HttpMetrics
from app.auth.accounts import AccountService, Visitor
from app.auth.client_address import UNKNOWN
from app.auth.identity import Identity, identity_of, user_id_of
from app.errors import NotSupported
from app.services.container import Services


def _services_of(request: Request) -> Services:
    return cast(Services, request.app.state.services)


async def _services(request: Request) -> Services:
    return _services_of(request)


async def _user_id(request: Request) -> str:
    return user_id_of(request)


async def _identity(request: Request) -> Identity:
    return identity_of(request)


async def _closing(request: Request) -> asyncio.Event:
    return cast(asyncio.Event, request.app.state.closing)


async def _metrics(request: Request) -> HttpMetrics:
    return cast(HttpMetrics, request.app.state.http_metrics)


async def _open_streams(request: Request) -> OpenStreams:
    return cast(OpenStreams, request.app.state.open_streams)


async def _accounts(request: Request) -> AccountService:
    accounts = _services_of(request).accounts
    if accounts is None:
        raise NotSupported("This server has no accounts. Set APP_ACCOUNTS to enable them.")
    return accounts


async def _visitor(request: Request) -> Visitor:
    accounts = _services_of(request).accounts
    return Visitor(
        address=accounts.proxies.client_address(request.scope) if accounts is not None else UNKNOWN,
        user_agent=request.headers.get("user-agent", ""),
        token=accounts.cookie.read(request.scope) if accounts is not None else None,
    )


async def _origin(request: Request) -> str:
    services = _services_of(request)
    if services.settings.public_url is not None:
        return services.settings.public_url
    https = services.accounts is not None and services.accounts.proxies.is_https(request.scope)
    return f"{'https' if https else 'http'}://{request.headers['host']}"  # the guard has checked the header


ServicesDep = Annotated[Services, Depends(_services)]
UserId = Annotated[str, Depends(_user_id)]
Caller = Annotated[Identity, Depends(_identity)]
#: Raises ``NotSupported`` without accounts.
AccountsDep = Annotated[AccountService, Depends(_accounts)]
VisitorDep = Annotated[Visitor, Depends(_visitor)]
#: Origin of the links that the server creates, such as https://desk.example.com.
Origin = Annotated[str, Depends(_origin)]
#: Set when the server shuts down: long streams end then.
Closing = Annotated[asyncio.Event, Depends(_closing)]
Metrics = Annotated[HttpMetrics, Depends(_metrics)]
OpenStreamsDep = Annotated[OpenStreams, Depends(_open_streams)]
