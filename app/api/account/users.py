"""Everybody's accounts, for admins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import AccountsDep, Origin, UserId
from app.domain.accounts import AccountView, LinkView, SessionView
from app.domain.roles import UserRole

router = APIRouter(prefix="/api/people", tags=["people"])


class Invite(BaseModel):
    """Somebody who shall get an account."""

    model_config = ConfigDict(extra="forbid")

    role: UserRole = Field(UserRole.AGENT, description="What they become.")
    note: str | None = Field(None, max_length=200, description="Who it is for, to tell invitations apart.")
    days: int = Field(7, ge=1, le=90, description="How long the link works.")


class PersonChange(BaseModel):
    """What an admin may change about somebody; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    role: UserRole | None = Field(None, description="The new role.")
    disabled: bool | None = Field(None, description="True shuts them out at once; false lets them in again.")


@dataclass(frozen=True, slots=True)
class PeopleView:
    """The accounts there are, and the invitations that were not used yet."""

    people: list[AccountView]
    invitations: list[LinkView]
    local_conversations: int  #: of the time before there were accounts


@dataclass(frozen=True, slots=True)
class CreatedLink:
    """A link to hand on. It is shown this once, and works once."""

    link: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EndedSessions:
    """How many sessions ended."""

    sessions: int


@dataclass(frozen=True, slots=True)
class TransferredConversations:
    """How many conversations have another owner now."""

    conversations: int


@router.get("")
async def list_people(accounts: AccountsDep) -> PeopleView:
    """The accounts there are, the open invitations, and what is left of the time without accounts."""
    return PeopleView(
        list(await accounts.records.list()),
        list(await accounts.invitations.open()),
        await accounts.invitations.local_conversations(),
    )


@router.post("/invitations", status_code=201)
async def invite(invite: Invite, user_id: UserId, accounts: AccountsDep, origin: Origin) -> CreatedLink:
    """Make a link with which somebody gives themselves an account. It works once."""
    link, token = await accounts.invite(invite.role, actor_id=user_id, note=invite.note, days=invite.days)
    return CreatedLink(f"{origin}/invitation/{token}", link.expires_at)


@router.delete("/invitations/{invitation_id}", status_code=204)
async def take_invitation_back(invitation_id: str, user_id: UserId, accounts: AccountsDep) -> None:
    """Make an invitation's link work no more."""
    await accounts.invitations.take_back(invitation_id, actor_id=user_id)


@router.post("/local-history")
async def take_over_local_history(user_id: UserId, accounts: AccountsDep) -> TransferredConversations:
    """Make the conversations from before there were accounts one's own."""
    return TransferredConversations(await accounts.invitations.take_over(user_id))


@router.patch("/{user_id}", status_code=204)
async def change_person(user_id: str, change: PersonChange, actor_id: UserId, accounts: AccountsDep) -> None:
    """Change somebody's role, shut them out, or let them in again."""
    if change.role is not None:
        await accounts.set_role(user_id, change.role, actor_id=actor_id)
    if change.disabled is not None:
        await accounts.set_disabled(user_id, change.disabled, actor_id=actor_id)


@router.post("/{user_id}/reset-link", status_code=201)
async def make_reset_link(user_id: str, actor_id: UserId, accounts: AccountsDep, origin: Origin) -> CreatedLink:
    """Make a link with which somebody chooses another password, for a day. It works once."""
    return CreatedLink(f"{origin}/invitation/{await accounts.reset_token(user_id, actor_id=actor_id)}")


@router.get("/{user_id}/sessions")
async def list_sessions_of(user_id: str, accounts: AccountsDep) -> list[SessionView]:
    """Where somebody is signed in."""
    return list(await accounts.sessions.list((await accounts.records.get(user_id)).id))


@router.delete("/{user_id}/sessions")
async def sign_out(user_id: str, actor_id: UserId, accounts: AccountsDep) -> EndedSessions:
    """Sign somebody out everywhere."""
    person = await accounts.records.get(user_id)
    return EndedSessions(await accounts.sign_out_everywhere(person.id, actor_id=actor_id))


@router.delete("/{user_id}/sessions/{session_id}", status_code=204)
async def end_session_of(user_id: str, session_id: str, actor_id: UserId, accounts: AccountsDep) -> None:
    """End one session of somebody's."""
    await accounts.end_session(user_id, session_id, actor_id=actor_id)
