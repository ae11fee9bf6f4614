"""Writes docs/export-format.schema.json from the code that reads and writes exports. Part of make docs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from app.domain.conversation_document import schema  # noqa: E402

FILE = ROOT / "docs" / "export-format.schema.json"


def schema_text() -> str:
    """Returns the file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
