"""What can go wrong while a user signs in with a provider."""

from __future__ import annotations

from enum import StrEnum


class OidcProblem(StrEnum):
    """Why a sign-in failed. The sign-in page has a sentence for each (``oidc_texts.js``)."""

    UNAVAILABLE = "unavailable"  #: the provider does not answer, or with garbage
    DENIED = "denied"  #: the provider refused, or the user cancelled there
    EXPIRED = "expired"  #: no sign-in was started in this browser, or too long ago
    INVALID = "invalid"  #: the provider's answer does not prove who the user is
    NO_ROLE = "no_role"  #: none of the user's groups may sign in
    DISABLED = "disabled"  #: the account is disabled
    NAME_TAKEN = "name_taken"  #: an account with this name exists, and is not connected
    CONNECTED_ELSEWHERE = "connected_elsewhere"  #: the identity belongs to another account
    TOO_MANY = "too_many"  #: too many attempts from this address


class OidcError(Exception):
    """A sign-in that failed.

    Args:
        problem: what the user is told.
        detail: for the log only; holds no token.
    """

    def __init__(self, problem: OidcProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
