"""Builds the ASGI application: middleware with the guard, the API routes, and the Gradio page last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import cast

from fastapi import FastAPI

from app.api import desk, knowledge
from app.api.account import account, links, oidc, users
from app.api.cases import cases as cases_api
from app.api.cases import contacts, figures, inboxes, webhooks
from app.api.cases import drafts as case_drafts
from app.api.cases import writing as case_writing
from app.api.chat import (
    canned,
    cases,
    comparisons,
    context,
    conversations,
    drafts,
    files,
    folders,
    messages,
    presets,
    transfer,
    turns,
)
from app.api.chat.turn_events import OpenStreams
from app.api.errors import install_error_handlers
from app.api.openai import install_openai
from app.api.ops import adapters as adapters_api
from app.api.ops import engine as engine_api
from app.api.ops import health
from app.api.ops import models as models_api
from app.api.request_middleware import HttpMetrics, ObservabilityMiddleware
from app.api.routing import add_routes
from app.api.widget import attachments as widget_attachments
from app.api.widget import routes as widget_api
from app.auth.accounts import AccountService
from app.auth.authenticator import AccountAuthenticator
from app.auth.cors import CrossOrigin
from app.auth.guard import Guard
from app.auth.headers import SecurityHeaders
from app.auth.identity import Authenticator, LocalUser
from app.auth.origins import own_addresses
from app.auth.revocable import MAX_REVOCABLE_PER_USER
from app.auth.static_key import KeyedLocalUser
from app.auth.visitors import FindVisitor, VisitorIdentity
from app.domain.ids import LOCAL_USER_ID
from app.services.container import Services
from app.settings import AppSettings
from app.ui.gradio_patches import is_streaming
from app.ui.mount import mount_ui
from engine import ChatEngine


def create_app(settings: AppSettings, engine: ChatEngine | AbstractAsyncContextManager[ChatEngine]) -> FastAPI:
    """Builds the whole application. Its lifespan opens and closes the services.

    Args:
        settings: the application's configuration.
        engine: a running engine, which the caller keeps and closes, or an async context manager, such as
            ``Engine(settings)``, which the application starts and stops.

    Raises (when the lifespan starts):
        StartupError: the database or the data folder cannot be used.
        EngineError: the engine cannot start.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            app.state.closing = asyncio.Event()
            app.state.owned_engine = None
            if isinstance(engine, AbstractAsyncContextManager):
                running = app.state.owned_engine = await stack.enter_async_context(engine)
            else:
                running = engine
            app.state.services = await Services.open(settings, running)
            stack.push_async_callback(wind_down, app)
            yield

    app = FastAPI(
        title="Deskmate",
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # the pages of docs_url and redoc_url load their scripts from another origin
        redoc_url=None,
    )
    app.state.http_metrics = HttpMetrics()
    app.state.open_streams = OpenStreams()
    cross_origin = CrossOrigin(settings.cors_origins)
    app.add_middleware(
        Guard,
        authenticator=_authenticator(app, settings),
        allowed_hosts=(
            settings.host,
            *own_addresses(settings.host),
            *settings.allowed_hosts,
            *filter(None, [settings.public_host]),
        ),
        max_upload_bytes=(max(settings.max_import_mb, settings.knowledge_max_file_mb) + 1) * 1024 * 1024,
        max_revocable_per_user=MAX_REVOCABLE_PER_USER if settings.accounts else None,
        cross_origin=cross_origin,
        public_endpoints=lambda: cast(frozenset[int], app.state.public_endpoints),
        endpoints=lambda: cast(Mapping[int, int], app.state.endpoints),
        is_streaming=lambda session_hash: is_streaming(app.state.page, session_hash),
        find_visitor=_visitors(app) if settings.accounts else None,
    )
    app.add_middleware(ObservabilityMiddleware, metrics=app.state.http_metrics)
    https = (settings.public_url or "").startswith("https://")
    app.add_middleware(SecurityHeaders, https=https, cross_origin=cross_origin)  # added last, so it is outermost
    install_error_handlers(app)
    install_openai(app)
    for router in (
        health.router,
        turns.router,
        comparisons.router,
        messages.router,
        context.router,
        files.router,
        messages.deletions_router,
        conversations.router,
        conversations.tags_router,
        transfer.router,
        engine_api.router,
        adapters_api.router,
        models_api.router,
        canned.router,
        presets.router,
        folders.router,
        drafts.router,
        cases.router,
        *desk.routers,
        *knowledge.routers,
        inboxes.router,
        contacts.router,
        figures.router,  # before the router of cases, whose ids would take its place
        cases_api.router,
        webhooks.router,
        widget_api.router,
        widget_attachments.router,
        case_drafts.router,
        case_writing.router,
        account.router,
        oidc.router,
        links.router,
        users.router,
    ):
        add_routes(app, router)
    return mount_ui(app, lambda: cast(Services, app.state.services))


def _authenticator(app: FastAPI, settings: AppSettings) -> Authenticator:
    if not settings.accounts:
        return LocalUser(LOCAL_USER_ID) if settings.api_key is None else KeyedLocalUser(LOCAL_USER_ID, settings.api_key)

    def accounts() -> AccountService:
        opened = cast(Services, app.state.services).accounts
        assert opened is not None  # since settings.accounts is set
        return opened

    return AccountAuthenticator(accounts, settings.metrics_token)


def _visitors(app: FastAPI) -> FindVisitor:
    async def find(token: str) -> VisitorIdentity | None:
        widget = cast(Services, app.state.services).widget
        return await widget.find_visitor(token) if widget is not None else None

    return find


async def wind_down(app: FastAPI) -> None:
    """Finishes the replies in flight or marks them as interrupted, then ends every event stream. Idempotent."""
    services = cast(Services, app.state.services)
    owned_engine = cast(ChatEngine | None, app.state.owned_engine)
    endings: list[Awaitable[object]] = [services.close()]
    if owned_engine is not None:  # requests to /v1 get the same time as the chat's replies
        endings.append(owned_engine.drain(services.settings.shutdown_seconds))
    try:
        await asyncio.gather(*endings)
    finally:
        cast(OpenStreams, app.state.open_streams).finish()
        app.state.closing.set()
