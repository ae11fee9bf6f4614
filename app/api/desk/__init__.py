"""Desk API for admins and viewers: usage, review, templates, tool servers, audit log, erasure of data."""

from __future__ import annotations

from app.api.desk import (
    audit,
    drafts,
    erasure,
    gaps,
    review,
    templates,
    tools,
    usage,
    viewer,
)

routers = (
    viewer.router,
    usage.router,
    review.router,
    gaps.router,
    drafts.router,
    templates.router,
    tools.router,
    audit.router,
    erasure.router,
)
