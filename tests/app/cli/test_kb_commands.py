"""``deskmate kb``, as a person gives the commands."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.store.maintenance.process_lock import claim_database
from tests.app.desk import PASSWORD, SECRET

Run = Callable[..., tuple[int, str, str]]

RETURNS = "# Returns\n\nA parcel can be sent back within thirty days.\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Gives a command; returns its exit status, its output and its errors."""
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main.main(["kb", *arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(ended.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two documents, one of them broken, and with what is left out."""
    (tmp_path / "outside.md").write_text("secret")
    folder = tmp_path / "files"
    (folder / "eu").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "eu" / "returns.md").write_text(RETURNS)
    (folder / "broken.pdf").write_bytes(b"no PDF")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("hidden")
    (folder / ".git" / "notes.md").write_text("hidden")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    return folder


@pytest.mark.slow
def test_documents_are_added_read_listed_and_removed(run: Run, folder: Path) -> None:
    status, said, errors = run("add", "files")
    assert (status, said) == (1, "2 documents added.\n")
    assert "broken.pdf is not a PDF file" in errors
    status, said, _ = run("list")
    assert status == 0
    assert [line.split("  ")[:4] for line in said.splitlines()] == [
        ["Knowledge", "broken.pdf", "version 1", "failed"],
        ["Knowledge", "eu/returns.md", "version 1", "ready"],
    ]

    (folder / "eu" / "returns.md").write_text(RETURNS + "\nOr sixty.\n")
    (folder / "broken.pdf").unlink()
    with claim_database(f"sqlite:///{folder.parent}/data/deskmate.db"):  # as a running server does
        assert run("add", "files", "--no-wait")[:2] == (0, "1 document added.\n")
        assert "eu/returns.md  version 2  waiting" in run("list", "--collection", "knowledge")[1]
    assert run("add", "files")[:2] == (0, "0 documents added; 1 there already.\n")
    assert "eu/returns.md  version 2  ready" in run("list")[1]

    status, said, errors = run("remove", "broken.pdf", "nothing.md")
    assert (status, said) == (1, "broken.pdf was removed.\n")
    assert 'There is no document "nothing.md" in "Knowledge".' in errors
    assert "broken.pdf" not in run("list")[1]


@pytest.mark.slow
def test_what_cannot_be_added_is_said(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "large.txt").write_bytes(b"x" * (2**20 + 1))
    status, said, errors = run("add", "files/large.txt", "files/picture.png", "--knowledge-max-file-mb", "1")
    assert (status, said) == (1, "0 documents added.\n")
    assert "large.txt is larger than 1 MiB" in errors
    assert "picture.png cannot be read by its name" in errors

    (folder / "returns.md").write_text("another")
    for arguments, sentence in [
        (("add", "files/returns.md", "files/eu/returns.md"), "would both be the document returns.md"),
        (("add", "files", "missing.md"), "There is no file missing.md. Nothing was added."),
        (("add", "files", "--collection", "Orders"), 'There is no collection "Orders". There are: "Knowledge".'),
        (("list", "--user", "ada"), "Without accounts there is one local user."),
    ]:
        status, _, errors = run(*arguments)
        assert status == 2
        assert sentence in " ".join(errors.split())
    assert run("list")[:2] == (0, "")
    monkeypatch.setenv("APP_SECRET_KEY", SECRET)
    status, _, errors = run("list", "--user", "nobody")
    assert (status, "There is no user 'nobody'" in errors) == (2, True)


@pytest.mark.slow
def test_a_folder_is_followed(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, errors = run("sync")
    assert (status, "Name one, or set APP_KNOWLEDGE_DIR." in errors) == (2, True)
    monkeypatch.setenv("APP_KNOWLEDGE_DIR", str(folder))
    status, said, errors = run("sync")
    assert (status, said) == (1, "2 added, 0 changed, 0 removed.\n")
    assert "broken.pdf is not a PDF file" in errors
    (folder / "broken.pdf").unlink()
    assert run("sync")[:2] == (0, "0 added, 0 changed, 1 removed.\n")
    other = folder.parent / "other"
    other.mkdir()
    (other / "a.md").write_text("A")
    status, _, errors = run("sync", str(other))
    assert (status, "Name a collection for this folder with --collection." in " ".join(errors.split())) == (2, True)
    monkeypatch.delenv("APP_KNOWLEDGE_DIR")
    assert "returns.md" in run("list")[1]
    status, _, errors = run("sync", "missing")
    assert (status, "missing cannot be read" in " ".join(errors.split())) == (2, True)


@pytest.mark.slow
def test_a_search_is_judged_by_questions(run: Run, folder: Path) -> None:
    (folder / "broken.pdf").unlink()
    run("add", "files")
    lines = [
        '{"question": "how long can a parcel be sent back", "answers": ["thirty days"], "half": "held-out"}',
        '{"question": "parcel to the moon", "answers": ["rocket"], "half": "tuning"}',
    ]
    (folder / "questions.jsonl").write_text("\n".join(lines))
    file = "files/questions.jsonl"
    status, said, _ = run("eval", file, "--missed")
    assert status == 0
    assert said.splitlines() == [
        "way   questions  recall@1  recall@3  recall@10    MRR",
        "text          2     0.500     0.500      0.500  0.500",
        "",
        "Not answered by the first 3 passages, by text:",
        "   -  parcel to the moon",
    ]
    said = run("eval", file, "--half", "held-out", "--way", "text", "--collection", "knowledge", "--missed")[1]
    assert "1     1.000" in said
    assert said.splitlines()[-1] == "Not answered by the first 3 passages, by text: none"
    status, said, _ = run("eval", file, "--rerank", "5")
    assert status == 0
    assert said.splitlines()[2].startswith("reranked          2     0.500")
    assert said.splitlines()[-1] == "reranked: the first 5 passages by text, sorted by guide"

    follow_up = {
        "question": "And parcels?",
        "before": [["May goods be sent back?", "Yes."]],
        "answers": ["thirty days"],
    }
    (folder / "follow-ups.jsonl").write_text(json.dumps(follow_up))
    status, said, _ = run("eval", "files/follow-ups.jsonl", "--rewrite")
    assert status == 0
    assert said.splitlines()[2].startswith("rewritten          1     1.000")
    assert said.splitlines()[-1] == "rewritten: by text, follow-ups as questions of guide"

    for arguments, sentence in [
        ((file, "--rewrite"), "No question of files/questions.jsonl is a follow-up"),
        ((file, "--way", "dense"), "Searching by dense needs an encoder. Set ENGINE_ENCODER, or use --way text."),
        ((file, "--half", "other"), 'no question of the half "other"; there are: held-out, tuning'),
        (("missing.jsonl",), "missing.jsonl cannot be read: No such file"),
        (("files/eu/returns.md",), "Line 1 is not JSON"),
    ]:
        status, _, errors = run("eval", *arguments)
        assert (status, sentence in " ".join(errors.split())) == (2, True), errors


@pytest.mark.slow
def test_a_named_user_has_their_own_rights(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APP_SECRET_KEY", SECRET)
    for name, role in [("ada", "admin"), ("ben", "agent")]:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
        with pytest.raises(SystemExit):
            main.main(["user", "create", name, "--role", role, "--password-stdin"])
    capsys.readouterr()
    file = "files/eu/returns.md"
    status, _, errors = run("add", file, "--user", "ben")
    assert (status, "You may read this collection, but not change it." in errors) == (2, True)
    assert run("add", file, "--user", "ada", "--no-wait")[:2] == (0, "1 document added.\n")
    assert "returns.md" in run("list", "--user", "ben")[1]
    assert run("remove", "returns.md", "--user", "ben")[0] == 2
    assert run("sync", "files", "--user", "ben")[0] == 2
    assert run("remove", "returns.md", "--user", "ada")[0] == 0
