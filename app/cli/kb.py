"""``deskmate kb``: adds documents to the knowledge base, lists and removes them, also beside a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.flags import read_settings, with_flags
from app.errors import StartupError
from app.settings import AppSettings

if TYPE_CHECKING:
    from app.cli.kb_documents import KnowledgeFiles

kb = typer.Typer(help="Manage the documents that answers rest on.", no_args_is_help=True, rich_markup_mode=None)

Result = TypeVar("Result")
CollectionName = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", help='The collection. Default: "Knowledge", which always exists.'),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", help="With accounts: act as this user, within their rights, and be audited as them."
    ),
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Leave the reading to a running server, and return as soon as they are added.")
]


@kb.command()
@with_flags(AppSettings)
def add(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files, and folders with all that can be read in them.")
    ],
    collection: CollectionName = None,
    user: User = None,
    no_wait: NoWait = False,
    **flags: str | bool | None,
) -> None:
    """Add documents and read them. A name that exists gets a new version; the same content again changes nothing.

    Exit code 1: some files could not be added or read; the others were.
    """

    async def work(files: KnowledgeFiles) -> bool:
        return await files.add(paths, read=not no_wait)

    _end(_with_files(read_settings(AppSettings, flags), collection, user, work))


@kb.command("list")
@with_flags(AppSettings)
def list_documents(
    collection: Annotated[
        str | None, typer.Option("--collection", metavar="NAME", help="Only the documents of this collection.")
    ] = None,
    user: User = None,
    **flags: str | bool | None,
) -> None:
    """List the documents: collection, name, version, state, chunks, and what is wrong with one that cannot be read."""
    _with_files(read_settings(AppSettings, flags), collection, user, lambda files: files.show(all=collection is None))


@kb.command()
@with_flags(AppSettings)
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The documents' names, as `list` shows them.")],
    collection: CollectionName = None,
    user: User = None,
    **flags: str | bool | None,
) -> None:
    """Remove documents with all their versions. Replies that cite them keep their quotations.

    Exit code 1: there is no document of one of the names; the others were removed.
    """
    _end(_with_files(read_settings(AppSettings, flags), collection, user, lambda files: files.remove(names)))


@kb.command()
@with_flags(AppSettings)
def sync(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="The folder. Default: that of APP_KNOWLEDGE_DIR.")
    ] = None,
    collection: CollectionName = None,
    user: User = None,
    no_wait: NoWait = False,
    **flags: str | bool | None,
) -> None:
    """Make a collection follow a folder, once: add its new files, read the changed ones, remove those that are gone.

    Documents that came another way stay. Exit code 1: some files could not be added or read.
    """
    settings = read_settings(AppSettings, flags)
    source = folder or settings.knowledge_dir
    if source is None:
        raise StartupError("There is no folder to follow. Name one, or set APP_KNOWLEDGE_DIR.")

    async def work(files: KnowledgeFiles) -> bool:
        return await files.sync(source, read=not no_wait)

    _end(_with_files(settings, collection, user, work))


def _with_files(
    settings: AppSettings, collection: str | None, user: str | None, work: Callable[[KnowledgeFiles], Awaitable[Result]]
) -> Result:
    from app.cli.kb_documents import open_files

    if user is not None and settings.secret_key is None:
        raise StartupError("Without accounts there is one local user. Leave out --user, or set APP_SECRET_KEY.")

    async def run() -> Result:
        async with open_files(settings, collection, user) as files:
            return await work(files)

    return asyncio.run(run())


def _end(is_whole: bool) -> None:
    if not is_whole:
        raise typer.Exit(1)
