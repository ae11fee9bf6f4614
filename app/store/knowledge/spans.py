"""Parts of a version's text, cut by the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, cast, func

from app.store.db.knowledge_models import DocumentVersion


def text_between(start: ColumnElement[int] | Any, end: ColumnElement[int] | Any) -> ColumnElement[str]:
    """The version's text from character ``start`` to before ``end``. PostgreSQL's substr takes no bigint."""
    return func.substr(DocumentVersion.text, cast(start + 1, Integer), cast(end - start, Integer))
