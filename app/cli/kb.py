"""``deskmate kb``: adds documents to the knowledge base, lists and removes them, also beside a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.cli.flags import read_settings, with_flags
from app.domain.knowledge import SearchWay
from app.errors import StartupError
from app.settings import AppSettings
from engine import EngineSettings

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
    followed = settings.knowledge_dir

    async def work(files: KnowledgeFiles) -> bool:
        if followed is not None and files.is_default and source.resolve() != followed.resolve():
            raise StartupError(
                f"The server makes the collection of {followed} follow that folder, and another one would remove its "
                "documents. Name a collection for this folder with --collection."
            )
        return await files.sync(source, read=not no_wait)

    _end(_with_files(settings, collection, user, work))


@kb.command("eval")
@with_flags(AppSettings, EngineSettings)
def evaluate(
    questions: Annotated[
        Path,
        typer.Argument(metavar="QUESTIONS.jsonl", help='Lines such as {"question": "...", "answers": ["a phrase"]}.'),
    ],
    half: Annotated[
        str | None,
        typer.Option("--half", metavar="NAME", help="Only the questions whose `half` is this, such as held-out."),
    ] = None,
    way: Annotated[
        SearchWay | None, typer.Option("--way", help="Only this way to search. Default: each that there is.")
    ] = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite", help="Also let the model of --model make questions of follow-ups, which have `before`."
        ),
    ] = False,
    rerank: Annotated[
        int,
        typer.Option(
            "--rerank", min=0, max=50, metavar="N", help="Also let the model of --model sort the first N passages."
        ),
    ] = 0,
    missed: Annotated[bool, typer.Option("--missed", help="Also list the questions that are not found.")] = False,
    collection: Annotated[
        str | None, typer.Option("--collection", metavar="NAME", help="Only search this collection. Default: all.")
    ] = None,
    **flags: str | bool | None,
) -> None:
    """Measure the search with questions: recall at 1, 3 and 10, and the mean reciprocal rank (MRR), for each way.

    A passage answers a question if it contains one of the phrases.
    """
    from app.cli.kb_eval import evaluate as evaluated

    settings, engine = read_settings(AppSettings, flags), read_settings(EngineSettings, flags)

    async def work(files: KnowledgeFiles) -> list[str]:
        into = files.collection_id if collection is not None else None
        return await evaluated(
            files.database,
            settings,
            engine,
            questions,
            collection_id=into,
            half=half,
            way=way,
            rewrite=rewrite,
            rerank=rerank,
            show_missed=missed,
        )

    for line in _with_files(settings, collection, None, work):
        typer.echo(line)


@kb.command()
@with_flags(AppSettings)
def questions(
    collection: Annotated[
        str | None, typer.Option("--collection", metavar="NAME", help="Only the questions of this collection.")
    ] = None,
    user: User = None,
    **flags: str | bool | None,
) -> None:
    """Print the questions that were marked at /desk#knowledge, as the JSON Lines that `eval` reads."""
    from app.domain.marked_questions import as_jsonl
    from app.store.knowledge.marked_questions import MarkedQuestions

    async def work(files: KnowledgeFiles) -> str:
        into = files.collection_id if collection is not None else None
        return as_jsonl(await MarkedQuestions(files.database).all(files.user_id, into))

    typer.echo(_with_files(read_settings(AppSettings, flags), collection, user, work), nl=False)


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
