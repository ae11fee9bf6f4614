"""Measures the processor time of a visitor's message, by part, on SQLite and PostgreSQL.

    .venv/bin/python -m benchmarks.desk_cost                        # two minutes
    .venv/bin/python -m benchmarks.desk_cost --databases sqlite     # half of it

Runs the application in this process, with the documents in ``docs/`` and an inbox whose bot answers from them, and
sends it what one visitor after another sends: a session, a stream of events, a message. The bot is held back and does
its work step by step, so that each part's processor time is that of all threads meanwhile, the engine's among them.
With the bundled model the bot shows the passages that it has found and hands over.

Prints the median of each part in milliseconds, and their sum: with several visitors at once, Python's lock and the
caches of the processor add to it. ``benchmarks.desk`` measures how long visitors wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from pydantic import SecretStr
from starlette.types import ASGIApp, Message
from tqdm import tqdm

from app.cases.bot_prompt import talk
from app.cases.bot_replies import WIDGET_BOT, Answering
from app.cases.sentences import Sentence
from app.domain.ids import new_id
from app.domain.roles import UserRole
from app.main import create_app
from app.models.folders import GUIDE
from app.services.container import Services
from app.settings import AppSettings
from app.store.db.models import Account
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.live.scripted_chats import QUESTIONS
from benchmarks.live.server import ROOT
from benchmarks.result_files import write_result
from engine import Engine, EngineSettings

VISITORS = 60
WARM_UP = 10
QUIET_SECONDS = 0.02
"""A stream that has sent its events needs no processor time after this time."""
PARTS = (
    "session",
    "stream",
    "message",
    "stream: message",
    "bot: case",
    "bot: sources",
    "bot: prompt",
    "bot: hand-off",
    "stream: answer",
    "leaving",
    "search index",
)


class Client:
    """A client of an application in this process, without a server in between.

    Args:
        address: from which it comes: what one address may do is limited.
    """

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._app = app
        self._address = address

    async def request(self, method: str, path: str, data: Any = None, token: str | None = None) -> Any:
        """Sends JSON and returns that of the answer.

        Raises:
            RuntimeError: the answer is an error.
        """
        sent: list[Message] = []
        body = json.dumps(data).encode()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(_scope(method, path, self._address, token, body), receive, send)
        said = b"".join(message.get("body", b"") for message in sent[1:])
        if sent[0]["status"] >= 400:
            raise RuntimeError(said.decode())
        return json.loads(said) if said else None

    def stream(self, token: str) -> Stream:
        """Opens a visitor's stream of events."""
        return Stream(self._app, self._address, token)


class Stream:
    """A visitor's open stream; counts its events."""

    def __init__(self, app: ASGIApp, address: str, token: str) -> None:
        self._left = asyncio.Event()
        self.text = ""
        scope = _scope("GET", "/api/widget/events", address, token)
        self._task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        await app(scope, self._receive, self._send)

    async def until(self, words: str) -> None:
        """Waits until the stream has sent these words.

        Raises:
            RuntimeError: the stream has ended.
        """
        async with asyncio.timeout(30):
            while words not in self.text:
                if self._task.done():
                    raise RuntimeError(f"the stream has ended: {self.text}")
                await asyncio.sleep(QUIET_SECONDS)

    async def leave(self) -> None:
        """Closes the stream."""
        self._left.set()
        await self._task

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.text += message.get("body", b"").decode()


def _scope(method: str, path: str, address: str, token: str | None, body: bytes = b"") -> dict[str, Any]:
    headers = [(b"host", b"127.0.0.1"), (b"sec-fetch-site", b"same-origin"), (b"user-agent", b"benchmark")]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": (address, 1),
        "server": ("127.0.0.1", 80),
    }


class Costs:
    """Processor time of the parts, milliseconds."""

    def __init__(self) -> None:
        self._of: dict[str, list[float]] = {name: [] for name in PARTS}

    async def count(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits ``work`` as the part ``name``; what any thread does meanwhile counts."""
        began = process_time()
        done = await work()
        self._of[name].append(1000 * (process_time() - began))
        return done

    def medians(self) -> dict[str, float]:
        """Returns the median of each part, without the first visitors', and their sum."""
        found = {name: median(values[WARM_UP:]) for name, values in self._of.items()}
        return {name: round(value, 2) for name, value in [*found.items(), ("sum", sum(found.values()))]}


@asynccontextmanager
async def open_desk(url: str, folder: Path) -> AsyncIterator[tuple[ASGIApp, Services, str]]:
    """Yields the application, its services, and the public token of the inbox."""
    settings = AppSettings(
        _env_file=None,
        data_dir=folder,
        database_url=url,
        accounts=True,
        secret_key=SecretStr("x7Kq2mVbT9rLw4ZpYs8NdGhJ3fCeA6uQ1oRi5"),
        auto_titles=False,
        knowledge_min_parameters=0,
    )
    app = create_app(settings, Engine(EngineSettings(_env_file=None, model=str(GUIDE))))
    async with app.router.lifespan_context(app):
        services: Services = app.state.services
        admin = Account(
            id=new_id(), name="admin", display_name="Admin", role=UserRole.ADMIN, created_at=datetime.now(UTC)
        )
        await services.database.write(lambda session: session.add(admin))
        collection = await services.knowledge.collections.create(admin.id, "Documents")
        for path in sorted((ROOT / "docs").glob("*.md")):
            content = await asyncio.to_thread(path.read_bytes)
            await services.knowledge.documents.add(admin.id, collection.id, path.name, content, kind="markdown")
        async with asyncio.timeout(300):
            await _wait_until_read(services, admin.id)
        inbox = await services.cases.inboxes.create(admin.id, name="Shop", collections=[collection.id])
        yield app, services, inbox.token


async def _wait_until_read(services: Services, user_id: str) -> None:
    while True:
        page = await services.knowledge.documents.page(user_id)
        if all(document.state == "ready" for document in page.items):
            return
        await asyncio.sleep(0.2)


async def measure(url: str, folder: Path, visitors: int) -> dict[str, float]:
    """Lets visitors come one after another; returns the milliseconds of each part."""
    costs = Costs()
    async with open_desk(url, folder) as (app, services, inbox):
        assert services.widget is not None
        bot = HeldBot(services)
        for number in tqdm(range(WARM_UP + visitors), unit=" visitors", leave=False):
            client = Client(app, f"10.0.{number // 250}.{number % 250 + 1}")
            await _visit(client, bot, inbox, number, costs)
    return costs.medians()


async def _visit(client: Client, bot: HeldBot, inbox: str, number: int, costs: Costs) -> None:
    wanted = {"language": "en", "time_zone": "Europe/Vienna"}
    session = await costs.count("session", lambda: client.request("POST", f"/api/widget/{inbox}/sessions", wanted))
    token = session["token"]
    stream = client.stream(token)
    await costs.count("stream", lambda: asyncio.sleep(QUIET_SECONDS))
    text = f"Hello, this is customer {number}. {QUESTIONS[number % len(QUESTIONS)]}"
    written = {"text": text, "client_id": new_id()}
    await costs.count("message", lambda: client.request("POST", "/api/widget/messages", written, token))
    await costs.count("stream: message", lambda: stream.until(f"customer {number}."))
    await bot.answer(costs)
    await costs.count("stream: answer", lambda: stream.until(Sentence.HANDED_OFF))
    await costs.count("leaving", stream.leave)
    await costs.count("search index", bot.index)


class HeldBot:
    """The bot of an inbox, which answers when it is told to, a step at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._replies = services._bot._replies
        self._waiting: list[str] = []
        services._bot.answer = self._waiting.append  # type: ignore[method-assign, assignment]

    async def index(self) -> None:
        """Brings the index of messages up to date, as the server does in the background."""
        await self._services.conversations.index.catch_up()

    async def answer(self, costs: Costs) -> None:
        """Answers the case that waits, as :class:`app.cases.bot.CaseBot` does."""
        services, case_id = self._services, self._waiting.pop()
        opened = await costs.count("bot: case", lambda: services.cases.bot.open(case_id))
        answering = Answering(case=opened.case, inbox=opened.inbox, history=opened.history)
        _, message = talk(answering.history)
        inbox = opened.inbox
        found = await costs.count(
            "bot: sources", lambda: services.sources.find(inbox.user_id, inbox.collections, message)
        )
        await costs.count("bot: prompt", lambda: services.templates.prompt(WIDGET_BOT))
        await costs.count("bot: hand-off", lambda: self._replies._offer_passages(answering, found))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--visitors", type=int, default=VISITORS)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, databases(args.databases, Path(folder)) as makers:
        for kind, make in makers.items():
            found[kind] = asyncio.run(measure(make("desk"), Path(folder) / kind, args.visitors))
    for name in (*PARTS, "sum"):
        print(f"{name:<16}" + "".join(f"   {kind} {values[name]:>6.2f} ms" for kind, values in found.items()))
    result = {"machine": machine.describe(), "visitors": args.visitors, "cpu_ms": found}
    write_result(result, "desk-cost", args.output)


if __name__ == "__main__":
    main()
