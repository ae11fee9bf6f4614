"""The API of those who run the desk: usage, replies to review, templates, the audit log, people's data."""

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
