"""What the commands of ``deskmate kb`` do with the documents of a collection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from app.cli.console import StageProgress
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.knowledge import CollectionView, DocumentSource, DocumentState, DocumentView
from app.domain.storage import MIB
from app.domain.text import shown_name
from app.errors import InvalidInput, LimitReached, NotFound, TooLarge
from app.knowledge.folder_files import read_file, scan_folder
from app.knowledge.folder_sync import FolderSync
from app.knowledge.ingest import Ingest
from app.knowledge.readers.kinds import promised_kind
from app.services.knowledge import TOKENIZER, knowledge_limits
from app.settings import AppSettings
from app.store.accounts.accounts import AccountRecords
from app.store.db.database import Database
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.store.knowledge.collections import Collections
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import ReadingQueue
from app.store.knowledge.stale_chunks import StaleChunks
from app.store.knowledge.stored_files import StoredFiles
from app.store.maintenance.check import inspect_database
from app.store.maintenance.migrate import migrate
from app.store.maintenance.process_lock import claim_database

POLL_SECONDS = 0.5  #: while another process reads the last documents

#: Errors of one file; any other ends the command.
FILE_ERRORS = (InvalidInput, LimitReached, TooLarge)


class KnowledgeFiles:
    """The documents of one collection, as one user may use and change them."""

    def __init__(
        self, database: Database, settings: AppSettings, user_id: str, collections: Sequence[CollectionView], into: str
    ) -> None:
        self.database = database
        self.documents = Documents(database, knowledge_limits(settings))
        self.stored = StoredFiles(database)
        self.user_id = user_id
        self.collection_id = into
        self._collections = {one.id: one.name for one in collections}
        self._max_bytes = settings.knowledge_max_file_mb * MIB

    @property
    def is_default(self) -> bool:
        """Whether the collection is the one that follows the folder of the settings."""
        return self.collection_id == KNOWLEDGE_COLLECTION_ID

    async def add(self, paths: Iterable[Path], *, read: bool) -> bool:
        """Adds files, and reads them; returns whether that worked for each.

        Raises:
            InvalidInput: a path does not exist, or two have the same name. Nothing was added.
            NotAllowed: the user may not edit the collection.
        """
        errors: dict[str, str] = {}
        added: Counter[bool] = Counter()
        ids = set()
        for name, path in _named(paths).items():
            try:
                data = await asyncio.to_thread(read_file, path, name, self._max_bytes)
                document = await self.documents.add(
                    self.user_id, self.collection_id, name, data, kind=promised_kind(name), source=DocumentSource.CLI
                )
            except FILE_ERRORS as error:
                errors[name] = error.message
                continue
            added[document.changed] += 1
            ids.add(document.id)
        unchanged = f"; {added[False]:,} there already" if added[False] else ""
        typer.echo(f"{counted(added[True], 'document')} added{unchanged}.")
        return await self.finish(ids, errors, read=read)

    async def sync(self, folder: Path, *, read: bool) -> bool:
        """Makes the collection's documents that came from a folder what the folder has; returns whether all worked.

        Raises:
            InvalidInput, NotAllowed: as :meth:`FolderSync.sync`.
        """
        sync = FolderSync(
            self.documents,
            self.stored,
            folder,
            max_file_bytes=self._max_bytes,
            user_id=self.user_id,
            collection_id=self.collection_id,
        )
        report = await sync.sync()
        counts = (len(report.added), len(report.changed), len(report.removed))
        typer.echo("{:,} added, {:,} changed, {:,} removed.".format(*counts))
        return await self.finish(report.document_ids, report.errors, read=read)

    async def finish(self, ids: set[str], errors: Mapping[str, str], *, read: bool) -> bool:
        """Reads what waits, if wanted, and prints the errors; returns whether there is none."""
        failed = dict(errors)
        if read and ids:
            await self.read_waiting()
            await self._clean_up()
            failed |= {
                one.name: one.error or ""
                for one in (await self.stored.all(self.user_id, self.collection_id)).values()
                if one.document_id in ids and one.state is DocumentState.FAILED
            }
        for name, error in failed.items():
            typer.echo(error if error.startswith(name) else f"{name}: {error}", err=True)
        return not failed

    async def read_waiting(self) -> None:
        """Reads the collection's documents that wait, beside a running server, and waits for those that it reads."""
        ingest = Ingest(ReadingQueue(self.database, new_id()), TOKENIZER)
        total = 0
        with StageProgress() as progress:
            while left := await self.stored.count_unread(self.user_id, self.collection_id):
                total = max(total, left)
                progress("Reading documents", 1 - left / total)
                if not await ingest.read_next():
                    await asyncio.sleep(POLL_SECONDS)
            if total:
                progress("Reading documents", 1.0)

    async def show(self, *, all: bool) -> None:
        """Prints the documents of the collection, or all that the user may see, by collection and name."""
        found: list[DocumentView] = []
        cursor: str | None = None
        while True:
            page = await self.documents.page(self.user_id, None if all else self.collection_id, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        for one in sorted(found, key=lambda one: (self._collections.get(one.collection, ""), one.name)):
            typer.echo(f"{self._collections.get(one.collection, '')}  {one.name}  {_state(one)}")

    async def remove(self, names: Iterable[str]) -> bool:
        """Removes documents by name; returns whether each existed.

        Raises:
            NotAllowed: the user may not edit the collection.
        """
        stored = await self.stored.all(self.user_id, self.collection_id)
        collection = self._collections[self.collection_id]
        missing = False
        for name in dict.fromkeys(names):
            if name not in stored:
                typer.echo(f'There is no document "{name}" in "{collection}".', err=True)
                missing = True
                continue
            await self.documents.remove(self.user_id, stored[name].document_id)
            typer.echo(f"{name} was removed.")
        await self._clean_up()
        return not missing

    async def _clean_up(self) -> None:
        """Deletes what is left of large documents; without a running server it would stay until the next start."""
        stale = StaleChunks(self.database)
        while await stale.clean_up():
            pass


@asynccontextmanager
async def open_files(settings: AppSettings, collection: str | None, user: str | None) -> AsyncIterator[KnowledgeFiles]:
    """Opens the database, also beside a running server.

    Args:
        collection: its name; None is the one that every knowledge base has.
        user: the name to sign in with; None is the local user, who may do everything.

    Raises:
        NotFound: there is no such user or collection.
        StartupError: the database cannot be used.
    """
    url = settings.resolved_database_url
    if not inspect_database(url, whole=False).current:  # a running server has migrated it, and holds the claim
        with claim_database(url):
            migrate(url)
    database = Database(url)
    try:
        user_id = LOCAL_USER_ID if user is None else await AccountRecords(database).id_of(user)
        usable = await Collections(database).all(user_id)
        yield KnowledgeFiles(database, settings, user_id, usable, _collection(usable, collection))
    finally:
        await database.close()


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _collection(usable: Sequence[CollectionView], name: str | None) -> str:
    if name is None:
        return KNOWLEDGE_COLLECTION_ID
    for one in usable:
        if one.name.casefold() == name.casefold():
            return one.id
    names = ", ".join(f'"{one.name}"' for one in usable) or "none"
    raise NotFound(f'There is no collection "{name}". There are: {names}. Admins create others at /desk#knowledge.')


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """The files by the names that their documents get: of a file its own, in a folder the path from there."""
    named: dict[str, Path] = {}

    def put(name: str, path: Path) -> None:
        if named.setdefault(name, path).resolve() != path.resolve():
            raise InvalidInput(
                f"{named[name]} and {path} would both be the document {name}. Rename one, or add them to different "
                "collections. Nothing was added."
            )

    for path in paths:
        if path.is_dir():
            for name, file in scan_folder(path).items():
                put(name, file.path)
        elif path.exists():
            put(shown_name(path.name), path)
        else:
            raise InvalidInput(f"There is no file {path}. Nothing was added.")
    return named


def _state(document: DocumentView) -> str:
    version = f"version {document.newest}"
    match document.state:
        case DocumentState.READY:
            return f"{version}  ready  {counted(document.chunks, 'chunk')}"
        case DocumentState.READING:
            return f"{version}  reading  {document.progress:.0%}"
        case DocumentState.FAILED:
            return f"{version}  failed  {document.error}"
        case state:
            return f"{version}  {state.value}"
