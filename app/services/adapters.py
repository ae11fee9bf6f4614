"""Loads and unloads LoRA adapters of the model while it serves."""

from __future__ import annotations

import logging
from pathlib import Path

from app.domain.audit import AuditAction
from app.errors import ModelUnusable, NotFound, StorageUnavailable
from app.services.models import Models
from app.store.desk.audit import Audit
from engine import InvalidRequestError

_log = logging.getLogger(__name__)


class Adapters:
    """The adapters of the engine's model.

    Args:
        models: knows the engine, the models folder, and whether any folder may be read.
        audit: records what was loaded and unloaded.
    """

    def __init__(self, models: Models, audit: Audit) -> None:
        self._models = models
        self._audit = audit

    async def load(self, name: str, folder: str, *, actor_id: str | None) -> None:
        """Loads an adapter under a name of its own.

        Args:
            folder: in the models folder, by its name there or its path; without accounts, any folder.
            actor_id: the user who asked for it.

        Raises:
            NotSupported: the model runs on another server.
            ModelUnusable: the folder may not be read, or the adapter cannot be loaded.
            Conflict: a model is being loaded.
            EngineUnavailable: the engine is not started, or asleep.
        """
        with self._models.hosted() as host:
            await host.load_adapter(name, self._resolve(folder))
        await self._record(actor_id, AuditAction.ADAPTER_LOADED, name)

    async def unload(self, name: str, *, actor_id: str | None) -> None:
        """Unloads an adapter; replies that it writes go on.

        Raises:
            NotSupported, Conflict, EngineUnavailable: as :meth:`load`.
            NotFound: there is none of this name.
        """
        with self._models.hosted() as host:
            try:
                await host.unload_adapter(name)
            except InvalidRequestError as error:
                raise NotFound(str(error)) from error
        await self._record(actor_id, AuditAction.ADAPTER_UNLOADED, name)

    def _resolve(self, folder: str) -> Path:
        try:
            own = self._models.folder.resolve()
            inside = (own / folder).resolve()
            is_inside = own in inside.parents
        except (OSError, ValueError, RuntimeError):  # not a path, such as one with a null byte, or a loop of links
            is_inside = False
        if is_inside and (inside.is_dir() or not self._models.can_load_paths):
            return inside
        if self._models.can_load_paths:
            return Path(folder)
        raise ModelUnusable(
            f"{folder[:100]} is not in the models folder. Put the adapter's folder into it (ENGINE_MODELS_DIR) first."
        )

    async def _record(self, actor_id: str | None, action: AuditAction, name: str) -> None:
        try:
            await self._audit.record(actor_id, action, name)
        except StorageUnavailable as error:
            _log.warning("the change of the adapters is not in the audit log: %s", error.message)
