"""Sign-in with a provider of OpenID Connect: the browser's way there and back, and the account's connection to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from app.api.account.account import Password
from app.api.deps import AccountsDep, Caller, Origin, ServicesDep, UserId, VisitorDep
from app.api.request_model import RequestModel
from app.auth.oidc.errors import OidcError, OidcProblem
from app.auth.oidc.service import CALLBACK, OidcSignIn
from app.errors import Conflict, NotFound, ProviderUnavailable, StorageUnavailable, TooManyRequests

router = APIRouter(prefix="/api/account/oidc", tags=["account"])


async def _oidc(services: ServicesDep) -> OidcSignIn:
    if services.oidc is None:
        raise NotFound("This server has no sign-in provider. Set APP_OIDC_ISSUER to use one.")
    return services.oidc


#: Raises ``NotFound`` without a provider.
OidcDep = Annotated[OidcSignIn, Depends(_oidc)]


class ConnectionRequest(RequestModel):
    """Proof that the account's owner connects it."""

    password: Password = ""


@dataclass(frozen=True, slots=True)
class OidcConnection:
    """The caller's connection to the sign-in provider."""

    provider: str | None  #: its name; None if the server has none
    connected_as: str | None  #: the name there; None if the account is not connected
    has_password: bool


@dataclass(frozen=True, slots=True)
class OidcStart:
    """Where the browser goes next."""

    address: str  #: at the provider


@router.get("/start")
async def start_oidc_sign_in(oidc: OidcDep, visitor: VisitorDep, origin: Origin, next: str = "/") -> Response:
    """Redirects the browser to the sign-in provider."""
    try:
        address, pending = await oidc.start(visitor, origin + CALLBACK, next)
    except OidcError as error:
        return _failed(error.problem, next)
    response = RedirectResponse(address, 303)
    oidc.cookie.write(response, pending)
    return response


@router.get("/callback")
async def finish_oidc_sign_in(request: Request, oidc: OidcDep, accounts: AccountsDep, visitor: VisitorDep) -> Response:
    """Where the provider redirects the browser to: starts a session, or connects the account, and opens the page that
    was wanted. On failure it opens the sign-in page, which says why."""
    pending = oidc.cookie.read(request.scope)
    is_connecting = pending is not None and pending.link_session is not None
    try:
        finished = await oidc.finish(request.query_params, pending, visitor)
        response: Response = RedirectResponse(finished.next_path, 303)
        if finished.token is not None:
            accounts.cookie.write(response, finished.token)
    except OidcError as error:
        response = _failed(
            error.problem, pending.next_path if pending else "/", page="/account" if is_connecting else "/sign-in"
        )
    except StorageUnavailable:
        response = _failed(OidcProblem.UNAVAILABLE, pending.next_path if pending else "/")
    oidc.cookie.clear(response)
    return response


@router.get("")
async def get_oidc_connection(user_id: UserId, services: ServicesDep, accounts: AccountsDep) -> OidcConnection:
    """Returns whether the caller's account is connected to the sign-in provider."""
    has_password = await accounts.records.password_hash(user_id) is not None
    if services.oidc is None:
        return OidcConnection(None, None, has_password)
    identity = await services.oidc.identities.of(user_id, services.oidc.issuer)
    return OidcConnection(services.oidc.name, identity.label if identity is not None else None, has_password)


@router.post("", responses={200: {"model": OidcStart}})
async def connect_oidc(
    proof: ConnectionRequest,
    caller: Caller,
    oidc: OidcDep,
    accounts: AccountsDep,
    visitor: VisitorDep,
    origin: Origin,
) -> Response:
    """Begins to connect the caller's account to the sign-in provider; the browser then signs in there. Needs the
    account's password, because the connection outlives the session."""
    if caller.session_id is None:
        raise NotFound("There is no session to connect.")
    await accounts.check_password(caller.user_id, proof.password)
    if await oidc.identities.of(caller.user_id, oidc.issuer) is not None:
        raise Conflict("This account is connected already. Disconnect it first.")
    try:
        address, pending = await oidc.start(
            visitor, origin + CALLBACK, "/account?connected", link_session=caller.session_id
        )
    except OidcError as error:
        if error.problem is OidcProblem.TOO_MANY:
            raise TooManyRequests("Too many attempts. Try again in a minute.", 60) from error
        raise ProviderUnavailable(f"{oidc.name} can't be reached right now. Try again later.") from error
    response = JSONResponse({"address": address})
    oidc.cookie.write(response, pending)
    return response


@router.delete("", status_code=204)
async def disconnect_oidc(user_id: UserId, oidc: OidcDep, accounts: AccountsDep) -> None:
    """Disconnects the caller's account from the sign-in provider, and ends the sessions that began there."""
    await oidc.identities.disconnect(user_id, oidc.issuer, actor_id=user_id)
    accounts.changed()


def _failed(problem: OidcProblem, next_path: str, *, page: str = "/sign-in") -> Response:
    query = {"problem": problem.value, **({"next": next_path} if next_path != "/" and page == "/sign-in" else {})}
    return RedirectResponse(f"{page}?{urlencode(query)}", 303)
