"""The loaded model."""

from __future__ import annotations

from app.ui.components.component import FileComponent


class Model(FileComponent):
    """The loaded model and its state, with buttons that load another one or let it sleep."""
