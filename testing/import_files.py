"""Builds import files for tests."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

TIME = "2026-05-01T12:00:00Z"


def message(id: str, parent_id: str | None = None, role: str = "user", **fields: Any) -> dict[str, Any]:
    own = {"id": uuid(id), "role": role, "content": f"text {id}", "created_at": TIME, **fields}
    return own if parent_id is None else {"parent_id": uuid(parent_id), **own}


def uuid(id: str) -> str:
    return f"00000000-0000-4000-8000-{id:0>12}"


def talk(id: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": uuid(id),
        "title": f"Talk {id}",
        "created_at": TIME,
        "updated_at": TIME,
        "messages": list(messages),
        **fields,
    }


def document(*conversations: dict[str, Any]) -> bytes:
    return json.dumps({"format": "deskmate.conversations", "version": 1, "conversations": list(conversations)}).encode()


GOOD = talk("c1", message("a1"), message("a2", "a1", "assistant"), tip=uuid("a2"))
TURN = {"id": uuid("f1"), "status": "complete", "model": "guide", "created_at": TIME}


def archive(**members: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return written.getvalue()
