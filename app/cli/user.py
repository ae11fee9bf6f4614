"""``deskmate user``: creates and manages accounts, whether or not the server is running."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.flags import read_settings, with_flags
from app.domain.accounts import AccountView, fold_name
from app.domain.roles import UserRole
from app.errors import StartupError
from app.settings import AppSettings

if TYPE_CHECKING:
    from app.auth.accounts import AccountService
    from app.services.erasure import Erasure
    from app.store.accounts.personal_data import DeletionPreview
    from app.store.db.database import Database

user = typer.Typer(help="Manage the users who sign in.", no_args_is_help=True, rich_markup_mode=None)

Result = TypeVar("Result")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name to sign in with.")]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input instead of prompting for it.")
]


@user.command()
@with_flags(AppSettings)
def create(
    name: Name,
    role: Annotated[UserRole, typer.Option("--role", help="The user's role.")] = UserRole.AGENT,
    display_name: Annotated[str | None, typer.Option("--display-name", help="The name that other users see.")] = None,
    password_stdin: PasswordStdin = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Give the user the conversations from before there were accounts.")
    ] = False,
    **flags: str | bool | None,
) -> None:
    """Create an account. Prompts for its password."""
    settings = _settings(flags)
    password = _password(password_stdin)

    async def work(accounts: AccountService) -> tuple[AccountView, int]:
        made = await accounts.create(name, display_name, role, password)
        return made, await accounts.invitations.take_over(made.id) if take_over else 0

    made, taken = _with_accounts(settings, work)
    typer.echo(f"{made.name} can sign in as {made.role.value}." + (f" Conversations taken over: {taken}." * take_over))


@user.command("list")
@with_flags(AppSettings)
def list_users(**flags: str | bool | None) -> None:
    """List the accounts: name, role, last visit, and whether the account is disabled."""

    async def work(accounts: AccountService) -> list[AccountView]:
        return list(await accounts.records.list())

    for person in _with_accounts(_settings(flags), work):
        disabled = "  disabled" if person.disabled_at else ""
        typer.echo(f"{person.name}  {person.role.value}  {_seen(person.last_seen_at)}{disabled}")


@user.command()
@with_flags(AppSettings)
def disable(name: Name, **flags: str | bool | None) -> None:
    """Disable an account at once: its sessions end, and its API keys stop working."""

    async def work(accounts: AccountService) -> None:
        await accounts.set_disabled(await accounts.records.id_of(name), True, actor_id=None)

    _with_accounts(_settings(flags), work)
    typer.echo(f"{fold_name(name)} is disabled.")


@user.command()
@with_flags(AppSettings)
def enable(name: Name, **flags: str | bool | None) -> None:
    """Enable a disabled account."""

    async def work(accounts: AccountService) -> None:
        await accounts.set_disabled(await accounts.records.id_of(name), False, actor_id=None)

    _with_accounts(_settings(flags), work)
    typer.echo(f"{fold_name(name)} can sign in again.")


@user.command("role")
@with_flags(AppSettings)
def set_role(
    name: Name,
    role: Annotated[UserRole, typer.Argument(metavar="ROLE", help="admin, agent or viewer.")],
    **flags: str | bool | None,
) -> None:
    """Change a user's role."""

    async def work(accounts: AccountService) -> None:
        await accounts.set_role(await accounts.records.id_of(name), role, actor_id=None)

    _with_accounts(_settings(flags), work)
    typer.echo(f"{fold_name(name)} is now {role.value}.")


@user.command()
@with_flags(AppSettings)
def connect(
    name: Name,
    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="The provider's own id of the user: the claim sub."),
    ],
    **flags: str | bool | None,
) -> None:
    """Let a user of the sign-in provider (APP_OIDC_ISSUER) sign in to an existing account."""
    settings = _settings(flags)
    issuer = _issuer(settings)

    async def work(accounts: AccountService) -> None:
        user_id = await accounts.records.id_of(name)
        await accounts.identities.connect(user_id, issuer, subject, subject[:200], actor_id=None)

    _with_accounts(settings, work)
    typer.echo(f"{fold_name(name)} is connected to {subject} of {issuer}.")


@user.command()
@with_flags(AppSettings)
def disconnect(name: Name, **flags: str | bool | None) -> None:
    """Disconnect an account from the sign-in provider, and end the sessions that began there."""
    settings = _settings(flags)
    issuer = _issuer(settings)

    async def work(accounts: AccountService) -> None:
        await accounts.identities.disconnect(await accounts.records.id_of(name), issuer, actor_id=None)

    _with_accounts(settings, work)
    typer.echo(f"{fold_name(name)} is disconnected from {issuer}.")


@user.command("reset-password")
@with_flags(AppSettings)
def reset_password(
    name: Name,
    link: Annotated[
        bool, typer.Option("--link", help="Print a link with which the user sets it, instead of prompting for it.")
    ] = False,
    password_stdin: PasswordStdin = False,
    **flags: str | bool | None,
) -> None:
    """Set a new password for a user, and end all their sessions."""
    settings = _settings(flags)
    if link:
        from app.auth.accounts import RESET_HOURS

        async def make(accounts: AccountService) -> str:
            return await accounts.reset_token(await accounts.records.id_of(name), actor_id=None)

        address = settings.public_url or f"http://127.0.0.1:{settings.port}"
        token = _with_accounts(settings, make)
        typer.echo(f"{address}/invitation/{token}")
        typer.echo(f"It works once, within {RESET_HOURS} hours.", err=True)
        return
    password = _password(password_stdin)

    async def work(accounts: AccountService) -> None:
        await accounts.reset_password(await accounts.records.id_of(name), password)

    _with_accounts(settings, work)
    typer.echo(f"{fold_name(name)} has a new password, and was signed out everywhere.")


@user.command()
@with_flags(AppSettings)
def delete(
    name: Name,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    **flags: str | bool | None,
) -> None:
    """Delete a user with all their data, permanently: conversations, feedback, stored responses, keys, sessions."""

    settings = _settings(flags)

    async def look(erasure: Erasure) -> DeletionPreview:
        return await erasure.preview(await erasure.find(name))

    async def erase(erasure: Erasure) -> DeletionPreview:
        return await erasure.erase(None, await erasure.find(name))

    typer.echo(f"Deleting {fold_name(name)} deletes {_counted(_with_erasure(settings, look))}.")
    if preview:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise StartupError("There is no terminal to confirm the deletion. Use --yes, or --preview to look only.")
        typer.confirm("This can't be undone. Delete it?", abort=True)
    _with_erasure(settings, erase)
    typer.echo(f"{fold_name(name)} was deleted. Backups still hold this data until you delete them.")


def _issuer(settings: AppSettings) -> str:
    if settings.oidc_issuer is None:
        raise StartupError("There is no sign-in provider. Set APP_OIDC_ISSUER.")
    return settings.oidc_issuer


def _settings(flags: dict[str, str | bool | None]) -> AppSettings:
    settings = read_settings(AppSettings, flags)
    if settings.secret_key is None:
        raise StartupError("Accounts need a secret: set APP_SECRET_KEY. Make one with: openssl rand -base64 48.")
    return settings


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise StartupError("There is no terminal to prompt for the password. Use --password-stdin.")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _with_accounts(settings: AppSettings, work: Callable[[AccountService], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with _open_accounts(settings) as (accounts, _):
            return await work(accounts)

    return asyncio.run(run())


def _with_erasure(settings: AppSettings, work: Callable[[Erasure], Awaitable[Result]]) -> Result:
    from app.domain.ids import new_id
    from app.services.erasure import Erasure
    from app.store.accounts.personal_data import UserDataRecords
    from app.store.chat.turn_records import TurnRecords

    async def nothing(_user_id: str) -> None:
        """Does nothing: a running server deletes temporary chats itself, within a day."""

    async def run() -> Result:
        async with _open_accounts(settings) as (accounts, database):
            records = TurnRecords(database, new_id(), settings.lease_seconds)
            return await work(
                Erasure(
                    UserDataRecords(database),
                    lambda user_id, by: accounts.set_disabled(user_id, True, actor_id=by),
                    records.delete_conversation,
                    nothing,
                )
            )

    return asyncio.run(run())


def _counted(data: DeletionPreview) -> str:
    counts = [
        (data.conversations, "conversation", "conversations"),
        (data.messages, "message", "messages"),
        (data.replies, "reply", "replies"),
        (data.feedback, "rating", "ratings"),
        (data.responses, "stored response", "stored responses"),
        (data.drafts, "draft", "drafts"),
        (data.articles, "proposed article", "proposed articles"),
        (data.marked_questions, "marked question", "marked questions"),
        (data.api_keys, "API key", "API keys"),
        (data.sessions, "session", "sessions"),
    ]
    return f"the account and {', '.join(f'{count:,} {one if count == 1 else many}' for count, one, many in counts)}"


@asynccontextmanager
async def _open_accounts(settings: AppSettings) -> AsyncIterator[tuple[AccountService, Database]]:
    from app.auth.accounts import AccountService
    from app.store.db.database import Database
    from app.store.maintenance.check import inspect_database
    from app.store.maintenance.migrate import migrate
    from app.store.maintenance.process_lock import claim_database

    url = settings.resolved_database_url
    if not inspect_database(url, whole=False).current:  # a running server has migrated it, and holds the claim
        with claim_database(url):
            migrate(url)
    database = Database(url)
    accounts = AccountService(database, settings)
    try:
        yield accounts, database
    finally:
        accounts.close()
        await database.close()


def _seen(moment: datetime | None) -> str:
    return f"last seen {moment:%Y-%m-%d %H:%M} UTC" if moment else "never seen"
