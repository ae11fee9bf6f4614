"""Links that make an account or another password. What makes them links is in the body, never in a log."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.account.account import Password
from app.api.deps import AccountsDep, VisitorDep
from app.store.accounts.invitations import Link

router = APIRouter(prefix="/api/links", tags=["account"])


class LinkToken(BaseModel):
    """What makes a link one."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1, max_length=200, description="The end of the link.")


class LinkUse(LinkToken):
    """What it takes to use it."""

    password: Password
    name: str | None = Field(
        None, max_length=200, description="To sign in with; not where the link changes a password."
    )
    display_name: str | None = Field(None, max_length=200, description="What others see; none is the name.")
    with_history: bool = Field(False, description="The first admin takes over the local user's conversations.")


@router.post("/look")
async def look_at_link(link: LinkToken, accounts: AccountsDep, visitor: VisitorDep) -> Link:
    """What a link is for. It can still be used after."""
    return await accounts.look_at_link(link.token, visitor)


@router.post("/use", status_code=204)
async def use_link(link: LinkUse, accounts: AccountsDep, visitor: VisitorDep) -> Response:
    """Make the account, or change the password, and sign in: the answer sets a cookie. The link works no more."""
    token = await accounts.use_link(
        link.token,
        link.password,
        visitor,
        name=link.name,
        display_name=link.display_name,
        with_history=link.with_history,
    )
    response = Response(status_code=204)
    accounts.cookie.write(response, token)
    return response
