"""The metadata of all tables, wherever their classes are."""

from __future__ import annotations

from app.store.db import desk_models, knowledge_models, response_models
from app.store.db.models import Base

__all__ = ["METADATA", "desk_models", "knowledge_models", "response_models"]

METADATA = Base.metadata
