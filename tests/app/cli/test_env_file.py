"""``.env``: what is lost in it is named once, with the file's name and without a value; also in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.cli.env_file import find_problems
from app.cli.flags import variable_name
from app.errors import StartupError
from app.settings import AppSettings
from app.store.maintenance.migrate import sqlite_file
from engine import EngineSettings
from tests.app.cli.test_doctor import _without_privileges

ROOT = Path(__file__).parents[3]
KNOWN = [variable_name(one, name) for one in (AppSettings, EngineSettings) for name in one.model_fields]
ENV = Path(".env")
#: Part of every value below; it may be a secret.
VALUE = "s3cr3t"

Show = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("APP_", "ENGINE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def problems(content: str | bytes | None, **environment: str) -> list[str]:
    if content is not None:
        ENV.write_bytes(content.encode() if isinstance(content, str) else content)
    found = list(find_problems(ENV, environment, KNOWN, ("APP_", "ENGINE_")))
    assert VALUE not in str(found)
    return found


@pytest.mark.parametrize(
    ("line", "guess"),
    [
        ("APP_PROT=s3cr3t", "APP_PORT"),
        ("app_prot=s3cr3t", "APP_PORT"),
        ("export APP_SECRETKEY='s3cr3t'", "APP_SECRET_KEY"),
        ("APP_ACCOUNT=true", "APP_ACCOUNTS"),
        ("ENGINE_MODLE=s3cr3t", "ENGINE_MODEL"),
        ("AP_PORT=s3cr3t", "APP_PORT"),
        ("ENGIN_MODEL=s3cr3t", "ENGINE_MODEL"),
    ],
)
def test_a_misspelt_setting_is_named_with_a_guess(line: str, guess: str) -> None:
    [problem] = problems(f"APP_HOST=127.0.0.1\n\n# a comment\n{line}\n")
    assert problem.startswith(".env, line 4: ")
    assert problem.endswith(f"is not a setting, so it has no effect. Did you mean {guess}?")


def test_a_name_that_resembles_none_is_named_too_if_it_is_meant_for_us() -> None:
    [problem] = problems("ENGINE_WARP_DRIVE=s3cr3t\n")
    advice = "deskmate serve --help lists the settings."
    assert problem == f".env, line 1: ENGINE_WARP_DRIVE is not a setting, so it has no effect. {advice}"


def test_other_programs_names_are_theirs() -> None:
    """In ``.env`` those of compose; in the environment also names with our prefix that are common elsewhere."""
    assert problems((ROOT / ".env.example").read_text()) == []
    commented = [line[1:] for line in (ROOT / ".env.example").read_text().splitlines() if line.startswith("#")]
    assert problems("\n".join(line for line in commented if "=" in line and " " not in line)) == []
    assert problems("PORT=1\nDATABASE_URL=s3cr3t\nNOTHING\nA_NAME\n") == []
    common = ("APP_KEY", "APP_ENV", "APP_NAME", "APP_VERSION", "APP_DEBUG", "APP_URL", "APP_SERVICE_PORT", "ENGINE")
    assert problems("", **dict.fromkeys(common, "s3cr3t"), **dict.fromkeys(KNOWN, "s3cr3t")) == []


def test_a_misspelt_variable_of_the_environment() -> None:
    guess = "In the environment: APP_PROT is not a setting, so it has no effect. Did you mean APP_PORT?"
    assert problems("", APP_PROT="s3cr3t") == [guess]
    assert problems("", app_port="s3cr3t") == [], "settings are read in any case"
    assert len(problems("APP_PROT=s3cr3t", APP_PROT="s3cr3t")) == 1, "compose passes .env on as the environment"


@pytest.mark.parametrize(
    ("content", "line", "name"),
    [
        ("APP_PORT s3cr3t\n", 1, " (APP_PORT)"),
        ("\n\n  APP_PORT s3cr3t\n", 3, " (APP_PORT)"),
        ("APP_HOST='s3cr3t\nAPP_PORT=1\n", 1, " (APP_HOST)"),
        ('APP_HOST="s3cr3t\n', 1, " (APP_HOST)"),
        ("APP_HOST='s3cr3t' s3cr3t\n", 1, " (APP_HOST)"),
        ("APP_AUTO_TITLES\n", 1, " (APP_AUTO_TITLES)"),
        ("s3cr3t s3cr3t\n", 1, ""),
        ("=s3cr3t\n", 1, ""),
        ("APP_PORT=1\r\n\r\nAPP_HOST s3cr3t\r\n", 3, " (APP_HOST)"),
    ],
)
def test_a_broken_line(content: str, line: int, name: str) -> None:
    [problem] = problems(content)
    assert problem.startswith(f".env, line {line}{name} cannot be read, so it has no effect.")


@pytest.mark.parametrize("content", ["", "\n", "APP_PORT=\n", "APP_PORT = 1 # one\r\n", "\ufeffAPP_PORT=1\n"])
def test_what_is_in_order(content: str) -> None:
    assert problems(content) == []


@pytest.mark.parametrize("content", [b"APP_PORT=\xff", "APP_PORT=1".encode("utf-16"), "A=1".encode("utf-16-le")])
def test_what_is_no_text(content: bytes) -> None:
    with pytest.raises(StartupError, match=r"\.env cannot be read: it is not UTF-8 text\. Save it as UTF-8\."):
        problems(content)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert problems(None) == []
    ENV.mkdir()
    assert problems(None) == [".env is a folder, so no settings are read from it."]
    ENV.rmdir()
    ENV.symlink_to("nowhere")
    assert problems(None) == [".env is a broken link, so no settings are read from it."]
    ENV.unlink()
    ENV.symlink_to(ENV)
    with pytest.raises(StartupError, match=r"\.env cannot be read: Too many levels"):
        problems(None)
    ENV.unlink()
    os.mkfifo(ENV)  # reading it here would take its content from the settings
    assert problems(None) == []


def test_what_may_not_be_read(tmp_path: Path) -> None:
    ENV.write_text("APP_PORT=1\n")
    ENV.chmod(0)
    refusal = pytest.raises(StartupError, match=r"\.env cannot be read: Permission denied\. Make it readable")
    with _without_privileges(tmp_path), refusal:
        problems(None)
    locked = tmp_path / "locked"
    locked.mkdir()
    os.chdir(locked)
    locked.chmod(0)
    with _without_privileges(tmp_path), refusal:
        problems(None)


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StartupError, match="working directory no longer exists"):
        problems(None)


@pytest.fixture
def show(capfd: pytest.CaptureFixture[str]) -> Show:
    """Runs a command; returns the lines on stderr, those of every logger too."""

    def show(*arguments: str, status: int = 0) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main.main(list(arguments))
        assert ended.value.code == status
        return capfd.readouterr().err.splitlines()

    return show


def test_commands_warn_once_and_go_on(show: Show) -> None:
    """The settings of the application and of the engine are read from the same file."""
    ENV.write_text("APP_PROT=7000\nAPP_PORT 7000\nAPP_DATA_DIR=here\nAPP_HOST=127.0.0.1\n")
    expected = [
        "deskmate: warning: .env, line 1: APP_PROT is not a setting, so it has no effect. Did you mean APP_PORT?",
        "deskmate: warning: .env, line 2 (APP_PORT) cannot be read, so it has no effect. A line is NAME=value; a value "
        "in quotes ends with the same quote.",
    ]
    assert show("db", "upgrade")[: len(expected)] == expected
    assert Path("here/deskmate.db").exists()
    for _ in range(2):  # for each command
        assert show("doctor", "--port", "0", "--model", "no/where/at/all", status=2) == expected
    assert show("serve", "--port", "0", "--log-level", "loud", status=2)[:-1] == expected
    assert show("serve", "--help") == []


@pytest.mark.parametrize("command", [("serve",), ("doctor",), ("db", "check"), ("export",), ("user", "list")])
def test_every_command_refuses_a_file_that_cannot_be_read(show: Show, command: tuple[str, ...]) -> None:
    ENV.write_bytes(b"APP_HOST=\xff")
    assert show(*command, status=2) == [
        "deskmate: The file .env cannot be read: it is not UTF-8 text. Save it as UTF-8."
    ]
    assert show(*command, "--help") == []


def test_a_byte_order_mark_hides_no_setting(show: Show) -> None:
    ENV.write_bytes(b"\xef\xbb\xbfAPP_DATA_DIR=here\r\nAPP_HOST=127.0.0.1\r\n")
    show("db", "upgrade")
    file = sqlite_file(AppSettings().resolved_database_url)
    assert file is not None
    assert file == Path.cwd() / "here" / "deskmate.db"
    assert file.exists()
