"""The models that can be loaded: those found here, and one download at a time. Swaps the engine's model."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from app.domain.audit import AuditAction
from app.errors import AppError, Conflict, ModelUnusable, NotFound, StorageUnavailable
from app.models.downloads import check_downloadable, download, place_of
from app.models.folders import GUIDE, model_folders, models_dir
from app.models.in_use import ModelClaim
from app.models.local_model import LocalModel, ModelError
from app.models.names import EXAMPLE, is_hub_id
from app.models.performance import DecodeLimit, decode_limit, memory_problem
from app.models.recommended import find_recommended
from app.models.scan import Scan, find_models
from app.models.wheel_download import Progress
from app.services.hosted_model import hosted_model
from app.settings import AppSettings
from app.store.desk.audit import Audit
from engine import (
    PROJECT_ROOT,
    ChatEngine,
    EngineState,
    ModelHost,
    ModelInfo,
    run_in_daemon_thread,
)

_log = logging.getLogger(__name__)


class DownloadState(StrEnum):
    """The state of a download. The last three are final."""

    DOWNLOADING = "downloading"
    LOADING = "loading"  #: it is here, and takes the loaded model's place
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Download:
    """A download, and what follows it."""

    model: str  #: as it was asked for
    title: str
    load: bool  #: whether the model is loaded afterwards
    state: DownloadState = DownloadState.DOWNLOADING
    stage: str = ""
    progress: float = 0.0  #: of the stage, 0 to 1
    error: str | None = None  #: why it failed, as a sentence

    @property
    def is_running(self) -> bool:
        return self.state in (DownloadState.DOWNLOADING, DownloadState.LOADING)


class Models:
    """Finds, downloads and loads models.

    Args:
        engine: may be one on another server: then every command is refused.
        audit: records each change of the model.
    """

    def __init__(self, settings: AppSettings, engine: ChatEngine, audit: Audit) -> None:
        self.download: Download | None = None  #: the last one; None before the first
        self._settings = settings
        self._engine = engine
        self._audit = audit
        self._task: asyncio.Task[None] | None = None
        self._cancelled = threading.Event()
        self._claim = ModelClaim()
        self._first_model = engine.settings.model if isinstance(engine, ModelHost) else None
        self._claim.hold(self._first_model)
        self._decode_limit: tuple[ModelInfo, DecodeLimit | None] | None = None  # of the model that was asked about last

    @property
    def folder(self) -> Path:
        """Where downloaded models are put."""
        return models_dir(self._settings, self.host.settings)

    @property
    def host(self) -> ModelHost:
        """The engine, if it hosts a model itself.

        Raises:
            NotSupported: the model runs on another server.
        """
        with self.hosted() as host:
            return host

    def hosted(self) -> AbstractContextManager[ModelHost]:
        """Yields the engine as :attr:`host`, and converts its errors; see :func:`hosted_model`."""
        return hosted_model(self._engine)

    @property
    def can_load_paths(self) -> bool:
        """Whether a folder may be named that is not among the found models: not with accounts, where an admin of the
        page need not be a person who may read the server's files."""
        return not self._settings.accounts

    @property
    def is_downloading(self) -> bool:
        return self.download is not None and self.download.is_running

    @property
    def has_guide(self) -> bool:
        """Whether the model in the box is the one to use, which knows only Deskmate."""
        if not isinstance(self._engine, ModelHost):
            return False
        return (PROJECT_ROOT / self._engine.settings.model).resolve() == GUIDE.resolve()

    async def find(self) -> Scan:
        """Returns the models on this machine."""
        return await run_in_daemon_thread(partial(find_models, model_folders(self.folder)))

    async def decode_limit(self) -> DecodeLimit | None:
        """Returns what bounds the speed of the loaded model, measured once; None if that is not known."""
        host, info = self._engine, self._engine.info
        if not isinstance(host, ModelHost) or host.status.state is not EngineState.READY or self.has_guide:
            return None  # the processor's caches hold the guide
        if self._decode_limit is None or self._decode_limit[0] != info:
            model = self.loaded(await self.find())
            limit = await run_in_daemon_thread(partial(decode_limit, model, info, host.settings)) if model else None
            self._decode_limit = (info, limit)
        return self._decode_limit[1]

    def loaded(self, scan: Scan) -> LocalModel | None:
        """Returns the loaded model, or the one to wake up, if it was found."""
        return _find(scan, self.host.settings.model)

    async def load(
        self,
        name: str,
        *,
        revision: str | None = None,
        max_model_len: int | None = None,
        timeout: float = 30.0,
        actor_id: str | None,
    ) -> None:
        """Loads a model in place of the loaded one, which goes on serving until then, and after a failure.

        Args:
            name: a found model's id, name or target; a hub id; and, without accounts, any folder or file.
            timeout: seconds for replies in flight.
            actor_id: the user who asked for it.

        Raises:
            ModelUnusable: there is no such model, or it cannot be loaded.
            Conflict: a model is being loaded already.
            EngineUnavailable: the engine is not started.
        """
        with self.hosted() as host:
            target = await self._resolve(name)
            await host.swap(target, revision=revision, max_model_len=max_model_len, timeout=timeout)
        self._claim.hold(target)
        try:
            await self._audit.record(actor_id, AuditAction.MODEL_CHANGED, self._engine.info.name)
        except StorageUnavailable as error:
            _log.warning("the change of the model is not in the audit log: %s", error.message)

    def start_download(self, name: str, *, load: bool, actor_id: str | None) -> Download:
        """Starts to download a model, or joins the download of the same one.

        Args:
            name: on the recommended list, or a hub id.
            load: load it afterwards.

        Raises:
            ModelUnusable: the name is neither.
            Conflict: another model is being downloaded.
        """
        _ = self.host  # refuses where the model runs on another server
        running = self.download
        try:
            recommended = check_downloadable(name)
        except ModelError as error:
            raise ModelUnusable(str(error)) from error
        known_as = recommended.name if recommended is not None else name
        if running is not None and running.is_running:
            if running.model != known_as:
                raise Conflict(f"{running.title} is being downloaded. Wait until it's done, or cancel it.")
            running.load |= load
            return running
        self._cancelled.clear()
        title = recommended.title if recommended is not None else name
        self.download = Download(known_as, title, load)
        self._task = asyncio.create_task(self._run(self.download, actor_id), name="model download")
        return self.download

    def cancel_download(self) -> None:
        """Cancels the download in progress; what has arrived stays for the next one.

        Raises:
            NotFound: there is none.
            Conflict: it has ended, and the model is being loaded.
        """
        running = self.download
        if running is None or not running.is_running:
            raise NotFound("No model is being downloaded.")
        if running.state is DownloadState.LOADING:
            raise Conflict("The download is done, and the model is being loaded. That can't be cancelled.")
        self._cancelled.set()

    async def close(self) -> None:
        """Ends a download. A model that is being loaded is the engine's to cancel."""
        self._cancelled.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._claim.release()

    async def _resolve(self, name: str) -> str:
        """Returns what the engine loads for ``name``.

        Raises:
            ModelUnusable: there is no such model, or it is damaged or too large.
        """
        found = await self.find()
        recommended = find_recommended(name)
        model = _find(found, name)
        if model is None and recommended is not None:
            model = found.find(place_of(recommended, self.folder))
        if model is not None:
            if model.problem is not None:
                raise ModelUnusable(f"{model.name} cannot be loaded: {model.problem}")
            problem = memory_problem(model, self.host.settings, released=self.loaded(found))
            if problem is not None:
                raise ModelUnusable(problem)
            return model.target
        if self.can_load_paths or name == self._first_model or is_hub_id(name):
            return name
        raise ModelUnusable(
            f"{name[:100]} is neither a model found on this server nor a hub ID such as {EXAMPLE}. Put its folder into "
            "the models folder (ENGINE_MODELS_DIR) first."
        )

    async def _run(self, running: Download, actor_id: str | None) -> None:
        try:
            target = await run_in_daemon_thread(
                partial(download, running.model, self.folder, self._reporter(running)), cancel=self._cancelled.set
            )
            if running.load:
                running.state = DownloadState.LOADING
                await self.load(target, actor_id=actor_id)
            running.state = DownloadState.DONE
        except (_CancelledDownload, asyncio.CancelledError):
            running.state = DownloadState.CANCELLED
        except (ModelError, AppError) as error:
            running.error, running.state = str(error), DownloadState.FAILED
        except Exception:
            _log.exception("the download of %s failed", running.model)
            running.error = "An internal error occurred. The server's log has the details."
            running.state = DownloadState.FAILED

    def _reporter(self, running: Download) -> Progress:
        def report(stage: str, fraction: float) -> None:
            if self._cancelled.is_set():
                raise _CancelledDownload
            running.stage, running.progress = stage, fraction

        return report


def _find(scan: Scan, name: str) -> LocalModel | None:
    """Finds a model also by a path relative to the working directory or to Deskmate's folder, as the engine does."""
    by_path = (str(root / name) for root in (Path.cwd(), PROJECT_ROOT))
    return scan.find(name) or next(filter(None, map(scan.find, by_path)), None)


class _CancelledDownload(Exception):
    """A user cancelled the download, or the server stops."""
