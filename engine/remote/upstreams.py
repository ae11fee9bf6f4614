"""The pool of model servers behind a remote engine: health checks, cooldowns and load balancing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx

from engine.errors import EngineStoppedError, ModelLoadError
from engine.remote.dialects import DIALECTS, Dialect
from engine.remote.error_responses import parse_error_response

_log = logging.getLogger(__name__)

HEALTH_INTERVAL_SECONDS = 5.0
"""Interval between health checks of a server."""
HEALTH_TIMEOUT_SECONDS = 5.0
"""Timeout of a health check; the server then counts as down."""
FAILURES_TO_EJECT = 3
"""Failed replies in a row after which a server cools down, even if its health check succeeds."""
FIRST_COOLDOWN_SECONDS = 5.0
"""Length of the first cooldown; doubles with each cooldown in a row."""
MAX_COOLDOWN_SECONDS = 60.0

_OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "deskmate": "deskmate",
    "llamacpp": "llama.cpp",
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a server reports to serve, and the server's dialect."""

    model: str
    max_model_len: int | None
    dialect: Dialect
    adapters: tuple[str, ...] = ()  #: LoRA adapters that it lists as children of the model


@dataclass(slots=True, eq=False)
class Upstream:
    """One model server, its health and its load."""

    url: str  #: base URL of the API; ends with ``/v1``
    in_flight: int = 0  #: requests in flight from here
    served: ServedModel | None = None  #: None until it has answered
    problem: str | None = "it has not answered yet"  #: why it is unhealthy, as the end of a sentence
    is_unrecoverable: bool = False  #: waiting does not solve the problem
    failures: int = 0  #: in a row
    num_cooldowns: int = 0  #: in a row
    cooldown_until: float = 0.0  #: on :func:`time.monotonic`

    @property
    def root(self) -> str:
        """Base URL of a server's endpoints beyond OpenAI's API."""
        return self.url.removesuffix("/v1")

    @property
    def label(self) -> str:
        """Display name, also in metrics: host, port, and the path if there is one besides ``/v1``."""
        parts = urlsplit(self.root)
        return parts.netloc + parts.path.rstrip("/")

    @property
    def is_healthy(self) -> bool:
        return self.problem is None

    def cool_down(self, seconds: float) -> None:
        """Avoids the server for ``seconds``, as long as there is another one."""
        self.cooldown_until = max(self.cooldown_until, monotonic() + seconds)

    def record_success(self) -> None:
        self.failures = self.num_cooldowns = 0

    def record_failure(self) -> None:
        """Counts a failed request. After several in a row the server cools down, longer each time."""
        self.failures += 1
        if self.failures >= FAILURES_TO_EJECT:
            self.cool_down(min(FIRST_COOLDOWN_SECONDS * 2**self.num_cooldowns, MAX_COOLDOWN_SECONDS))
            self.num_cooldowns += 1
            self.failures = 0

    def mark_down(self, problem: str, *, is_unrecoverable: bool = False) -> None:
        if self.is_healthy or problem != self.problem:
            _log.warning("model server %s is down: %s", self.label, problem)
        self.problem, self.is_unrecoverable = problem, is_unrecoverable

    def mark_up(self, served: ServedModel) -> None:
        if not self.is_healthy:
            _log.info("model server %s is up: %s, %s", self.label, served.dialect.title, served.model)
        self.served, self.problem, self.is_unrecoverable = served, None, False


def base_url(url: str) -> str:
    """Returns the base URL of the API, ending with ``/v1``, from an address in ``ENGINE_REMOTE_URL``.

    Raises:
        ModelLoadError: the address is invalid; says what is wrong.
    """
    try:
        parts = urlsplit(url.strip())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port above 65535
        is_address = False
    if not is_address:
        raise ModelLoadError(
            f"ENGINE_REMOTE_URL: '{url}' is not the address of a model server. Write it like http://10.0.0.5:8000/v1."
        )
    if parts.username or parts.password:
        raise ModelLoadError("ENGINE_REMOTE_URL holds a password. Put it into ENGINE_REMOTE_API_KEY instead.")
    if parts.query or parts.fragment:
        raise ModelLoadError(f"ENGINE_REMOTE_URL: '{url}' has a query or a fragment. Remove it.")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


@dataclass(slots=True)
class UpstreamPool:
    """All model servers, with periodic health checks.

    Args:
        wanted: the model to use; None means the only one that a server serves.
        kind: dialect of every server, by its name in :data:`DIALECTS`; None detects it.
        on_change: called when a server becomes healthy or unhealthy.
    """

    upstreams: Sequence[Upstream]
    client: httpx.AsyncClient
    wanted: str | None
    kind: str | None
    on_change: Callable[[], None]
    model: str | None = None
    closed: bool = False
    _watchers: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Probes all servers once, and starts the health checks.

        Raises:
            ModelLoadError: no server can ever be used with this configuration.
        """
        await asyncio.gather(*(self.probe(upstream) for upstream in self.upstreams))
        if all(upstream.is_unrecoverable for upstream in self.upstreams):
            raise ModelLoadError(self.problem())
        self._watchers = [asyncio.create_task(self._watch(upstream)) for upstream in self.upstreams]

    async def close(self) -> None:
        """Stops the health checks, and closes every connection."""
        self.closed = True
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self.client.aclose()

    def mark_unreachable(self, upstream: Upstream, error: Exception) -> None:
        """Marks a server as down after a failed connection."""
        upstream.mark_down(describe_unreachable(error))
        self.on_change()

    def problem(self) -> str:
        """Returns why no server is available, as a sentence."""
        each = "; ".join(f"{one.label}: {one.problem}" for one in self.upstreams)
        return f"No model server is available ({each})."

    def choose(self, affinity_key: str, avoid: set[Upstream]) -> Upstream:
        """Returns the healthy server without a cooldown that has the fewest requests in flight.

        Among equals a conversation returns to the same server, whose prefix cache holds its start.

        Args:
            affinity_key: the same for every request of one conversation.
            avoid: servers that have failed already; chosen only if there is no other.

        Raises:
            EngineStoppedError: no server is healthy.
        """
        well = [upstream for upstream in self.upstreams if upstream.is_healthy]
        if not well:
            raise EngineStoppedError(f"{self.problem()} Please try again in a moment.")
        now = monotonic()
        return min(
            well,
            key=lambda one: (one in avoid, one.cooldown_until > now, one.in_flight, _rank(affinity_key, one.url)),
        )

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_SECONDS)
            try:
                await self.probe(upstream)
            except Exception:  # without its watcher the server would stay up, or down, for ever
                _log.exception("could not check model server %s", upstream.label)

    async def probe(self, upstream: Upstream) -> None:
        """Checks a server's health, and which models it serves."""
        try:
            answer = await self.client.get(f"{upstream.url}/models", timeout=HEALTH_TIMEOUT_SECONDS)
        except (httpx.HTTPError, OSError) as error:
            self._mark_down(upstream, describe_unreachable(error), is_unrecoverable=False)
        else:
            await self._read(upstream, answer)

    async def _read(self, upstream: Upstream, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            refused = parse_error_response(answer.status_code, answer.headers, answer.content, server=upstream.label)
            is_unrecoverable = answer.status_code in (401, 403, 404) or 300 <= answer.status_code < 400
            text = (
                str(refused.error) if is_unrecoverable and answer.status_code != 404 else f"status {answer.status_code}"
            )
            self._mark_down(upstream, text.rstrip("."), is_unrecoverable=is_unrecoverable)
            return
        cards = _cards(answer)
        if not cards:
            self._mark_down(upstream, "it does not list its models as OpenAI's API does")
            return
        names = [str(card["id"]) for card in cards]
        models = [str(card["id"]) for card in cards if card.get("parent") is None]  # the others are adapters
        wanted = self.wanted or (models[0] if len(models) == 1 else None)
        if wanted is None:
            listed = ", ".join((models or names)[:8])
            self._mark_down(upstream, f"it serves several models ({listed}); choose one with ENGINE_REMOTE_MODEL")
            return
        if wanted not in names:
            self._mark_down(upstream, f"it does not serve {wanted}, only {', '.join(names[:8])}")
            return
        if wanted != self.model and any(one.is_healthy and one is not upstream for one in self.upstreams):
            self._mark_down(upstream, f"it serves {wanted}, but the other servers serve {self.model}")
            return
        card = cards[names.index(wanted)]
        known = upstream.served
        length = _number(card, "max_model_len")
        adapters = tuple(str(one["id"]) for one in cards if one.get("parent") == wanted and one["id"] != wanted)
        if (
            upstream.is_healthy
            and known is not None
            and known.model == wanted
            and length in (None, known.max_model_len)
        ):
            if adapters != known.adapters:
                upstream.served = replace(known, adapters=adapters)
                self.on_change()
            return
        served = replace(await self._examine(upstream, card, wanted), adapters=adapters)
        self.model = wanted
        upstream.mark_up(served)
        self.on_change()

    def _mark_down(self, upstream: Upstream, problem: str, *, is_unrecoverable: bool = True) -> None:
        upstream.mark_down(problem, is_unrecoverable=is_unrecoverable)
        self.on_change()

    async def _examine(self, upstream: Upstream, card: dict[str, Any], model: str) -> ServedModel:
        """Detects a server's dialect and its context window."""
        length = _number(card, "max_model_len")
        owner = str(card.get("owned_by"))
        kind = self.kind or _OWNERS.get(owner)
        if kind is None and owner == "me":  # not only llama-cpp-python reports this owner
            info = (await self._ask(f"{upstream.root}/openapi.json")).get("info")
            if isinstance(info, dict) and "llama.cpp Python API" in str(info.get("title")):
                kind = "llama-cpp-python"
        if kind is None and (info := await self._ask(f"{upstream.root}/info")) and "max_total_tokens" in info:
            kind = "tgi"
        if kind == "tgi":
            info = await self._ask(f"{upstream.root}/info")
            length = length or _number(info, "max_total_tokens")
        elif kind == "llama.cpp":
            props = await self._ask(f"{upstream.root}/props")
            length = length or _number(props.get("default_generation_settings"), "n_ctx")
        return ServedModel(model, length, DIALECTS[kind or "openai"])

    async def _ask(self, url: str) -> dict[str, Any]:
        try:
            answer = await self.client.get(url, timeout=HEALTH_TIMEOUT_SECONDS)
            payload = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, OSError, ValueError):
            return {}
        return payload if isinstance(payload, dict) else {}


def describe_unreachable(error: Exception) -> str:
    """Returns why a server did not answer, as the end of a sentence."""
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return "it cannot be reached"
        case httpx.TimeoutException():
            return "it does not answer in time"
        case _:
            return "the connection to it broke"


def _cards(answer: httpx.Response) -> list[dict[str, Any]]:
    try:
        payload = answer.json()
    except ValueError:
        return []
    data = payload.get("data") if isinstance(payload, dict) else None
    return [card for card in data if isinstance(card, dict) and card.get("id")] if isinstance(data, list) else []


def _number(payload: object, name: str) -> int | None:
    value = payload.get(name) if isinstance(payload, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _rank(affinity_key: str, url: str) -> bytes:
    return hashlib.blake2b(f"{url}\n{affinity_key}".encode(errors="replace"), digest_size=8).digest()
