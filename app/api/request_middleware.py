"""Observability middleware around all routes and the guard: request ids, request metrics, logging, and the response to
unexpected exceptions.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence

import structlog
import uuid_utils
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.error_format import error_response

_log = structlog.get_logger("app.http")
_stdlib_log = logging.getLogger("app.http")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")

#: Seconds.
DELIVERY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class HttpMetrics:
    """Prometheus metrics of the HTTP layer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "deskmate_http_requests",
            "HTTP responses by method and status.",
            ("method", "status"),
            registry=self.registry,
        )
        self.last_backup = Gauge(
            "deskmate_last_backup_timestamp_seconds",
            "Unix time of the last scheduled backup that was restored and checked; 0: none yet.",
            registry=self.registry,
        )
        self.event_streams = Gauge("deskmate_event_streams", "Open event streams of turns.", registry=self.registry)
        self._delivery = Histogram(
            "deskmate_token_delivery_seconds",
            "Time from sampling a token until its text is written to a reader's connection; the oldest of each event.",
            buckets=DELIVERY_BUCKETS,
            registry=self.registry,
        )

    def observe_delivery(self, sampled_at: Sequence[float]) -> None:
        """Records text just written. ``sampled_at``: the ``time.monotonic`` of each event's oldest token."""
        now = time.monotonic()
        for moment in sampled_at:
            self._delivery.observe(now - moment)


class ObservabilityMiddleware:
    """ASGI middleware: gives each request an id (its own ``X-Request-Id``, or a new one), counts it and logs it.

    Logs hold method, path, status and duration, but never a query, a header or a body, which hold what users write.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _sent_id(scope) or uuid_utils.uuid4().hex
        started = time.perf_counter()
        status: int | None = None

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                self._metrics.requests.labels(_known_method(scope["method"]), str(status)).inc()
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_counted)
            except Exception:
                _log.exception("request failed", method=scope["method"], path=_loggable(scope["path"]))
                if status is not None:  # the response has started: break the connection, as a crash would
                    raise
                response = error_response(
                    scope["path"],
                    500,
                    "internal",
                    f"An internal error occurred. The server's log has the details under the id {request_id}.",
                )
                await response(scope, receive, send_counted)
            finally:
                if _stdlib_log.isEnabledFor(logging.DEBUG):  # cheaper than structlog's own check
                    milliseconds = round((time.perf_counter() - started) * 1000)
                    _log.debug(
                        "request", method=scope["method"], path=_loggable(scope["path"]), status=status, ms=milliseconds
                    )


def _sent_id(scope: Scope) -> str | None:
    """Returns the caller's ``X-Request-Id`` if it is safe to log; an empty string otherwise."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else None


def _loggable(path: str) -> str:
    """Returns the path without the token of an invitation link, so that a log gives no access to an account."""
    return "/invitation/..." if path.startswith("/invitation/") else path


def _known_method(method: str) -> str:
    """Bounds the metric's labels: a client may send any word as its method."""
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "OTHER"
