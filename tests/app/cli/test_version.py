"""``deskmate --version``: the version, and in a clone the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app import __version__
from app.cli import main
from app.cli.version import describe_version


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_named_and_whether_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=one")
    git(tmp_path, "tag", "--annotate", "v9", "--message=nine")  # the version is the package's, not a tag's
    commit = git(tmp_path, "rev-parse", "--short=7", "HEAD")
    assert describe_version(tmp_path) == f"{__version__} (commit {commit})"
    (tmp_path / "file").write_text("two")
    assert describe_version(tmp_path) == f"{__version__} (commit {commit}-dirty)"


def test_another_projects_repository_around_it_is_not_taken_for_ours(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=theirs")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    assert describe_version(installed) == __version__


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    assert describe_version(tmp_path) == __version__, "there is no commit yet"
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=one")
    assert describe_version(tmp_path) != __version__
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_version(tmp_path) == __version__


@pytest.mark.parametrize("arguments", [("--version",), ("--version", "serve")])
def test_it_is_printed_and_nothing_else_happens(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(list(arguments))
    assert ended.value.code == 0
    assert capsys.readouterr() == (f"deskmate {describe_version()}\n", "")
