"""Secrets that people carry: in a cookie, a link, a program. What is stored of them opens nothing."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_BYTES = 32


class TokenMint:
    """Makes tokens, and the hashes by which they are found again.

    Args:
        secret_key: ``APP_SECRET_KEY``. With another one, no token is known any more.
    """

    def __init__(self, secret_key: str) -> None:
        self._key = secret_key.encode()

    def new(self, prefix: str = "") -> str:
        """A token that nobody can guess, of letters, digits, - and _."""
        return prefix + secrets.token_urlsafe(_BYTES)

    def hash(self, token: str) -> str:
        """What is stored of a token: 64 hexadecimal digits."""
        # Plain SHA-256 would do for 256 random bits; with the key, whoever can write to the database makes none.
        return hmac.new(self._key, token.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
