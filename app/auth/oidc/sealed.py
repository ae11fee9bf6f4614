"""Encrypted, authenticated texts that only this server can read: kept by a browser for minutes, or in the database."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

_HEADER = {"alg": "dir", "enc": "A256GCM"}
_ALGORITHMS = ("dir", "A256GCM")
MAX_SEALED_BYTES = 60_000
"""joserfc decrypts at most 64 KiB."""


class Sealer:
    """Seals JSON objects with a key of its own for each purpose, derived from ``APP_SECRET_KEY``.

    Args:
        purpose: a text sealed for one purpose cannot be opened for another.
    """

    def __init__(self, secret_key: str, purpose: str) -> None:
        self._key = OctKey.import_key(
            hmac.new(secret_key.encode(), f"seal {purpose}".encode(), hashlib.sha256).digest()
        )

    def seal(self, content: dict[str, Any], *, seconds: float | None = None) -> str:
        """Returns the sealed text.

        Args:
            seconds: after which it can no longer be opened; None: always.

        Raises:
            ValueError: the content is longer than :data:`MAX_SEALED_BYTES`.
        """
        expires = {"expires": time.time() + seconds} if seconds is not None else {}
        text = json.dumps({"content": content, **expires}).encode()
        if len(text) > MAX_SEALED_BYTES:
            raise ValueError("too long to seal")
        return jwe.encrypt_compact(dict(_HEADER), text, self._key, list(_ALGORITHMS))

    def open(self, sealed: str) -> dict[str, Any] | None:
        """Returns the content; None if the text was not sealed here for this purpose, was changed, or has expired."""
        try:
            text = jwe.decrypt_compact(sealed, self._key, list(_ALGORITHMS)).plaintext
            read = json.loads(text or b"")
        except (JoseError, ValueError, TypeError):
            return None
        if read.get("expires", time.time() + 1) <= time.time():
            return None
        content: dict[str, Any] = read["content"]
        return content
