"""Desk API for admins and viewers: usage, review, templates, tool servers, backups, audit log, erasure of data."""

from __future__ import annotations

from app.api.desk import (
    audit,
    backups,
    drafts,
    erasure,
    gaps,
    mail,
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
    backups.router,
    mail.router,
    erasure.router,
)
