"""User management, for admins: accounts, invitations, sessions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.account.oidc import OidcDep
from app.api.deps import AccountsDep, Origin, ServicesDep, UserId
from app.api.request_model import RequestModel
from app.domain.accounts import AccountView, LinkView, SessionView
from app.domain.roles import UserRole
from app.store.accounts.identities import LinkedIdentity

router = APIRouter(prefix="/api/people", tags=["people"])


class Invite(RequestModel):
    """An invitation to create."""

    role: UserRole = Field(UserRole.AGENT, description="The role of the new account.")
    note: str | None = Field(None, max_length=200, description="Who the invitation is for.")
    days: int = Field(7, ge=1, le=90, description="Days until the link expires.")


class PersonChange(RequestModel):
    """Changes to a user's account; omitted fields stay."""

    role: UserRole | None = Field(None, description="The new role.")
    disabled: bool | None = Field(None, description="True disables the account at once; false enables it again.")


class IdentityLink(RequestModel):
    """The provider's user who is to sign in to an account."""

    subject: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=255, pattern=r"^[\x20-\x7e]+$")
    ] = Field(description="The provider's id of the user: the claim sub of their ID token.")


@dataclass(frozen=True, slots=True)
class PersonIdentity:
    """An account's identity at the sign-in provider."""

    provider: str  #: its name
    identity: LinkedIdentity | None


@dataclass(frozen=True, slots=True)
class PeopleView:
    """All accounts, and the open invitations."""

    people: list[AccountView]
    invitations: list[LinkView]
    local_conversations: int  #: from before there were accounts
    provider: str | None  #: the name of the sign-in provider


@dataclass(frozen=True, slots=True)
class CreatedLink:
    """A new link. It is only shown in this response, and works once."""

    link: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EndedSessions:
    """The number of sessions that were ended."""

    sessions: int


@dataclass(frozen=True, slots=True)
class TransferredConversations:
    """The number of conversations that changed their owner."""

    conversations: int


@router.get("")
async def list_people(accounts: AccountsDep, services: ServicesDep) -> PeopleView:
    """Lists the accounts and open invitations, and counts the conversations from before there were accounts."""
    return PeopleView(
        list(await accounts.records.list()),
        list(await accounts.invitations.open()),
        await accounts.invitations.local_conversations(),
        services.oidc.name if services.oidc is not None else None,
    )


@router.post("/invitations", status_code=201)
async def invite(invite: Invite, user_id: UserId, accounts: AccountsDep, origin: Origin) -> CreatedLink:
    """Creates an invitation link, with which a new user creates their account. It works once."""
    link, token = await accounts.invite(invite.role, actor_id=user_id, note=invite.note, days=invite.days)
    return CreatedLink(f"{origin}/invitation/{token}", link.expires_at)


@router.delete("/invitations/{invitation_id}", status_code=204)
async def take_invitation_back(invitation_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """Revokes an invitation."""
    await accounts.invitations.take_back(invitation_id, actor_id=user_id)


@router.post("/local-history")
async def take_over_local_history(user_id: UserId, accounts: AccountsDep) -> TransferredConversations:
    """Moves the conversations from before there were accounts to the caller."""
    return TransferredConversations(await accounts.invitations.take_over(user_id))


@router.patch("/{user_id}", status_code=204)
async def change_person(user_id: str, change: PersonChange, actor_id: UserId, accounts: AccountsDep) -> None:
    """Changes a user's role, or disables or enables the account."""
    if change.role is not None:
        await accounts.set_role(user_id, change.role, actor_id=actor_id)
    if change.disabled is not None:
        await accounts.set_disabled(user_id, change.disabled, actor_id=actor_id)


@router.post("/{user_id}/reset-link", status_code=201)
async def make_reset_link(user_id: str, actor_id: UserId, accounts: AccountsDep, origin: Origin) -> CreatedLink:
    """Creates a link with which a user sets a new password. It works once, within a day."""
    return CreatedLink(f"{origin}/invitation/{await accounts.reset_token(user_id, actor_id=actor_id)}")


@router.get("/{user_id}/identity")
async def get_identity(user_id: str, accounts: AccountsDep, oidc: OidcDep) -> PersonIdentity:
    """Returns which user of the sign-in provider signs in to an account."""
    person = await accounts.records.get(user_id)
    return PersonIdentity(oidc.name, await oidc.identities.of(person.id, oidc.issuer))


@router.put("/{user_id}/identity", status_code=204)
async def link_identity(
    user_id: str, link: IdentityLink, actor_id: UserId, accounts: AccountsDep, oidc: OidcDep
) -> None:
    """Lets a user of the sign-in provider sign in to an account."""
    person = await accounts.records.get(user_id)
    await oidc.identities.connect(person.id, oidc.issuer, link.subject, link.subject[:200], actor_id=actor_id)


@router.delete("/{user_id}/identity", status_code=204)
async def unlink_identity(user_id: str, actor_id: UserId, accounts: AccountsDep, oidc: OidcDep) -> None:
    """Lets the provider's user no longer sign in to an account, and ends the sessions that began there."""
    person = await accounts.records.get(user_id)
    await oidc.identities.disconnect(person.id, oidc.issuer, actor_id=actor_id)
    accounts.changed()


@router.get("/{user_id}/sessions")
async def list_sessions_of(user_id: str, accounts: AccountsDep) -> list[SessionView]:
    """Lists a user's sessions."""
    return list(await accounts.sessions.list((await accounts.records.get(user_id)).id))


@router.delete("/{user_id}/sessions")
async def sign_out(user_id: str, actor_id: UserId, accounts: AccountsDep) -> EndedSessions:
    """Ends all sessions of a user."""
    person = await accounts.records.get(user_id)
    return EndedSessions(await accounts.sign_out_everywhere(person.id, actor_id=actor_id))


@router.delete("/{user_id}/sessions/{session_id}", status_code=204)
async def end_session_of(user_id: str, session_id: str, actor_id: UserId, accounts: AccountsDep) -> None:
    """Ends one session of a user."""
    await accounts.end_session(user_id, session_id, actor_id=actor_id)
