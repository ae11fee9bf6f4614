"""Knowledge API: documents, collections, articles, marked questions, search."""

from __future__ import annotations

from app.api.knowledge import articles, collections, documents, questions, search

routers = (documents.router, collections.router, articles.router, questions.router, search.router)
