"""What route handlers ask for by type."""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

from fastapi import Depends, Request

from app.api.observe import HttpMetrics
from app.auth.identity import Identity, identity_of, user_id_of
from app.services import Services


def _services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


def _user_id(request: Request) -> str:
    return user_id_of(request)


def _identity(request: Request) -> Identity:
    return identity_of(request)


def _closing(request: Request) -> asyncio.Event:
    return cast(asyncio.Event, request.app.state.closing)


def _metrics(request: Request) -> HttpMetrics:
    return cast(HttpMetrics, request.app.state.http_metrics)


ServicesDep = Annotated[Services, Depends(_services)]
UserId = Annotated[str, Depends(_user_id)]
Caller = Annotated[Identity, Depends(_identity)]
#: Set when the server shuts down: long streams end then.
Closing = Annotated[asyncio.Event, Depends(_closing)]
Metrics = Annotated[HttpMetrics, Depends(_metrics)]
