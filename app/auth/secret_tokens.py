"""Secret tokens for cookies, links and API keys. Only their keyed hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_BYTES = 32


class TokenMint:
    """Generates tokens, and the hashes by which they are looked up.

    Args:
        secret_key: ``APP_SECRET_KEY``. Changing it invalidates every token.
    """

    def __init__(self, secret_key: str) -> None:
        self._key = secret_key.encode()

    def new(self, prefix: str = "") -> str:
        """Returns a random token of 256 bits: letters, digits, - and _."""
        return prefix + secrets.token_urlsafe(_BYTES)

    def hash(self, token: str) -> str:
        """Returns what is stored of a token: its HMAC-SHA-256, as 64 hexadecimal digits."""
        # Plain SHA-256 would do for 256 random bits; the key keeps an attacker with write access to the database from
        # adding valid tokens.
        return hmac.new(self._key, token.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
