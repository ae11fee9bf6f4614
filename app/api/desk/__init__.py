"""Desk API for admins and viewers: usage, replies to review, templates, audit log, erasure of users' data."""

from __future__ import annotations

from app.api.desk import (
    audit,
    erasure,
    review,
    templates,
    usage,
    viewer,
)

routers = (viewer.router, usage.router, review.router, templates.router, audit.router, erasure.router)
