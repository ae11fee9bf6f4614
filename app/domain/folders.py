"""Folders of conversations: their names, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.domain.text import shown_name
from app.errors import InvalidInput

MAX_FOLDER_NAME_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class FolderView:
    """A folder."""

    id: str
    name: str
    conversations: int  #: how many it lists, without archived ones


def folder_name(name: str) -> str:
    """The name as it is kept: one line, without spaces around it.

    Raises:
        InvalidInput: it is empty or too long.
    """
    name = shown_name(name)
    if not name or len(name) > MAX_FOLDER_NAME_CHARS:
        raise InvalidInput(f"The name of a folder has 1 to {MAX_FOLDER_NAME_CHARS} characters.")
    return name
