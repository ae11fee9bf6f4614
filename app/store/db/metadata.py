"""The metadata of all tables, wherever their classes are."""

from __future__ import annotations

from app.store.db import (
    case_models,
    desk_models,
    knowledge_models,
    maintenance_models,
    response_models,
    sign_in_models,
)
from app.store.db.models import Base

__all__ = [
    "METADATA",
    "case_models",
    "desk_models",
    "knowledge_models",
    "maintenance_models",
    "response_models",
    "sign_in_models",
]

METADATA = Base.metadata
