"""Invitation and password-reset links. Their tokens are sent in the body, so that no log holds them."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import Field

from app.api.account.account import Password
from app.api.deps import AccountsDep, VisitorDep
from app.api.request_model import RequestModel
from app.store.accounts.invitations import Link

router = APIRouter(prefix="/api/links", tags=["account"])


class LinkToken(RequestModel):
    """The token of a link."""

    token: str = Field(min_length=1, max_length=200, description="The last part of the link.")


class LinkUse(LinkToken):
    """The account or password that a link creates."""

    password: Password
    name: str | None = Field(
        None, max_length=200, description="The name to sign in with; not for links that reset a password."
    )
    display_name: str | None = Field(None, max_length=200, description="Name shown to other users; default: the name.")
    with_history: bool = Field(False, description="The first admin takes over the local user's conversations.")


@router.post("/look")
async def look_at_link(link: LinkToken, accounts: AccountsDep, visitor: VisitorDep) -> Link:
    """Returns what a link is for, without using it."""
    return await accounts.look_at_link(link.token, visitor)


@router.post("/use", status_code=204)
async def use_link(link: LinkUse, accounts: AccountsDep, visitor: VisitorDep) -> Response:
    """Creates the account or sets the password, and signs in: the response sets a cookie. A link works once."""
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
