"""The caller's own account: signing in and out, password, sessions, API keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from app.api.deps import AccountsDep, Caller, Origin, ServicesDep, UserId, VisitorDep
from app.api.request_model import RequestModel
from app.auth.accounts import AccountService
from app.auth.identity import Identity
from app.domain.accounts import MAX_PASSWORD_CHARS, KeyView, Scope, SessionView, checked_display_name
from app.domain.roles import UserRole
from app.services.container import Services

router = APIRouter(prefix="/api/account", tags=["account"])

# A longer one cannot be any account's password, so it is refused without hashing.
Password = Annotated[str, Field(max_length=MAX_PASSWORD_CHARS, description="The password as typed.")]


class SignIn(RequestModel):
    """Credentials."""

    name: str = Field(max_length=200, description="The name to sign in with; case does not matter.")
    password: Password


class NewPassword(RequestModel):
    """The current and the new password."""

    present: Password
    new: Password


class AccountChange(RequestModel):
    """Changes to the caller's account."""

    display_name: str = Field(
        max_length=200, description="Name shown to other users; empty for the name to sign in with."
    )


class NewKey(RequestModel):
    """An API key to create."""

    name: str = Field(max_length=200, description="Label of the key, such as the program's name.")
    scopes: list[Scope] = Field(default=[Scope.CHAT, Scope.MODELS], max_length=10, description="What the key allows.")
    days: int | None = Field(90, ge=1, le=3650, description="Days until the key expires; null for never.")


@dataclass(frozen=True, slots=True)
class Me:
    """The caller."""

    accounts: bool  #: False: there is only the local user, without signing in
    id: str
    name: str | None
    display_name: str | None
    role: UserRole


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new API key. ``key`` is only shown in this response."""

    id: str
    name: str
    key: str
    scopes: tuple[Scope, ...]
    expires_at: datetime | None


@router.get("")
async def get_me(caller: Caller, services: ServicesDep) -> Me:
    """Returns the signed-in user and their role."""
    if services.accounts is None:
        return Me(False, caller.user_id, None, None, caller.role)
    account = await services.accounts.records.get(caller.user_id)
    return Me(True, account.id, account.name, account.display_name, account.role)


@dataclass(frozen=True, slots=True)
class Storage:
    """The caller's storage use and limits; null is no limit."""

    used_bytes: int
    max_bytes: int | None
    conversations: int
    max_conversations: int | None
    tags: int
    max_tags: int | None
    responses: int  # stored by /v1/responses


@router.get("/storage")
async def show_storage(user_id: UserId, services: ServicesDep) -> Storage:
    """Returns the size of what the caller has stored: texts, plus 1 KiB for each message, conversation and response."""
    use, limits = await services.storage.use_of(user_id), services.storage.limits
    return Storage(
        used_bytes=use.bytes,
        max_bytes=limits.max_bytes,
        conversations=use.conversations,
        max_conversations=limits.max_conversations,
        tags=use.tags,
        max_tags=limits.max_tags,
        responses=use.responses,
    )


class DeletedResponses(BaseModel):
    deleted: int


@router.delete("/responses")
async def delete_responses(user_id: UserId, services: ServicesDep) -> DeletedResponses:
    """Deletes all responses that `/v1/responses` has stored for the caller, permanently; returns how many."""
    return DeletedResponses(deleted=await services.responses.delete_all(user_id))


@router.patch("", status_code=204)
async def change_account(change: AccountChange, user_id: UserId, accounts: AccountsDep) -> None:
    """Changes the caller's display name."""
    account = await accounts.records.get(user_id)
    await accounts.records.rename(user_id, checked_display_name(change.display_name, account.name))


@dataclass(frozen=True, slots=True)
class SignInOptions:
    """The ways to sign in beside a password."""

    provider: str | None  #: name of the sign-in provider; None without one


@router.get("/sign-in")
async def get_sign_in_options(services: ServicesDep) -> SignInOptions:
    """Returns the name of the sign-in provider, for the sign-in page's button."""
    return SignInOptions(services.oidc.name if services.oidc is not None else None)


@router.post("/sign-in", status_code=204)
async def sign_in(credentials: SignIn, accounts: AccountsDep, visitor: VisitorDep) -> Response:
    """Starts a session; the response sets its cookie."""
    token = await accounts.sign_in(credentials.name, credentials.password, visitor)
    response = Response(status_code=204)
    accounts.cookie.write(response, token)
    return response


@dataclass(frozen=True, slots=True)
class SignedOut:
    """What is left to do after signing out here."""

    sign_out_at: str  #: the provider's address that ends the session there; the browser opens it


_ALSO_AT_THE_PROVIDER: dict[int | str, dict[str, Any]] = {
    200: {"model": SignedOut, "description": "The session began at a provider: sign out there, too."}
}


@router.post("/sign-out", status_code=204, responses=_ALSO_AT_THE_PROVIDER)
async def sign_out(caller: Caller, services: ServicesDep, accounts: AccountsDep, origin: Origin) -> Response:
    """Ends the current session. A session that began at a provider gets the address that ends it there, too."""
    address = await _sign_out_address(caller, services, origin)
    if caller.session_id is not None:
        await accounts.sign_out(caller.user_id, caller.session_id)
    return _signed_out(accounts, address)


@router.post("/sign-out-everywhere", status_code=204, responses=_ALSO_AT_THE_PROVIDER)
async def sign_out_everywhere(caller: Caller, services: ServicesDep, accounts: AccountsDep, origin: Origin) -> Response:
    """Ends all of the caller's sessions, including the current one."""
    address = await _sign_out_address(caller, services, origin)
    await accounts.sign_out_everywhere(caller.user_id)
    return _signed_out(accounts, address)


async def _sign_out_address(caller: Identity, services: Services, origin: str) -> str | None:
    if services.oidc is None or caller.session_id is None:
        return None
    return await services.oidc.sign_out_address(caller.user_id, caller.session_id, f"{origin}/sign-in")


def _signed_out(accounts: AccountService, address: str | None) -> Response:
    response = Response(status_code=204) if address is None else JSONResponse({"sign_out_at": address})
    accounts.cookie.clear(response)
    return response


@router.post("/password", status_code=204)
async def change_password(passwords: NewPassword, caller: Caller, accounts: AccountsDep) -> None:
    """Changes the caller's password and ends all their other sessions."""
    await accounts.change_password(caller.user_id, caller.session_id, passwords.present, passwords.new)


@router.get("/sessions")
async def list_sessions(caller: Caller, accounts: AccountsDep) -> list[SessionView]:
    """Lists the caller's sessions, most recently used first."""
    return list(await accounts.sessions.list(caller.user_id, caller.session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def end_session(session_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """Ends one of the caller's sessions."""
    await accounts.end_session(user_id, session_id)


@router.get("/keys")
async def list_keys(user_id: UserId, accounts: AccountsDep) -> list[KeyView]:
    """Lists the caller's API keys, newest first, without their secrets."""
    return list(await accounts.keys.list(user_id))


@router.post("/keys", status_code=201)
async def make_key(new: NewKey, user_id: UserId, accounts: AccountsDep) -> CreatedKey:
    """Creates an API key for ``/v1`` and Gradio's client. The key is only shown in this response."""
    made, key = await accounts.make_key(user_id, new.name, new.scopes, new.days)
    return CreatedKey(made.id, made.name, key, made.scopes, made.expires_at)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """Revokes one of the caller's API keys. Its requests in flight are cut off."""
    await accounts.revoke_key(user_id, key_id)
