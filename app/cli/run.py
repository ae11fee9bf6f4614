"""``deskmate run``: replies to the requests of a file, offline, and goes on where an earlier run stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer
import uvloop

from app.api.openai import batch
from app.api.openai.errors import OpenAIError, to_openai_error
from app.cli.batch_file import BatchLine, ReplyFile, read_ids, read_lines
from app.cli.console import StageProgress
from app.cli.engines import make_engine, with_found_model
from app.errors import AppError
from app.settings import AppSettings
from engine import ChatEngine, EngineFailedError, EngineOverloadedError, EngineSettings, EngineStoppedError

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 2.0
"""Pauses before a request that the engine's full queue refused is sent again."""
SOME_FAILED = 1
"""Exit status: every request was tried, and some have an error instead of a reply."""


def run(
    app: AppSettings, settings: EngineSettings, requests: Path, replies: Path, max_concurrency: int | None = None
) -> int:
    """Runs the file's requests and returns the exit status, 0 or :data:`SOME_FAILED`.

    Args:
        app: says where downloaded models are.

    Raises:
        StartupError: the model cannot be downloaded.
        InvalidInput: a file cannot be read or written, or is not made of requests or replies.
        EngineError: the model cannot be loaded, or the engine stopped. The replies so far are written.
    """
    ids = read_ids(requests)
    with StageProgress() as progress, ReplyFile(replies) as output:
        num_there = len(ids & output.answered)
        waiting = (line for line in read_lines(requests) if line.custom_id not in output.answered)
        is_done = len(ids) == num_there
        found = settings if is_done else with_found_model(app, settings, progress)
        job = _Run(found, output, waiting, len(ids), num_there, progress)
        try:
            if not is_done:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(job.run(max_concurrency or settings.max_num_seqs))
        except BaseException:
            progress.stop()
            typer.echo(f"Stopped. {job.num_replies:,} replies were written. Run again to go on.", err=True)
            raise
    for names, count in job.ignored.most_common():
        typer.echo(f"deskmate: warning: {count:,} requests have unknown fields, which had no effect: {names}", err=True)
    earlier = f"; {num_there:,} were there already" if num_there else ""
    typer.echo(f"{job.num_replies:,} replies were written to {replies}{earlier}.", err=True)
    if job.num_errors:
        typer.echo(f"{job.num_errors:,} requests have an error instead. Run again to try them again.", err=True)
    return SOME_FAILED if job.num_errors else 0


class _Run:
    """One run over the requests that have no reply yet."""

    def __init__(
        self,
        settings: EngineSettings,
        output: ReplyFile,
        waiting: Iterator[BatchLine],
        total: int,
        num_done: int,
        progress: StageProgress,
    ) -> None:
        self.num_replies = self.num_errors = 0
        self.ignored: Counter[str] = Counter()
        self._settings = settings
        self._output = output
        self._waiting = waiting
        self._total = total
        self._done = num_done
        self._progress = progress
        self._in_flight = 0

    async def run(self, max_concurrency: int) -> None:
        async with make_engine(self._settings, self._progress) as engine:
            self._show()
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(max_concurrency, self._total - self._done)):
                        group.create_task(self._work(engine))
            except* (EngineStoppedError, AppError) as failures:
                raise failures.exceptions[0] from failures

    async def _work(self, engine: ChatEngine) -> None:
        for line in self._waiting:
            try:
                reply = batch.reply_line(line.custom_id, await self._reply(engine, line))
                self.num_replies += 1
            except OpenAIError as error:
                reply = batch.error_line(line.custom_id, error)
                self.num_errors += 1
            self._output.append(reply)
            self._done += 1
            self._show()

    async def _reply(self, engine: ChatEngine, line: BatchLine) -> dict[str, object]:
        request = batch.read_request(line.content)
        if names := batch.ignored_fields(request):
            self.ignored[names] += 1
        pause = MIN_BACKOFF_SECONDS
        self._in_flight += 1
        try:
            while True:
                try:
                    return await batch.reply_to(engine, request)
                except EngineOverloadedError as error:
                    if self._in_flight == 1:  # no other request will make room for it
                        raise to_openai_error(error) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_BACKOFF_SECONDS)
        except EngineStoppedError as error:
            if not isinstance(error, EngineFailedError):
                raise
            raise to_openai_error(error) from error
        finally:
            self._in_flight -= 1

    def _show(self) -> None:
        self._progress(f"Replying to {self._total:,} requests", self._done / self._total)
