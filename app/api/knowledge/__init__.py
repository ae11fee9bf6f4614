"""Knowledge API: documents, collections, articles, search."""

from __future__ import annotations

from app.api.knowledge import articles, collections, documents, search

routers = (documents.router, collections.router, articles.router, search.router)
