"""Names of files to download: made from titles, and valid on every system."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from urllib.parse import quote

_MAX_BYTES = 120
#: Special in paths, in shells, or on Windows; below, categories of invisible characters.
_FORBIDDEN = frozenset('/\\:*?"<>|')
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def file_name(title: str, moment: datetime, ending: str) -> str:
    """A name such as ``2026-05-01 A question.md``. The date prevents reserved names."""
    kept = (
        " " if char in _FORBIDDEN or unicodedata.category(char) in _UNSEEN else char
        for char in unicodedata.normalize("NFC", title)
    )
    words = " ".join("".join(kept).split())
    short = words.encode()[:_MAX_BYTES].decode(errors="ignore").rstrip(" .")
    return f"{moment:%Y-%m-%d}{' ' if short else ''}{short}.{ending}"


class UniqueNames:
    """Gives each file of an archive a unique name, also on case-insensitive systems."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """``name``, or ``name (2)`` if it is taken."""
        stem, dot, ending = name.rpartition(".")
        candidate = name
        while (key := candidate.casefold()) in self._given:
            self._given[name.casefold()] += 1
            candidate = f"{stem} ({self._given[name.casefold()]}){dot}{ending}"
        self._given[key] = 1
        return candidate


def attachment(name: str) -> str:
    """The ``Content-Disposition`` value that makes a browser save the response under this name (RFC 6266)."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = "".join(char if char not in '"\\' else "'" for char in plain)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
