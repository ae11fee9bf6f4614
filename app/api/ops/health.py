"""Probes and metrics: ``/health``, ``/ready``, ``/metrics``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app.api.deps import Metrics, ServicesDep
from app.errors import AppError, StorageUnavailable

router = APIRouter(tags=["process"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness probe. Checks no dependencies, so it responds at once."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Not ready, with the reason."}})
async def ready(services: ServicesDep) -> JSONResponse:
    """Readiness probe: 200 if the engine takes requests and the database responds, else 503 with the reason."""
    body: dict[str, Any]
    try:
        await services.ready()
    except AppError as error:
        body = {"status": "unavailable", "code": error.code, "reason": error.message}
        return JSONResponse(body, status_code=503)
    return JSONResponse({"status": "ready", "model": services.engine.info.name})


@router.get("/metrics", response_class=Response)
async def metrics(services: ServicesDep, http: Metrics) -> Response:
    """Returns the Prometheus metrics of the engine and the application."""
    with suppress(StorageUnavailable):  # the last time that is known is still right
        await services.backups.status()
    http.last_backup.set(services.backups.last_good)
    text = generate_latest(services.engine.registry) + generate_latest(http.registry)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
