"""``deskmate user``, and what a start says: as a person gives the commands."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.domain.secret_strength import weakness_of
from app.server.serving import require_loopback
from app.settings import AppSettings
from app.store.accounts.accounts import AccountRecords
from app.store.db.database import Database
from testing.import_files import document, message, talk
from tests.app.desk import PASSWORD, SECRET

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Gives a command; returns its exit status and what it said."""
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("APP_SECRET_KEY", SECRET)

    def command(*arguments: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            main.main(list(arguments))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(ended.value.code or 0), said.out + said.err

    return command


@pytest.mark.slow
def test_people_are_made_listed_changed_and_shut_out(run: Run, tmp_path: Path) -> None:
    create = ("user", "create", "Ada", "--role", "admin", "--display-name", "Ada L.", "--password-stdin")
    assert run(*create, typed=f"{PASSWORD}\n") == (0, "ada can sign in as admin.\n")
    assert run(*create, typed=f"{PASSWORD}\n")[0] == 2  # there is one
    assert run("user", "create", "ben", "--password-stdin", "--take-over", typed=f"{PASSWORD}\n") == (
        0,
        "ben can sign in as agent. Conversations taken over: 0.\n",
    )
    assert run("user", "role", "BEN", "viewer") == (0, "ben is now viewer.\n")
    assert run("user", "disable", "ben") == (0, "ben is disabled.\n")
    assert run("user", "list") == (0, "ada  admin  never seen\nben  viewer  never seen  disabled\n")
    assert run("user", "enable", "ben")[0] == 0
    status, said = run("user", "disable", "ada")
    assert (status, "last admin" in said) == (2, True)
    status, said = run("user", "role", "nobody", "agent")
    assert (status, "There is no user 'nobody'" in said) == (2, True)

    async def hash_of(name: str) -> str | None:
        database = Database(f"sqlite:///{tmp_path / 'deskmate.db'}")
        known = await AccountRecords(database).credentials(name)
        await database.close()
        return known.password_hash if known else None

    before = asyncio.run(hash_of("ada"))
    assert before is not None
    assert before.startswith("$argon2id$")
    assert run("user", "reset-password", "ada", "--password-stdin", typed="short\n")[0] == 2
    assert run("user", "reset-password", "ada", "--password-stdin", typed="another four words\n")[0] == 0
    assert asyncio.run(hash_of("ada")) != before
    status, said = run("user", "reset-password", "ada", "--link", "--public-url", "https://desk.example")
    assert status == 0
    assert said.startswith("https://desk.example/invitation/")
    status, said = run("export", "--user", "ada", "--to", str(tmp_path / "ada.json"))
    assert status == 0, said
    assert json.loads((tmp_path / "ada.json").read_text())["conversations"] == []
    assert run("export", "--user", "nobody", "--to", str(tmp_path / "x.json"))[0] == 2


@pytest.mark.slow
def test_somebody_is_deleted_once_it_was_said_what_goes(run: Run, tmp_path: Path) -> None:
    for name, role in (("ada", "admin"), ("ben", "agent")):
        made = run("user", "create", name, "--role", role, "--password-stdin", typed=f"{PASSWORD}\n")
        assert made[0] == 0, made
    taken_in = tmp_path / "bens.json"
    taken_in.write_bytes(document(talk("1", message("2", content="Ben's"))))
    assert run("import", str(taken_in), "--user", "ben")[0] == 0

    rest = (
        "0 replies, 0 ratings, 0 stored responses, 0 drafts, 0 proposed articles, 0 marked questions, 0 API keys, "
        "0 sessions"
    )
    goes = f"Deleting ben deletes the account and 1 conversation, 1 message, {rest}.\n"
    assert run("user", "delete", "ben", "--preview") == (0, goes)
    status, said = run("user", "delete", "ben")
    assert (status, "no terminal to confirm the deletion" in said) == (2, True)
    assert "ben" in run("user", "list")[1], "nobody said yes"
    status, said = run("user", "delete", "Ben", "--yes")
    assert (status, said) == (0, f"{goes}ben was deleted. Backups still hold this data until you delete them.\n")
    assert run("user", "list")[1] == "ada  admin  never seen\n"
    assert run("user", "delete", "ben", "--yes")[0] == 2
    status, said = run("user", "delete", "ada", "--yes")
    assert (status, "last admin" in said) == (2, True)
    assert "ada" in run("user", "list")[1]


def test_there_is_nobody_to_ask_for_a_password(run: Run) -> None:
    status, said = run("user", "create", "ada")
    assert (status, "--password-stdin" in said) == (2, True)


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        (None, "Accounts need a secret"),
        ("short", "has 5 characters and needs at least 32"),
        ("ab" * 30, "repeats the same few characters"),
        ("changeme-0123456789-abcdefghijklmn", "placeholder"),
        ("this-is-my-secret-key-abcdefghijklmnop", "placeholder"),
    ],
)
def test_a_weak_secret_is_refused_with_how_to_make_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, secret: str | None, reason: str
) -> None:
    monkeypatch.delenv("APP_SECRET_KEY")
    given = () if secret is None else ("--secret-key", secret)
    status, said = run("serve", "--accounts", *given)
    assert status == 2
    assert reason in said
    assert "openssl rand -base64 48" in said
    assert secret is None or secret not in said


def test_good_secrets_are_taken() -> None:
    for secret in (
        SECRET,
        "7c1e9ab04d5f2863e1b7c09fa4d8263570be19c4fd8a2e63",
        "pZ+8v0kC1r/5mQf3Yw7uJx2dTnLhB9sEaGiVoK4==",
    ):
        assert weakness_of(secret) is None


def test_only_with_accounts_it_listens_elsewhere() -> None:
    require_loopback("0.0.0.0", accounts=True)


@pytest.mark.parametrize("url", ["desk.example.com", "ftp://desk", "https://desk/path", "https://", "https://a?b=1"])
def test_a_public_url_that_is_none_is_refused(run: Run, url: str) -> None:
    status, said = run("serve", "--public-url", url)
    assert (status, "must be an address without a path" in said) == (2, True)


def test_settings_left_empty_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_KEY", "PUBLIC_URL", "METRICS_TOKEN", "TRUSTED_PROXIES", "MESSAGES_PER_MINUTE"):
        monkeypatch.setenv(f"APP_{name}", "")
    settings = AppSettings(_env_file=None)
    assert (settings.secret_key, settings.public_url, settings.metrics_token) == (None, None, None)
    assert (settings.trusted_proxies, settings.messages_per_minute) == ((), 30)
