"""Reads the documents that wait, one after another, in the background of the server."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing, suppress
from pathlib import Path

from app.domain.knowledge import ReadingJob
from app.errors import AppError, StorageUnavailable
from app.knowledge.reading_process import CutDocument, ReaderEnded, read_isolated, reading_host
from app.store.knowledge.reading import ReadingQueue

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0  #: documents may be added by another process
RENEW_SECONDS = 10.0  #: a claim's lease is renewed at least this often
PROGRESS_SECONDS = 1.0  #: how far a document has been read is stored at most this often
RETRY_SECONDS = 30.0  #: pause after a failure of the disk or the database


class Ingest:
    """Claims documents and stores their chunks until it is closed. Any number of processes may do so side by side."""

    def __init__(self, queue: ReadingQueue, tokenizer: Path) -> None:
        self._queue = queue
        self._tokenizer = tokenizer
        self._host = reading_host(tokenizer)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="ingest")

    async def close(self) -> None:
        """Stops reading. The document that is being read waits again."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._host.kill()

    async def read_next(self) -> bool:
        """Reads one document; False if none waits.

        Raises:
            StorageUnavailable: the disk or the database refuses; the document waits again.
        """
        job = await self._queue.claim_next()
        if job is None:
            return False
        try:
            await self._read_and_save(job)
        except (asyncio.CancelledError, StorageUnavailable):
            # Not the file's fault: were it an attempt, a disk that is full for a minute would fail every document.
            await self._queue.release(job)
            raise
        except ReaderEnded as error:
            # The next one may be killed, too, or not: it is no fault of the file if memory ran out.
            _log.warning("reading is tried again: %s", error)
            await self._queue.postpone(job)
        except AppError as error:
            await self._queue.fail(job, error.message)
        return True

    async def _run(self) -> None:
        while True:
            try:
                pause = 0.0 if await self.read_next() else POLL_SECONDS
            except StorageUnavailable as error:
                _log.warning("documents cannot be read now: %s The next attempt follows in %d s", error, RETRY_SECONDS)
                pause = RETRY_SECONDS
            except Exception:  # the loop must outlive a failure of the disk or the database
                _log.exception("documents could not be read; the next attempt follows in %d s", RETRY_SECONDS)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _read_and_save(self, job: ReadingJob) -> None:
        document = await self._read(job)
        if document is not None:
            with closing(document):
                await self._queue.save(job, document.title, document.text, document.batches())

    async def _read(self, job: ReadingJob) -> CutDocument | None:
        """The document; None if the claim is lost while it is read."""
        share, stored = 0.0, 0.0
        loop = asyncio.get_running_loop()
        renewed = loop.time()

        def progress(fraction: float) -> None:
            nonlocal share
            share = fraction

        reading = asyncio.create_task(
            read_isolated(job.data, job.name, self._tokenizer, progress, self._host, job.index)
        )
        try:
            while not (await asyncio.wait([reading], timeout=min(PROGRESS_SECONDS, RENEW_SECONDS)))[0]:
                if share == stored and loop.time() < renewed + RENEW_SECONDS:
                    continue
                stored, renewed = share, loop.time()
                if not await self._queue.progress(job, stored):
                    return None
            return await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, AppError):
                await reading
