"""One's own account: signing in and out, the password, the sessions, the API keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import AccountsDep, Caller, ServicesDep, UserId, VisitorDep
from app.domain.accounts import MAX_PASSWORD_CHARS, KeyView, Scope, SessionView, checked_display_name
from app.domain.roles import UserRole

router = APIRouter(prefix="/api/account", tags=["account"])

# What is longer was never accepted: it is not even tried.
Password = Annotated[str, Field(max_length=MAX_PASSWORD_CHARS, description="As it was typed.")]


class SignIn(BaseModel):
    """Who somebody says they are."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200, description="The name to sign in with, in any case.")
    password: Password


class NewPassword(BaseModel):
    """The password, and what it shall be."""

    model_config = ConfigDict(extra="forbid")

    present: Password
    new: Password


class AccountChange(BaseModel):
    """What may be changed about oneself."""

    model_config = ConfigDict(extra="forbid")

    display_name: str = Field(max_length=200, description="What others see; empty is the name to sign in with.")


class NewKey(BaseModel):
    """A key for a program."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200, description="To tell it from others, such as the program's name.")
    scopes: list[Scope] = Field(default=[Scope.CHAT, Scope.MODELS], max_length=10, description="What it opens.")
    days: int | None = Field(90, ge=1, le=3650, description="After so many it ends; null is never.")


@dataclass(frozen=True, slots=True)
class Me:
    """Who asks."""

    accounts: bool  #: False: there is one local user, and nobody signs in
    id: str
    name: str | None
    display_name: str | None
    role: UserRole


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that was just made. ``key`` is shown this once."""

    id: str
    name: str
    key: str
    scopes: tuple[Scope, ...]
    expires_at: datetime | None


@router.get("")
async def who_am_i(caller: Caller, services: ServicesDep) -> Me:
    """Who is signed in, and what they may do."""
    if services.accounts is None:
        return Me(False, caller.user_id, None, None, caller.role)
    person = await services.accounts.records.get(caller.user_id)
    return Me(True, person.id, person.name, person.display_name, person.role)


@dataclass(frozen=True, slots=True)
class Storage:
    """How much one has stored of how much one may; a limit that is null is none."""

    used_bytes: int
    max_bytes: int | None
    conversations: int
    max_conversations: int | None
    tags: int
    max_tags: int | None


@router.get("/storage")
async def show_storage(user_id: UserId, services: ServicesDep) -> Storage:
    """What one's conversations take: their texts, and 1 KiB for each message and conversation beside them."""
    use, limits = await services.storage.use_of(user_id), services.storage.limits
    return Storage(
        used_bytes=use.bytes,
        max_bytes=limits.max_bytes,
        conversations=use.conversations,
        max_conversations=limits.max_conversations,
        tags=use.tags,
        max_tags=limits.max_tags,
    )


@router.patch("", status_code=204)
async def change_account(change: AccountChange, user_id: UserId, accounts: AccountsDep) -> None:
    """Change what others see of oneself."""
    person = await accounts.records.get(user_id)
    await accounts.records.rename(user_id, checked_display_name(change.display_name, person.name))


@router.post("/sign-in", status_code=204)
async def sign_in(who: SignIn, accounts: AccountsDep, visitor: VisitorDep) -> Response:
    """Begin a session: the answer sets a cookie."""
    token = await accounts.sign_in(who.name, who.password, visitor)
    response = Response(status_code=204)
    accounts.cookie.write(response, token)
    return response


@router.post("/sign-out", status_code=204)
async def sign_out(caller: Caller, accounts: AccountsDep) -> Response:
    """End this session."""
    if caller.session_id is not None:
        await accounts.sign_out(caller.user_id, caller.session_id)
    response = Response(status_code=204)
    accounts.cookie.clear(response)
    return response


@router.post("/sign-out-everywhere", status_code=204)
async def sign_out_everywhere(user_id: UserId, accounts: AccountsDep) -> Response:
    """End all sessions of one's own, this one too."""
    await accounts.sign_out_everywhere(user_id)
    response = Response(status_code=204)
    accounts.cookie.clear(response)
    return response


@router.post("/password", status_code=204)
async def change_password(passwords: NewPassword, caller: Caller, accounts: AccountsDep) -> None:
    """Change one's own password. Every other session ends."""
    await accounts.change_password(caller.user_id, caller.session_id, passwords.present, passwords.new)


@router.get("/sessions")
async def list_sessions(caller: Caller, accounts: AccountsDep) -> list[SessionView]:
    """Where one is signed in, the session used last first."""
    return list(await accounts.sessions.list(caller.user_id, caller.session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def end_session(session_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """End one session of one's own."""
    await accounts.end_session(user_id, session_id)


@router.get("/keys")
async def list_keys(user_id: UserId, accounts: AccountsDep) -> list[KeyView]:
    """One's own API keys, the newest first, without what makes them keys."""
    return list(await accounts.keys.list(user_id))


@router.post("/keys", status_code=201)
async def make_key(new: NewKey, user_id: UserId, accounts: AccountsDep) -> CreatedKey:
    """Make an API key for ``/v1``. It is shown in this answer and never again."""
    made, key = await accounts.make_key(user_id, new.name, new.scopes, new.days)
    return CreatedKey(made.id, made.name, key, made.scopes, made.expires_at)


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """Revoke one of one's own API keys. What it is just used for ends."""
    await accounts.revoke_key(user_id, key_id)
