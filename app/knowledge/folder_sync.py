"""Keeps a collection as a folder is: new, changed and deleted files become documents, versions and removals."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import DocumentSource, DocumentState
from app.errors import AppError, InvalidInput, LimitReached, NotFound, TooLarge
from app.knowledge.folder_files import FolderFile, read_file, scan_folder
from app.knowledge.readers.kinds import promised_kind
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.store.knowledge.documents import Documents
from app.store.knowledge.stored_files import StoredFile, StoredFiles

_log = logging.getLogger(__name__)

SCAN_SECONDS = 5.0
"""Between two looks at the folder. A file must not change from one to the next: it may still be being copied."""
REMOVAL_SECONDS = 60.0
"""A file is missing for so long before a running server removes its document, with its versions: a folder that is
copied anew is emptied first."""


@dataclass(slots=True)
class SyncReport:
    """What a synchronisation did."""

    added: list[str] = field(default_factory=list)  #: names of new documents
    changed: list[str] = field(default_factory=list)  #: names of documents with a new version
    removed: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)  #: by name, the sentences of files that were left out
    document_ids: set[str] = field(default_factory=set)  #: of what was added and changed


class FolderSync:
    """Synchronises a collection with a folder, by the content of the files.

    Only documents that came from a folder are changed and removed. One of the same name that came another way stays.

    Args:
        user_id: who adds and removes; the local user may do everything.
    """

    def __init__(
        self,
        documents: Documents,
        stored: StoredFiles,
        folder: Path,
        *,
        max_file_bytes: int,
        user_id: str = LOCAL_USER_ID,
        collection_id: str = KNOWLEDGE_COLLECTION_ID,
    ) -> None:
        self._documents = documents
        self._stored = stored
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._user_id = user_id
        self._collection_id = collection_id
        self._seen: dict[str, FolderFile] | None = None  # by the last look; None before the first
        self._synced: dict[str, FolderFile] | None = None
        self._found: set[str] = set()  # names, when documents were last added and removed
        self._missing_since: dict[str, float] = {}  # names of files by which documents came, until they are removed
        self._hashes: dict[str, tuple[FolderFile, str]] = {}  # by name: the content's hash, and the file it was of

    async def sync(self) -> SyncReport:
        """Synchronises once.

        Raises:
            InvalidInput: the folder cannot be read, or is empty while documents came from it. Nothing was changed.
            NotFound: the collection is missing, or the user may not use it.
            NotAllowed: the user may not edit it.
            StorageUnavailable: the disk or the database refuses.
        """
        found = await asyncio.to_thread(scan_folder, self._folder)
        return await self._apply(found, found, patience=0.0)

    async def follow(self) -> None:
        """Looks at the folder once, and synchronises what has changed and settled. Opens no file that it knows.

        Raises:
            InvalidInput, StorageUnavailable: as :meth:`sync`.
        """
        before, self._seen = self._seen, await asyncio.to_thread(scan_folder, self._folder)
        if before is None:
            return
        settled = {name: file for name, file in self._seen.items() if before.get(name) == file}
        if settled != self._synced:
            _log_report(await self._apply(self._seen, settled, patience=REMOVAL_SECONDS))
            self._synced = settled
        elif self._missing_since:
            _log_report(await self._apply(self._seen, {}, patience=REMOVAL_SECONDS))

    async def run(self) -> None:
        """Follows the folder until it is cancelled."""
        problem = ""
        while True:
            try:
                await self.follow()
                problem = ""
            except AppError as error:  # tried again in a moment
                if error.message != problem:
                    _log.warning("the knowledge folder is not synchronised: %s", error.message)
                problem = error.message
            await asyncio.sleep(SCAN_SECONDS)

    async def _apply(
        self, found: Mapping[str, FolderFile], settled: Mapping[str, FolderFile], *, patience: float
    ) -> SyncReport:
        """Adds the settled files, and removes documents of files that have not been found for ``patience`` seconds."""
        stored = await self._stored.all(self._user_id, self._collection_id)
        gone = [one for one in stored.values() if one.source is DocumentSource.FOLDER and one.name not in found]
        if gone and not found:
            self._missing_since.clear()  # its files may come back one by one
            raise InvalidInput(
                f"{self._folder} has no documents, and those in the collection are kept: a volume that is not mounted "
                "looks the same. If it is meant, use `deskmate kb remove`."
            )
        now = monotonic()
        if found.keys() - self._found:  # as long as files come, the folder is being copied
            self._missing_since.clear()
        self._found = set(found)
        self._missing_since = {one.name: self._missing_since.get(one.name, now) for one in gone}
        report = SyncReport()
        for name, file in settled.items():
            try:
                await self._add(name, file, stored.get(name), report)
            except (InvalidInput, LimitReached, TooLarge) as error:
                report.errors[name] = error.message
        for one in gone:
            if now - self._missing_since[one.name] < patience:
                continue
            self._hashes.pop(one.name, None)
            try:
                await self._documents.remove(self._user_id, one.document_id)
                report.removed.append(one.name)
            except NotFound:
                pass  # another server that follows the folder was first
            del self._missing_since[one.name]
        return report

    async def _add(self, name: str, file: FolderFile, stored: StoredFile | None, report: SyncReport) -> None:
        known, digest = self._hashes.get(name, (None, ""))
        data: bytes | None = None
        if known != file:
            data = await asyncio.to_thread(read_file, file.path, name, self._max_file_bytes)
            digest = await asyncio.to_thread(lambda content: hashlib.sha256(content).hexdigest(), data)
            self._hashes[name] = file, digest
        if stored is not None and stored.content_hash == digest:
            was_touched = known is not None and known != file  # since the last look, not before the start
            if stored.state is not DocumentState.FAILED or not was_touched:
                return  # one that could not be read has not become better
        if stored is not None and stored.source is not DocumentSource.FOLDER:
            raise InvalidInput(f"{name} is left out: a document of this name came another way. Rename the file.")
        if data is None:
            data = await asyncio.to_thread(read_file, file.path, name, self._max_file_bytes)
        added = await self._documents.add(
            self._user_id, self._collection_id, name, data, kind=promised_kind(name), source=DocumentSource.FOLDER
        )
        if added.changed:
            (report.added if stored is None else report.changed).append(name)
            report.document_ids.add(added.id)


def _log_report(report: SyncReport) -> None:
    counts = (len(report.added), len(report.changed), len(report.removed))
    if any(counts):
        _log.info("knowledge folder: %d documents added, %d changed, %d removed", *counts)
    for name, sentence in report.errors.items():
        _log.warning("knowledge folder: %s", sentence if sentence.startswith(name) else f"{name}: {sentence}")
