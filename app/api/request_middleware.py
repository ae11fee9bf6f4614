"""Around everything, the guard included: gives each request an id (the sent ``X-Request-Id``, or one of ours), counts
it, and answers for what nobody foresaw.
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

# Seconds.
DELIVERY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class HttpMetrics:
    """What the HTTP side measures about itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "deskmate_http_requests",
            "HTTP requests answered, by method and status.",
            ("method", "status"),
            registry=self.registry,
        )
        self.event_streams = Gauge("deskmate_event_streams", "Event streams of turns now open.", registry=self.registry)
        self._delivery = Histogram(
            "deskmate_token_delivery_seconds",
            "From a token's sampling until its text was written to a reader's connection: of each event its oldest.",
            buckets=DELIVERY_BUCKETS,
            registry=self.registry,
        )

    def observe_delivery(self, sampled_at: Sequence[float]) -> None:
        """Text was just written whose oldest tokens were sampled then, by ``time.monotonic``."""
        now = time.monotonic()
        for moment in sampled_at:
            self._delivery.observe(now - moment)


class ObservabilityMiddleware:
    """ASGI middleware.

    The log names method, path, status and time: never a query, a header or a body, which hold what
    people write.
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
                if status is not None:  # too late for another answer: break the connection, as a crash would
                    raise
                response = error_response(
                    scope["path"],
                    500,
                    "internal",
                    f"Something went wrong inside. The server's log has the details under the id {request_id}.",
                )
                await response(scope, receive, send_counted)
            finally:
                if _stdlib_log.isEnabledFor(logging.DEBUG):  # structlog finds that out later
                    milliseconds = round((time.perf_counter() - started) * 1000)
                    _log.debug(
                        "request", method=scope["method"], path=_loggable(scope["path"]), status=status, ms=milliseconds
                    )


def _sent_id(scope: Scope) -> str | None:
    """The caller's own id for the request, where it fits into a log as one word."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else None


def _loggable(path: str) -> str:
    """The path without what makes a link one: whoever reads a log gets no account by it."""
    return "/invitation/..." if path.startswith("/invitation/") else path


def _known_method(method: str) -> str:
    """Labels must stay few, and a client may send any word as its method."""
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "OTHER"
