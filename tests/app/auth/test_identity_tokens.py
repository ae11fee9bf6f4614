"""A website's word for its customer: only the inbox's own key, for this inbox, for an hour."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from app.auth.identity_tokens import CustomerIdentity, WrongIdentity, read_identity

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
AT = int(NOW.timestamp())
KEY, OLD, OTHER = ("k" * 43, "o" * 43, "x" * 43)
INBOX = "inbox-token"
CLAIMS = {"aud": INBOX, "iat": AT, "exp": AT + 600, "sub": "customer 7", "name": "Ada", "email": "ada@example.com"}


def signed(key: str = KEY, algorithm: str = "HS256", **changed: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not ...}
    return jwt.encode({"alg": algorithm}, claims, OctKey.import_key(key), algorithms=[algorithm])


def read(token: str, *keys: str) -> CustomerIdentity:
    return read_identity(token, keys or (KEY, OLD), INBOX, NOW)


def test_a_signed_token_names_the_customer() -> None:
    assert read(signed()) == CustomerIdentity("customer 7", "Ada", "ada@example.com")
    assert read(signed(name=..., email=None)) == CustomerIdentity("customer 7", None, None)
    assert read(signed(aud=[INBOX])).external_id == "customer 7"


def test_the_key_before_holds_as_long_as_it_is_given() -> None:
    assert read(signed(OLD)).external_id == "customer 7"
    with pytest.raises(WrongIdentity, match="not signed"):
        read(signed(OLD), KEY)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"aud": "another inbox"}, "aud"),
        ({"aud": [INBOX, "another"]}, "aud"),
        ({"aud": ...}, "aud"),
        ({"exp": AT}, "exp has passed"),
        ({"exp": ...}, "exp is missing"),
        ({"exp": True}, "exp is missing"),
        ({"exp": "soon"}, "exp is missing"),
        ({"exp": 1e300}, "exp is missing"),
        ({"exp": AT + 3601}, "more than an hour"),
        ({"iat": AT + 61, "exp": AT + 600}, "iat lies in the future"),
        ({"iat": AT - 4000}, "more than an hour"),
        ({"iat": ...}, "iat is missing"),
        ({"nbf": AT + 120}, "nbf"),
        ({"sub": ...}, "sub is missing"),
        ({"sub": "  "}, "sub is missing"),
        ({"sub": 7}, "sub is not a text"),
        ({"sub": "x" * 201}, "sub has more than"),
        ({"email": "none"}, "email is not"),
        ({"name": ["Ada"]}, "name is not a text"),
    ],
)
def test_wrong_claims_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(WrongIdentity, match=why):
        read(signed(**changed))


def unsigned(header: dict[str, Any]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, CLAIMS)]
    return ".".join((*parts, ""))


def test_forged_tokens_are_refused() -> None:
    good = signed()
    head, body, signature = good.split(".")
    public = RSAKey.generate_key(2048)
    forged = (
        signed(OTHER),
        signed(algorithm="HS512"),
        unsigned({"alg": "none"}),
        unsigned({"alg": "HS256"}),
        jwt.encode({"alg": "RS256"}, CLAIMS, public, algorithms=["RS256"]),
        f"{head}.{body}.{signature[:-2]}AA",
        f"{head}.{signed(sub='customer 8').split('.')[1]}.{signature}",
        f"{head}.W10.{signature}",
        "",
        "a.b.c",
        "\ud800",
        "x" * 5000,
    )
    for token in forged:
        with pytest.raises(WrongIdentity):
            read(token)
    assert read(good)
