"""Mounts the chat page at ``/``, after every other route."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gradio as gr
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError

from app.api.errors import invalid_request
from app.auth.identity import identity_of
from app.ui.component_files import files_served_at
from app.ui.gradio_patches import (
    limit_sessions,
    preload,
    raise_max_threads,
    serve_assets,
    stop_loading_timer,
    survive_lost_requests,
    wake_queue,
)
from app.ui.html_head import APPEARANCE, JOINED_FILES, PAGE_SCRIPT, PRELOADS
from app.ui.options import page_options
from app.ui.page import build_page
from app.ui.static_files import FILES_URL, STATIC_DIR, CompressedPage, HashedFiles, PageFiles
from app.ui.static_pages import install_pages
from app.ui.theme import HEAD, PAGE_STYLE, page_theme
from app.ui.widget.pages import install_widget

if TYPE_CHECKING:
    from app.domain.case_views import InboxView
    from app.services.container import Services

MAX_SESSIONS = 500
"""Of how many sessions Gradio keeps the state. The page keeps nothing there: one that is dropped is made anew."""
MAX_EVENTS = 256
"""How many events of Gradio's queue run at once (the others wait in it), and how many threads run listeners."""


def mount_ui(app: FastAPI, services: Callable[[], Services]) -> FastAPI:
    """Add the page to ``app``. Call this last: a route added later is never reached.

    ``services`` is called per request, because the services open after the routes are added.
    """

    @app.get("/ui/options", include_in_schema=False)
    async def options(request: Request) -> dict[str, object]:
        return await page_options(services(), identity_of(request))

    async def find_inbox(token: str) -> InboxView | None:
        widget = services().widget
        return await widget.find_inbox(token) if widget is not None else None

    app.add_middleware(CompressedPage)
    install_pages(app)
    install_widget(app, find_inbox)
    stop_loading_timer()
    survive_lost_requests()
    is_preloaded = preload(PRELOADS)
    serve_assets(app, lambda folder: HashedFiles(directory=folder))
    for file in JOINED_FILES.values():
        file.read()  # a source that is missing stops the start, and not each browser
    app.mount(FILES_URL, PageFiles(directory=STATIC_DIR, joined=JOINED_FILES), name="ui-static")
    page = _queued_page(services)
    app.state.public_endpoints = frozenset(id for id, fn in page.fns.items() if fn.api_visibility == "public")
    app.state.endpoints = {id: len(fn.inputs) for id, fn in page.fns.items() if fn.fn is not None}
    app.state.page = page
    gr.mount_gradio_app(
        app,
        page,
        "/",
        theme=page_theme(),
        head=HEAD if is_preloaded else APPEARANCE + HEAD,  # late, but applied
        favicon_path=str(STATIC_DIR / "shared" / "favicon.svg"),
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        show_error=False,
        pwa=False,
        mcp_server=False,
        allowed_paths=[],
        # Gradio's own handler repeats the field that it refuses, and fails with a traceback if that is NaN.
        app_kwargs={"exception_handlers": {RequestValidationError: invalid_request}},
    )
    return app


def _queued_page(services: Callable[[], Services]) -> gr.Blocks:
    with files_served_at(FILES_URL, script=PAGE_SCRIPT, style=PAGE_STYLE):
        page = build_page(services)
    page.queue(default_concurrency_limit=None, api_open=False)  # /chat is called through the queue only
    limit_sessions(page, MAX_SESSIONS)
    raise_max_threads(page, MAX_EVENTS)
    wake_queue(page)
    return page
