"""Writes a fixture of the upgrade test: what this version leaves on disk, for later versions to open.

    .venv/bin/python scripts/upgrade_fixture.py    # tests/app/upgrade/fixtures/VERSION-COMMIT/

Everything is written the way users write it: by ``deskmate serve``, ``user``, ``db backup`` and ``export``, and through
the HTTP API. There are two installations: SQLite in the data folder, as ``make run`` leaves it, and PostgreSQL with
the environment that docker-compose.yml gives the application; of its volumes, ``data`` is a folder and ``db`` is SQL.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from joserfc import jwt
from joserfc.jwk import OctKey
from sqlalchemy import make_url

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from app import __version__  # noqa: E402
from app.settings import AppSettings  # noqa: E402
from app.store.maintenance.check import inspect_database  # noqa: E402
from engine import EngineSettings  # noqa: E402
from testing.databases import postgres_programs, postgres_server  # noqa: E402
from testing.upgrade import (  # noqa: E402
    DATABASE_DUMP,
    DATABASES,
    EXPORT,
    FIXTURES,
    RECORD,
    Record,
    User,
    pack,
    read_views,
)

#: Ways of writing a line that python-dotenv and docker compose both read, and names of compose and of other programs.
DOTENV = """\
# The three secrets
POSTGRES_PASSWORD=4f0c1de1a6e24f5b8f3b8f0e7c2d9a61
APP_SECRET_KEY='q8Zr4$tVnLw2#xKpYs6 NdGhJ3fCeA9uQ1oRi5Bm'
APP_METRICS_TOKEN="m7Tr2csTokenOfTheFixture-3fKw8LqZxVbN5p"

APP_ACCOUNTS=true
APP_ALLOWED_HOSTS=desk.internal, desk.example.org   # two of them
export APP_SESSION_DAYS=400
APP_MESSAGES_PER_MINUTE = 600
APP_CONCURRENT_REPLIES=
APP_MAX_MESSAGE_CHARS=50000
APP_CONTEXT_POLICY=refuse
APP_AUTO_TITLES=false
APP_STORAGE_MB_PER_USER=64

ENGINE_MAX_MODEL_LEN=2048
ENGINE_NUM_THREADS=1
ENGINE_SERVED_MODEL_NAME=desk,gpt-4o

COMPOSE_PROFILES=proxy,monitoring
DESKMATE_PORT=7861
HF_TOKEN=
"""
#: Fields of ``DOTENV``, which the record keeps the values of.
_APP_FIELDS = (
    *("accounts", "allowed_hosts", "session_days", "messages_per_minute", "concurrent_replies", "max_message_chars"),
    *("context_policy", "auto_titles", "storage_mb_per_user"),
)
_ENGINE_FIELDS = ("max_model_len", "num_threads", "served_model_name")
_SECRETS = ("secret_key", "metrics_token")

_SHAREGPT = b'{"conversations":[{"from":"human","value":"How warm is it?"},{"from":"gpt","value":"21 \xc2\xb0C."}]}\n'
_PASSWORDS = {
    "ada": "first admin's long password",
    "gus": "an agent's pass phrase \u00fc",
    "vera": "only looks, never talks",
}
_RETURNS = "# Returns\n\nParcels can be returned within 30 days.\n\n## Costs\n\nReturns are free of charge.\n"
_LINE_SECONDS = 180.0  #: how long the server may take to its next line


def main() -> None:
    """Writes the fixture of the commit that is checked out."""
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"], text=True).strip()
    folder = FIXTURES / f"{__version__}-{commit}"
    folder.mkdir(parents=True, exist_ok=True)
    for database in DATABASES:
        with tempfile.TemporaryDirectory() as place, _environment(database) as environment:
            installation = Installation(Path(place), environment)
            installation.write()
            file = folder / f"{database}.tar.xz"
            pack(installation.folder, file)
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")  # noqa: T201


@contextmanager
def _environment(database: str) -> Iterator[dict[str, str]]:
    """The variables that the installation sets besides ``.env``: none for SQLite, those of compose for PostgreSQL."""
    if database == "sqlite":
        yield {}
        return
    with postgres_server() as server:
        url = make_url(server.empty()).set(drivername="postgresql").render_as_string(hide_password=False)
        yield {"APP_DATABASE_URL": url, "APP_ALLOWED_HOSTS": "app,desk.internal, desk.example.org"}


class Installation:
    """A folder in which Deskmate runs: ``.env``, the data folder, and what users ask of it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        others = {name: value for name, value in os.environ.items() if not name.startswith(("APP_", "ENGINE_"))}
        others["PATH"] = f"{postgres_programs()}{os.pathsep}{others['PATH']}"
        self._environment = {**others, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment}
        self._given = environment

    def write(self) -> None:
        """Fills the folder, and ends with nothing running in it."""
        (self.folder / ".env").write_text(DOTENV, "utf-8")
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        with self._server("--no-accounts") as (url, _):
            asyncio.run(_before_accounts(url))
        with self._server() as (url, setup):
            assert setup is not None
            self._run("user", "create", "vera", "--role", "viewer", "--password-stdin", given=_PASSWORDS["vera"])
            users, key, views, visitors, secret = asyncio.run(_with_accounts(url, setup, day))
        self._run("db", "backup")
        self._run("export", "--user", "gus", "--to", EXPORT)
        [backup] = [path.name for path in (self.folder / "data").iterdir() if path.suffix in (".backup", ".dump")]
        app, engine, url = self._settings()
        state = inspect_database(url)
        if "APP_DATABASE_URL" in self._given:
            self._dump(self._given["APP_DATABASE_URL"])
        shutil.rmtree(self.folder / "data" / "gradio", ignore_errors=True)
        assert state.revision is not None
        record = Record(__version__, state.revision, day, users, key, app | engine, views, backup, visitors, secret)
        record.write(self.folder / RECORD)

    def _settings(self) -> tuple[dict[str, Any], dict[str, Any], str]:
        dotenv = self.folder / ".env"
        app = AppSettings(_env_file=dotenv)
        engine = EngineSettings(_env_file=dotenv).model_dump(mode="json")
        values = app.model_dump(mode="json") | {name: getattr(app, name).get_secret_value() for name in _SECRETS}
        url = AppSettings(
            _env_file=dotenv, data_dir=self.folder / "data", database_url=self._given.get("APP_DATABASE_URL")
        ).resolved_database_url
        return (
            {f"APP_{name.upper()}": values[name] for name in (*_APP_FIELDS, *_SECRETS)},
            {f"ENGINE_{name.upper()}": engine[name] for name in _ENGINE_FIELDS},
            url,
        )

    def _run(self, *arguments: str, given: str = "") -> None:
        subprocess.run(
            [sys.executable, "-m", "app", *arguments],
            cwd=self.folder,
            env=self._environment,
            input=f"{given}\n",
            text=True,
            check=True,
            stdout=sys.stderr,
        )

    def _dump(self, url: str) -> None:
        """Writes the database as plain SQL, with only what any PostgreSQL and any user can load."""
        command = ["pg_dump", "--no-owner", "--no-privileges", "--inserts", f"--dbname={url}"]
        text = subprocess.run(
            command, env=self._environment, stdout=subprocess.PIPE, encoding="utf-8", check=True
        ).stdout
        text = re.sub(r"^(\\(un)?restrict .*|SET transaction_timeout .*)\n", "", text, flags=re.MULTILINE)
        (self.folder / DATABASE_DUMP).write_text(text, "utf-8")

    @contextmanager
    def _server(self, *flags: str) -> Iterator[tuple[str, str | None]]:
        """A running server: its address, and the link that creates the first admin if there is none."""
        command = [sys.executable, "-u", "-m", "app", "serve", "--port", "0", *flags]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=sys.stderr
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise RuntimeError("The server did not start.")
            setup = None if "--no-accounts" in flags else process.stdout.readline().split()[-1]
            yield ready.split()[-1], setup
            process.send_signal(signal.SIGTERM)
            assert process.wait(_LINE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


class _Client:
    """A signed-in user's browser."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=120, headers={"User-Agent": "Fixture/1"})

    async def send(self, method: str, path: str, **given: Any) -> Any:
        answer = await self.http.request(method, path, **given)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def turn(self, path: str, **given: Any) -> dict[str, str]:
        """Starts a turn and waits for its end; returns its ids."""
        started = await self.send("POST", path, json=given)
        await self.send_events(started["turn_id"])
        return dict(started)

    async def send_events(self, turn_id: str) -> None:
        answer = await self.http.get(f"/api/turns/{turn_id}/events")
        assert "event: end" in answer.text

    async def user_message(self, reply_id: str, conversation_id: str) -> str:
        """The id of the message that a reply answers."""
        view = await self.send("GET", f"/api/conversations/{conversation_id}")
        return str(next(one["parent_id"] for one in view["messages"] if one["id"] == reply_id))

    async def use_link(self, link: str, **given: Any) -> None:
        token = re.split(r"[#/]", link)[-1]
        await self.send("POST", "/api/links/use", json={"token": token, **given})


async def _before_accounts(url: str) -> None:
    local = _Client(url)
    ref = await local.turn("/api/turns", text="Hello from before there were accounts.", settings={"max_tokens": 24})
    await local.send("PATCH", f"/api/conversations/{ref['conversation_id']}", json={"title": "From before accounts"})
    await local.http.aclose()


async def _with_accounts(
    url: str, setup: str, day: str
) -> tuple[tuple[User, ...], str, dict[str, Any], dict[str, str], str]:
    ada, gus, vera = _Client(url), _Client(url), _Client(url)
    await ada.use_link(setup, name="ada", display_name="Ada L.", password=_PASSWORDS["ada"], with_history=True)
    invitation = await ada.send("POST", "/api/people/invitations", json={"role": "agent", "note": "for Gus"})
    await gus.use_link(invitation["link"], name="Gus", password=_PASSWORDS["gus"])
    await vera.send("POST", "/api/account/sign-in", json={"name": "vera", "password": _PASSWORDS["vera"]})
    await _write_templates(ada)
    reply = await _chat(gus)
    await ada.send("PUT", f"/api/desk/review/{reply}", json={"reviewed": True})
    key = await _use_api_key(gus, url)
    visitors, secret = await _run_support_desk(ada, gus, url)
    users, views = [], {}
    for client, name, role in ((ada, "ada", "admin"), (gus, "gus", "agent"), (vera, "vera", "viewer")):
        [session] = [value for name_, value in client.http.cookies.items() if name_ == "deskmate_session"]
        users.append(User(name, _PASSWORDS[name], role, session))
    for client, user in zip((ada, gus, vera), users, strict=True):
        views[user.name] = await read_views(client.http, role=user.role, day=day)
        await client.http.aclose()
    return tuple(users), key, views, visitors, secret


async def _write_templates(ada: _Client) -> None:
    """Two versions of one of the program's prompts, a new prompt and reply, and a reply of the program's removed."""
    templates = "/api/desk/templates"
    company = {"name": "company", "description": "Whose desk this is.", "default": "ACME"}
    for after in (0, 1):
        edited = {
            "title": "Support desk",
            "description": f"Our own, edition {after + 1}.",
            "variables": [company],
            "recommended": {"temperature": 0.2, "top_p": 0.8},
            "body": f"You answer for {{{{ company }}}}. Edition {after + 1}.",
        }
        await ada.send("PUT", f"{templates}/prompt/support-desk", json={"after": after, "template": edited})
    new = {"title": "Haiku", "description": "Three lines.", "body": "Answer in three lines \u2014 5, 7, 5 syllables."}
    await ada.send("PUT", f"{templates}/prompt/haiku", json={"after": 0, "template": new})
    reply = {
        "title": "Closing hours",
        "description": "When we are there.",
        "variables": [{"name": "hour", "description": "Until when?"}],
        "body": "We are here until {{ hour }}{% if hour == '12' %} (noon){% endif %}.",
    }
    await ada.send("PUT", f"{templates}/canned/closing-hours", json={"after": 0, "template": reply})
    await ada.send("POST", f"{templates}/canned/shorter/remove", json={"after": 0})


async def _chat(gus: _Client) -> str:
    """Conversations with all that a conversation can have; returns the id of a reply with a thumb down."""
    short = {"temperature": 0.0, "max_tokens": 24}
    # Branches: a reply regenerated, a message edited, the first version shown again, and a second message after it.
    first = await gus.turn("/api/turns", text="What can you do?", settings=short)
    talk = first["conversation_id"]
    question = await gus.user_message(first["message_id"], talk)
    other = await gus.turn(f"/api/messages/{first['message_id']}/regenerate", settings={**short, "temperature": 0.9})
    await gus.turn(f"/api/messages/{question}/edit", text="What can you do for me?", settings=short)
    await gus.send("POST", f"/api/messages/{first['message_id']}/show")
    await gus.turn("/api/turns", text="And then?", conversation_id=talk, parent_id=first["message_id"])
    down = {"rating": "down", "reasons": ["wrong", "tone"], "comment": "Not what I asked \u2026\nat all."}
    await gus.send("PUT", f"/api/messages/{first['message_id']}/feedback", json=down)
    up = {"rating": "up", "reasons": ["helpful"], "comment": ""}
    await gus.send("PUT", f"/api/messages/{other['message_id']}/feedback", json=up)
    # Settings of every kind, a title, tags, a pin.
    settings = {
        "temperature": 0.4,
        "top_p": 0.85,
        "top_k": 30,
        "repetition_penalty": 1.1,
        "max_tokens": 20,
        "seed": 7,
        "stop": ["###", "\nUser:"],
        "system_prompt_name": "support-desk",
        "system_prompt_variables": {"company": "Stra\u00dfe & S\u00f6hne"},
    }
    tuned = (await gus.turn("/api/turns", text="My parcel is late.", settings=settings))["conversation_id"]
    change = {"title": "Late parcel \U0001f4e6", "tags": ["shipping", "\u00e4rger"], "pinned": True}
    await gus.send("PATCH", f"/api/conversations/{tuned}", json=change)
    # Long and foreign text, archived; a preset.
    foreign = "\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d \U0001f469\u200d\U0001f680 e\u0301"
    text = f"{foreign} <b>&amp;</b> ```py\nprint(1)\n``` " * 12
    preset = {"preset": "precise", "temperature": 0.2, "top_p": 0.9, "top_k": 20, "max_tokens": 8}
    archived = (await gus.turn("/api/turns", text=text, settings=preset))["conversation_id"]
    await gus.send("PATCH", f"/api/conversations/{archived}", json={"archived": True, "tags": ["shipping"]})
    # A reply that ended at its maximum length and was continued; a copy of its branch.
    cut = await gus.turn("/api/turns", text="Tell me a long story.", settings={"max_tokens": 5})
    await gus.turn(f"/api/messages/{cut['message_id']}/continue", settings={"max_tokens": 12})
    await gus.send("POST", f"/api/messages/{cut['message_id']}/branch")
    # A deleted message, a deleted conversation, an imported one, one that stays unread.
    kept = await gus.turn("/api/turns", text="Keep this.", settings=short)
    gone = await gus.turn("/api/turns", text="Forget this.", conversation_id=kept["conversation_id"])
    asked = await gus.user_message(gone["message_id"], kept["conversation_id"])
    await gus.send("DELETE", f"/api/messages/{asked}")
    away = await gus.turn("/api/turns", text="All of it.", settings=short)
    await gus.send("DELETE", f"/api/conversations/{away['conversation_id']}")
    await gus.send("POST", "/api/import", content=_SHAREGPT, headers={"Content-Type": "application/octet-stream"})
    unread = await gus.turn("/api/turns", text="Later.", settings={**short, "system_prompt": "Be brief."})
    # A draft of a reply, changed and used.
    of_unread = f"/api/conversations/{unread['conversation_id']}"
    draft = await gus.send("POST", f"{of_unread}/draft", json={"text": "Where is my parcel?", "notes": "On its way."})
    used = {"text": "It is on its way.", "used_as": "inserted"}
    await gus.send("PUT", f"{of_unread}/drafts/{draft['id']}", json=used)
    await gus.send("PATCH", of_unread, json={"unread": True})
    await gus.send("POST", "/api/turns", json={"text": "Nobody keeps this.", "temporary": True, "settings": short})
    return first["message_id"]


async def _run_support_desk(ada: _Client, gus: _Client, url: str) -> tuple[dict[str, str], str]:
    """Inboxes, visitors and cases in every state that lasts, with all that a case can have; a webhook that cannot be
    reached; documents and a proposed article.

    Returns:
        The tokens of the visitors by their case's id, and the webhook's secret.
    """
    collection = await ada.send("POST", "/api/kb/collections", json={"name": "Help", "description": "For customers."})
    for name, text in (("returns.md", _RETURNS), ("hours.txt", "We are there from 9 to 5. " * 20)):
        files = {"file": (name, text.encode())}
        into = {"collection": collection["id"]}
        added = await ada.send("POST", "/api/kb/documents", files=files, data=into)
        while (await ada.send("GET", f"/api/kb/documents/{added['id']}"))["state"] != "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    hours = [{"day": day, "from": "00:00", "to": "24:00"} for day in range(7)]
    inbox = {
        "name": "Website",
        "allowed_origins": ["https://shop.example"],
        "time_zone": "Europe/Vienna",
        "opening_hours": hours,
        "greeting": "Gr\u00fc\u00df Gott!",
        "collections": [collection["id"]],
    }
    website = await ada.send("POST", "/api/inboxes", json=inbox)
    people = await ada.send("POST", "/api/inboxes", json={"name": "People only", "bot": False})
    gus_id = (await gus.send("GET", "/api/account"))["id"]
    for one in (website, people):
        await ada.send("PUT", f"/api/inboxes/{one['id']}/members/{gus_id}")
    webhook = await ada.send("POST", "/api/webhooks", json={"url": "http://127.0.0.1:9/hook", "events": []})
    visitors: dict[str, str] = {}

    async def write(inbox: Mapping[str, Any], *texts: str, **session: str) -> str:
        """A visitor writes, and goes on in the case that begins; returns its id."""
        answer = await ada.http.post(f"/api/widget/{inbox['token']}/sessions", json=session)
        token = answer.raise_for_status().json()["token"]
        async with httpx.AsyncClient(base_url=url, timeout=120, headers={"Authorization": f"Bearer {token}"}) as http:
            for number, text in enumerate(texts):
                body = {"text": text, "client_id": f"fixture-{number}"}
                (await http.post("/api/widget/messages", json=body)).raise_for_status()
        case = str((await gus.send("GET", "/api/cases"))["cases"][0]["id"])  # the latest activity first
        visitors[case] = token
        return case

    async def visitor(case: str, method: str, path: str, **given: Any) -> Any:
        headers = {"Authorization": f"Bearer {visitors[case]}"}
        async with httpx.AsyncClient(base_url=url, timeout=120, headers=headers) as http:
            answer = (await http.request(method, f"/api/widget/{path}", **given)).raise_for_status()
            return answer.json() if answer.content else None

    async def act(case: str, path: str, **body: Any) -> Any:
        return await gus.send("POST", f"/api/cases/{case}/{path}", json=body)

    # One that people have from the first message on: answered, noted, resolved and rated.
    rated = await write(people, "Where is my parcel?", language="de", time_zone="Europe/Vienna")
    contact = {"name": "Zo\u00eb \u00c5ngstr\u00f6m", "email": "zoe@example.com"}
    await visitor(rated, "PUT", "contact", json=contact)
    await act(rated, "messages", text="It is on its way.", client_id="reply-1")
    await act(rated, "notes", text="Promised a voucher \U0001f4b6.")
    await act(rated, "resolve")
    await visitor(rated, "POST", "rating", json={"score": 4, "comment": "Quick!\nThanks."})
    # One that the bot has handed over, with tags, a priority and another subject, assigned to an agent.
    handed = await write(website, "How long can I return a parcel?")
    await visitor(handed, "POST", "hand-off")
    change = {"priority": "urgent", "tags": ["returns", "\u00e4rger"], "subject": "Return of a parcel"}
    await gus.send("PATCH", f"/api/cases/{handed}", json=change)
    await act(handed, "assign", user_id=gus_id)
    # One with a file, that waits; one of a customer whom the website has signed for, reopened.
    waiting = await write(people, "Please look at this.")
    file = await visitor(waiting, "POST", "attachments", files={"file": ("note.txt", b"A text.")})
    body = {"text": "", "client_id": "file-1", "attachments": [file["id"]]}
    await visitor(waiting, "POST", "messages", json=body)
    key = (await ada.send("POST", f"/api/inboxes/{people['id']}/secret"))["secret"]
    now = int(time.time())
    claims = {"aud": people["token"], "iat": now, "exp": now + 600, "sub": "customer 7", "name": "Ada"}
    identity = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(key))
    reopened = await write(people, "One question.", "And another one.", identity=identity)
    await act(reopened, "resolve")
    await act(reopened, "reopen")
    # A chat becomes an article, changed by its author.
    chat = await ada.turn("/api/turns", text="How long can I return it?", settings={"max_tokens": 12})
    propose = f"/api/conversations/{chat['conversation_id']}/article"
    article = await ada.send("POST", propose, json={"collection": collection["id"]})
    changed = {"title": "Returns \u2014 how long", "body": "## Question\n\nHow long?\n\n## Solution\n\n30 days."}
    await ada.send("PUT", f"/api/kb/articles/{article['article']['id']}", json=changed)
    # It cannot be reached: what it was to be told stays, and is not tried again.
    await ada.send("PATCH", f"/api/webhooks/{webhook['webhook']['id']}", json={"enabled": False})
    return visitors, str(webhook["secret"])


async def _use_api_key(gus: _Client, url: str) -> str:
    key = str((await gus.send("POST", "/api/account/keys", json={"name": "till", "days": None}))["key"])
    async with httpx.AsyncClient(base_url=url, timeout=120, headers={"Authorization": f"Bearer {key}"}) as http:
        question = {"messages": [{"role": "user", "content": "Hi"}], "model": "desk", "max_tokens": 4}
        (await http.post("/v1/chat/completions", json=question)).raise_for_status()
    return key


if __name__ == "__main__":
    main()
