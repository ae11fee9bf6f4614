"""Installations of earlier versions, opened by this one: each user finds everything as they left it.

To add the next fixture, at a release and before a change to what is stored: .venv/bin/python scripts/upgrade_fixture.py
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from app.cli import main
from app.cli.flags import read_settings, warn_of_lost_settings
from app.domain.ids import new_id
from app.settings import AppSettings
from app.store.db.database import postgres_engine, sqlite_engine
from app.store.maintenance.integrity import broken_rules
from app.store.maintenance.migrate import alembic_config, sqlite_file
from engine import EngineSettings
from testing.databases import PostgresServer, postgres_programs
from testing.fake_engine import FakeEngine
from testing.upgrade import (
    DATABASE_DUMP,
    DATABASES,
    EXPORT,
    RECORD,
    Record,
    User,
    differences,
    fixture_versions,
    read_views,
    unpack,
)
from tests.app.live_server import serve_app

pytestmark = pytest.mark.slow

HEAD = ScriptDirectory.from_config(alembic_config()).get_current_head()
VERSIONS = fixture_versions()
OLDEST = "0.1.0-6ac695f"  #: it goes through every migration
FIRST_WITH_CASES = "0.1.0-ada7ddf"
#: What docker-compose.yml puts in front of the allowed hosts of ``.env``.
_COMPOSE_HOSTS = "app,desk.internal, desk.example.org"

Run = Callable[..., str]


class Installation:
    """A copy of a fixture: its folder is the working directory, its variables are the environment's."""

    def __init__(self, record: Record, url: str | None, make_empty: Callable[[], str | None]) -> None:
        self.record = record
        self.url = url  #: APP_DATABASE_URL; None for SQLite in the data folder
        self.make_empty = make_empty  #: another database of the kind, without tables: its APP_DATABASE_URL
        self.engine = FakeEngine()

    @property
    def settings(self) -> AppSettings:
        """As ``serve`` reads them."""
        return read_settings(AppSettings, {})

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        url = self.settings.resolved_database_url
        engine = sqlite_engine(url, connections=1) if sqlite_file(url) else postgres_engine(url, connections=1)
        with engine.begin() as connection:
            yield connection
        engine.dispose()

    def revisit(self) -> None:
        """The users visit the desk with the version that wrote the fixture: their sessions last from now on, those of
        its visitors too, and what they deleted can be undone."""
        later = datetime.now(UTC) + timedelta(days=1)
        with self.connected() as connection:
            for table in {"login_session", "visitor_token"} & set(sa.inspect(connection).get_table_names()):
                connection.execute(sa.text(f"UPDATE {table} SET expires_at = :later"), {"later": f"{later:%F %T}"})
            deletions = connection.scalars(sa.text("SELECT DISTINCT deletion FROM message WHERE deletion IS NOT NULL"))
            for old in deletions.all():
                connection.execute(
                    sa.text("UPDATE message SET deletion = :new WHERE deletion = :old"), {"old": old, "new": new_id()}
                )

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The address at which this version serves it."""
        chosen = self.settings.model_dump()
        async with serve_app(chosen.pop("data_dir"), self.engine, gradio=False, **chosen) as (url, _, _):
            yield url

    async def check_views(self, url: str) -> None:
        """Every user's old session finds what was recorded."""
        for user in self.record.users:
            async with browser(url, user) as http:
                now = await read_views(http, role=user.role, day=self.record.day)
            assert [*differences(self.record.views[user.name], now, user.name)] == []


def _installations(*quick: str) -> list[Any]:
    """Params of ``installation``: all fixtures, those of other versions than ``quick`` for ``make test-full``."""
    return [
        pytest.param(f"{version} {database}", marks=() if version in quick else pytest.mark.full)
        for version in VERSIONS
        for database in DATABASES
    ]


@pytest.fixture(params=_installations(OLDEST))
def installation(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    version, database = request.param.split()
    for name in list(os.environ):
        if name.upper().startswith(("APP_", "ENGINE_")):
            monkeypatch.delenv(name)
    unpack(version, database, tmp_path)
    monkeypatch.chdir(tmp_path)
    record = Record.read(Path(RECORD))
    if database == "sqlite":
        opened = Installation(record, None, lambda: f"sqlite:///{tmp_path / 'empty' / 'deskmate.db'}")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.empty()
        monkeypatch.setenv("APP_DATABASE_URL", url)
        monkeypatch.setenv("APP_ALLOWED_HOSTS", _COMPOSE_HOSTS)
        monkeypatch.setenv("PATH", f"{postgres_programs()}{os.pathsep}{os.environ['PATH']}")
        opened = Installation(record, url, server.empty)
        plain = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain) as connection:
            connection.execute(Path(DATABASE_DUMP).read_bytes())
    opened.revisit()
    return opened


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; returns its output, which has no warning beside it."""

    def run(*arguments: str, given: str = "", status: int = 0) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        with pytest.raises(SystemExit) as ended:
            main.main(list(arguments))
        shown = capsys.readouterr()
        assert ended.value.code == status, shown.err
        assert status or "deskmate: " not in shown.err
        return shown.out if status == 0 else shown.err

    return run


def browser(url: str, user: User | None = None, **headers: str) -> httpx.AsyncClient:
    cookies = {} if user is None else {"deskmate_session": user.session}
    return httpx.AsyncClient(base_url=url, timeout=30, cookies=cookies, headers=headers)


def test_there_are_fixtures() -> None:
    assert {OLDEST, FIRST_WITH_CASES} <= set(VERSIONS)


def test_the_settings_read_as_before(installation: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a warning."""
    warn_of_lost_settings.cache_clear()
    app = {f"APP_{name.upper()}": value for name, value in installation.settings.model_dump(mode="json").items()}
    for name in ("secret_key", "metrics_token"):  # dumped as asterisks
        app[f"APP_{name.upper()}"] = getattr(installation.settings, name).get_secret_value()
    engine = read_settings(EngineSettings, {}).model_dump(mode="json")
    found = app | {f"ENGINE_{name.upper()}": value for name, value in engine.items()}
    expected = dict(installation.record.settings)
    if installation.url is not None:
        expected["APP_ALLOWED_HOSTS"] = ["app", *expected["APP_ALLOWED_HOSTS"]]
    assert {name: found[name] for name in expected} == expected
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("installation", _installations(OLDEST, FIRST_WITH_CASES), indirect=True)
async def test_everything_reads_as_before(installation: Installation) -> None:
    async with installation.served() as url:
        await installation.check_views(url)
    with installation.connected() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == HEAD


async def test_old_passwords_and_keys_still_work(installation: Installation) -> None:
    async with installation.served() as url:
        async with browser(url) as http:
            credentials = {"name": installation.record.users[0].name, "password": installation.record.users[1].password}
            assert (await http.post("/api/account/sign-in", json=credentials)).status_code == 401
        for user in installation.record.users:
            async with browser(url) as http:
                right = await http.post("/api/account/sign-in", json={"name": user.name, "password": user.password})
                assert right.status_code == 204
                assert (await http.get("/api/account")).json()["name"] == user.name
        for key, status in ((installation.record.api_key, 200), (f"{installation.record.api_key}x", 401)):
            async with browser(url, Authorization=f"Bearer {key}") as program:
                assert (await program.get("/v1/models")).status_code == status
                asked = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
                assert (await program.post("/v1/chat/completions", json=asked)).status_code == status
        token = installation.record.settings["APP_METRICS_TOKEN"]
        async with browser(url, Authorization=f"Bearer {token}") as program:
            assert (await program.get("/metrics")).status_code == 200


@pytest.mark.full
async def test_old_conversations_go_on(installation: Installation) -> None:
    """Those with branches, settings, a named prompt; each with what is shown of it as the model's context."""
    user = installation.record.user("agent")
    conversations = installation.record.views[user.name]["conversations"]
    assert len(conversations) >= 6
    prompts: list[str] = []
    async with installation.served() as url, browser(url, user) as http:
        for old in conversations:
            sent = {"text": "Still there?", "conversation_id": old["id"], "parent_id": old["messages"][-1]["id"]}
            started = await http.post("/api/turns", json=sent)
            assert started.status_code == 201, started.text
            assert "event: end" in (await http.get(f"/api/turns/{started.json()['turn_id']}/events")).text
            [*context], params = installation.engine.calls[-1]
            if context[0]["role"] == "system":
                prompts.append(context.pop(0)["content"])
            if old["title"].startswith("Late parcel"):
                assert params is not None
                assert (params.temperature, params.stop, params.seed) == (0.4, ("###", "\nUser:"), 7)
            contents = [message["content"] for message in old["messages"]]
            assert [message["content"] for message in context] == [*contents, "Still there?"]
            view = (await http.get(f"/api/conversations/{old['id']}")).json()
            assert [message["content"] for message in view["messages"]] == [
                *contents,
                "Still there?",
                "Hello, world.",
            ]
        assert sorted(prompts) == ["Be brief.", "You answer for Straße & Söhne. Edition 2."]
        hits = (await http.get("/api/conversations", params={"query": "parcel"})).json()["items"]
        assert [hit["title"] for hit in hits] == ["Late parcel 📦"]


@pytest.mark.parametrize("installation", _installations(FIRST_WITH_CASES), indirect=True)
async def test_old_visitors_and_cases_go_on(installation: Installation) -> None:
    """Visitors read their talks by their old tokens, and write; agents reply; webhooks are told."""
    record = installation.record
    if not record.visitors:
        pytest.skip("This version had no cases yet.")
    cases = {one["case"]["id"]: one for one in record.views[record.user("admin").name]["support desk"]["cases"]}
    assert set(record.visitors) == set(cases)
    assert {one["case"]["status"] for one in cases.values()} == {"open", "resolved"}
    admin, agent = record.user("admin"), record.user("agent")
    async with installation.served() as url, browser(url, admin) as ada, browser(url, agent) as gus:
        [webhook] = (await ada.get("/api/webhooks")).json()["webhooks"]
        assert (await ada.patch(f"/api/webhooks/{webhook['id']}", json={"enabled": True})).status_code == 200
        for case_id, token in record.visitors.items():
            async with browser(url, Authorization=f"Bearer {token}") as http:
                said = [one["text"] for one in cases[case_id]["messages"] if not one["internal"] and one["text"]]
                if cases[case_id]["case"]["status"] == "open":  # a resolved one is followed by another after a while
                    talk = (await http.get("/api/widget/transcript")).text
                    assert [text for text in said if text not in talk] == []
                    again = {"text": said[0], "client_id": "fixture-0"}
                    sent = (await http.post("/api/widget/messages", json=again)).raise_for_status().json()
                    assert sent["message"]["id"] == cases[case_id]["messages"][0]["id"]  # no second one
                    new = {"text": "Still there?", "client_id": "new"}
                    sent = (await http.post("/api/widget/messages", json=new)).raise_for_status().json()
                    opened = (await gus.get(f"/api/cases/{case_id}")).json()
                    assert sent["message"]["id"] in [one["id"] for one in opened["messages"]]
                    assert (await gus.post(f"/api/cases/{case_id}/messages", json={"text": "Yes."})).status_code == 200
        told = (await ada.get(f"/api/webhooks/{webhook['id']}/deliveries")).json()["deliveries"]
        assert [one["event"] for one in told].count("message.created") > len(record.visitors)
        assert (await gus.get("/api/cases", params={"q": "Still there"})).json()["cases"]
    with installation.connected() as connection:
        assert broken_rules(connection) == []
        [secret] = connection.scalars(sa.text("SELECT secret FROM webhook")).all()
    assert secret == record.webhook_secret


async def test_an_old_backup_is_restored(installation: Installation, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the present database, or into an empty one where the database is PostgreSQL."""
    if installation.url is not None:
        monkeypatch.setenv("APP_DATABASE_URL", str(installation.make_empty()))
    else:
        with installation.connected() as connection:
            connection.execute(sa.text("DELETE FROM message"))
    said = run("db", "restore", f"data/{installation.record.backup}")
    assert "was restored." in said
    assert run("db", "check") == f"Database: in order, at schema {HEAD}.\n"
    installation.revisit()
    async with installation.served() as url:
        await installation.check_views(url)


def test_an_old_export_is_imported(installation: Installation, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into an empty database: exported again, it is the same document."""
    monkeypatch.setenv("APP_DATABASE_URL", str(installation.make_empty()))
    run("db", "upgrade")
    run("user", "create", "gus", "--password-stdin", given=f"{installation.record.user('agent').password}\n")
    old = json.loads(Path(EXPORT).read_text("utf-8"))
    assert run("import", EXPORT, "--user", "gus") == (
        f"{len(old['conversations'])} conversations were imported; 0 already existed.\n"
    )
    run("export", "--user", "gus", "--to", "again.json")
    assert [*differences(old, json.loads(Path("again.json").read_text("utf-8")))] == []


@pytest.mark.parametrize("command", [("db", "upgrade"), ("db", "check")])
def test_a_database_of_a_newer_version_is_refused_and_unchanged(
    installation: Installation, run: Run, command: tuple[str, ...]
) -> None:
    with installation.connected() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    said = run(*command, status=2)
    assert said.startswith("deskmate: ")
    assert "was written by a newer version of Deskmate (its schema is 9999, this version knows" in said
    assert "Start the newer version, or restore a backup from before it." in said
    with installation.connected() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "9999"


def test_a_difference_is_found() -> None:
    """In a value, a missing field, a list's length; not in a field that was added."""
    old = {"a": [{"b": 1, "c": None}], "d": "x"}
    assert [*differences(old, {"a": [{"b": 1, "c": None, "new": 2}], "d": "x", "new": 3})] == []
    assert [*differences(old, {"a": [{"b": 2}], "d": "x"}, "v")] == ["v/a/0/b was 1 and is 2", "v/a/0/c is missing"]
    assert [*differences(old, {"a": [], "d": "y"}, "v")] == [
        "v/a was [{'b': 1, 'c': None}] and is []",
        "v/d was 'x' and is 'y'",
    ]
