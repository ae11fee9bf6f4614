"""Knowledge API: documents, collections, search."""

from __future__ import annotations

from app.api.knowledge import collections, documents, search

routers = (documents.router, collections.router, search.router)
