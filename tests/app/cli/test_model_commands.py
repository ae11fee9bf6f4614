"""``deskmate model``: as a person gives the commands."""

from __future__ import annotations

import fcntl
import io
import threading
from asyncio import sleep
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.models import recommended
from app.models.downloads import find_or_download, resolve_model
from app.models.folders import GUIDE
from app.models.local_model import ModelError
from app.settings import AppSettings
from engine import EngineSettings
from testing.encoders import make_encoder
from testing.gguf_header import gguf_bytes
from testing.lora import make_adapter
from testing.models import make_model
from testing.package_index import PackageIndex

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Gives a command; returns its exit status, its output and its errors."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENGINE_MODELS_DIR", str(models))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main.main(["model", *arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(ended.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with PackageIndex().running() as running:
        for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", running.url)
        recommended.recommended_models.cache_clear()
        monkeypatch.setattr(recommended, "read_list", lambda: (running.recommended,))
        yield running
    recommended.recommended_models.cache_clear()


def test_a_model_is_downloaded_listed_and_removed(run: Run, models: Path, index: PackageIndex) -> None:
    status, said, errors = run("get", "tiny")
    file = models / "Tiny.Q4_1.gguf"
    assert (status, said) == (0, f"tiny is here. Start with it: deskmate serve --model {file}\n")
    assert "Downloading Tiny Model..." in errors
    assert file.read_bytes() == index.model
    status, said, errors = run("list")
    assert (status, errors) == (0, "")
    [line] = [line for line in said.splitlines() if line.startswith("Tiny.Q4_1")]
    assert line.split() == ["Tiny.Q4_1", "0", "MB", "GGUF", "Q4_1", "512", "yes", "?", "models", "folder"]
    assert "tiny  1 MB  Apache-2.0  Says nothing.  downloaded" in said
    assert run("remove", "tiny", "--yes") == (0, "Tiny.Q4_1 is removed: 0 MB.\n", "")
    assert not [path.name for path in models.iterdir() if path.is_file()]


def test_a_broken_download_is_one_sentence(run: Run, models: Path, index: PackageIndex) -> None:
    index.sent = b"something else"
    status, said, errors = run("get", "tiny")
    assert (status, said) == (2, "")
    assert errors.splitlines()[-1].startswith("deskmate: Tiny Model cannot be downloaded from http://127.0.0.1")
    assert not list(models.glob("*.gguf"))


@pytest.mark.parametrize("name", ["nothing", "../x", "/etc/passwd", "file:///etc/passwd", "a/b/c", ""])
def test_what_is_no_model_is_refused(run: Run, name: str) -> None:
    status, said, errors = run("get", name)
    assert (status, said) == (2, "")
    assert errors == (
        f"deskmate: {name} is neither on the recommended list nor a hub ID. A hub ID looks like Qwen/Qwen3-0.6B.\n"
        if name
        else "deskmate: is neither on the recommended list nor a hub ID. A hub ID looks like Qwen/Qwen3-0.6B.\n"
    )


def test_a_damaged_model_is_listed_with_its_sentence_and_can_be_removed(run: Run, models: Path) -> None:
    (models / "bad.gguf").write_bytes(b"GGUF")
    status, said, _ = run("list")
    assert status == 0
    assert (
        "!!  bad: The file is incomplete or damaged: it ends within version, after 4 bytes. Download it again." in said
    )
    assert run("remove", "bad", "--yes")[0] == 0
    assert not (models / "bad.gguf").exists()


def test_a_model_is_removed_with_its_empty_folders(run: Run, models: Path) -> None:
    (models / "org" / "repo").mkdir(parents=True)
    (models / "org" / "repo" / "a.gguf").write_bytes(gguf_bytes())
    (models / "org" / "other.txt").touch()
    assert run("remove", "org/repo/a", "--yes")[0] == 0
    assert [path.name for path in (models / "org").iterdir()] == ["other.txt"]


def test_nothing_is_removed_without_a_yes(run: Run, models: Path) -> None:
    (models / "a.gguf").write_bytes(gguf_bytes())
    assert run("remove", "a") == (2, "", "deskmate: There is no terminal to confirm the removal. Use --yes.\n")
    assert (models / "a.gguf").exists()


def test_a_loaded_model_stays(run: Run, models: Path) -> None:
    (models / "a.gguf").write_bytes(gguf_bytes())
    with (models / "a.gguf").open("rb") as held:  # as a server holds the model that it has loaded
        fcntl.flock(held, fcntl.LOCK_SH)
        status, _, errors = run("remove", "a", "--yes")
    assert (status, errors) == (2, "deskmate: a is loaded by a server. Load another model there, then remove it.\n")
    assert (models / "a.gguf").exists()


def test_only_what_is_in_the_models_folder_is_removed(run: Run, tmp_path: Path, models: Path) -> None:
    lm_studio = tmp_path / "home" / ".lmstudio" / "models" / "org"
    lm_studio.mkdir(parents=True)
    (lm_studio / "b.gguf").write_bytes(gguf_bytes())
    for name, reason in (
        ("guide", "guide came with Deskmate"),
        ("org/b", "org/b belongs to LM Studio"),
        ("none", "There is no model none on this machine"),
        (str(lm_studio / "b.gguf"), "org/b belongs to LM Studio"),
        (str(tmp_path), "There is no model"),
    ):
        status, _, errors = run("remove", name, "--yes")
        assert (status, reason in errors) == (2, True), errors
    assert (lm_studio / "b.gguf").exists()


def test_the_hubs_cache_is_touched_only_when_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from tests.app.models.test_scan import hub_model

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_model(tmp_path / "hub")
    status, _, errors = run("remove", "org/tiny", "--yes")
    assert (status, "add --hub-cache" in errors) == (2, True)
    with (tmp_path / "hub" / "models--org--tiny" / "refs" / "main").open(
        "rb"
    ) as held:  # as a server that has it loaded
        fcntl.flock(held, fcntl.LOCK_SH)
        status, _, errors = run("remove", "org/tiny", "--hub-cache", "--yes")
        assert (status, "is loaded by a server" in errors) == (2, True)
    assert run("remove", "org/tiny", "--hub-cache", "--yes")[0] == 0
    assert list((tmp_path / "hub").iterdir()) == []


def test_a_link_in_the_models_folder_is_removed_and_not_what_it_leads_to(
    run: Run, tmp_path: Path, models: Path
) -> None:
    (models / "real.gguf").write_bytes(gguf_bytes())
    (models / "link.gguf").symlink_to(models / "real.gguf")
    assert run("remove", "link", "--yes")[0] == 0
    assert (models / "real.gguf").exists()
    assert not (models / "link.gguf").is_symlink()


def test_the_recommended_list_is_honest() -> None:
    models = recommended.recommended_models()
    first = models[0]
    assert (first.name, first.size_mb, first.licence, first.terms) == ("smollm2", 98, "Apache-2.0", "open")
    assert first.wheel is not None
    assert round(first.wheel.member_bytes / 1e6) == first.size_mb
    assert len({model.name for model in models}) == len(models)
    for model in models:
        is_own = any(word in model.hub.casefold() for word in ("gemma", "llama"))
        assert model.terms == ("own" if is_own else "open"), model.name
        assert model.licence in ("Apache-2.0", "MIT") or model.terms == "own"


def test_a_name_of_the_list_stands_for_its_file_once_it_is_downloaded(
    run: Run, models: Path, index: PackageIndex, tmp_path: Path
) -> None:
    app, engine = AppSettings(data_dir=tmp_path), EngineSettings(models_dir=models)
    with pytest.raises(ModelError, match="deskmate model get tiny"):
        resolve_model("tiny", app, engine)
    assert run("check", "--model", "tiny")[0] == 2
    assert index.ranges == [], "nothing is downloaded unasked"
    target = find_or_download("Tiny", app, engine, lambda _stage, _fraction: None)
    assert target == resolve_model("tiny", app, engine) == str(models / "Tiny.Q4_1.gguf")
    assert Path(target).read_bytes() == index.model
    for other in ("Qwen/Qwen3-0.6B", "models/guide", "no-such-name"):
        assert resolve_model(other, app, engine) == other


def test_the_second_of_two_servers_waits_for_the_download_of_the_first(
    models: Path, index: PackageIndex, tmp_path: Path
) -> None:
    given = AppSettings(data_dir=tmp_path), EngineSettings(models_dir=models)
    stages: list[str] = []

    def waits(stage: str, _fraction: float) -> None:
        stages.append(stage)
        index.resume.set()  # the first one goes on once the second waits

    index.resume.clear()
    first = threading.Thread(target=find_or_download, args=("tiny", *given, lambda _stage, _fraction: None))
    first.start()
    try:
        assert index.paused.wait(60)
        assert Path(find_or_download("tiny", *given, waits)).read_bytes() == index.model
    finally:
        index.resume.set()
        first.join(60)
    assert stages == ["Waiting for another process that downloads Tiny Model"]
    assert len(index.ranges) == 1


def test_a_model_of_the_list_that_only_the_hub_has_is_its_hub_id(
    monkeypatch: pytest.MonkeyPatch, index: PackageIndex, tmp_path: Path
) -> None:
    on_hub = index.recommended.model_copy(update={"wheel": None})
    monkeypatch.setattr(recommended, "read_list", lambda: (on_hub,))
    recommended.recommended_models.cache_clear()
    given = AppSettings(data_dir=tmp_path), EngineSettings(models_dir=tmp_path)
    assert find_or_download("tiny", *given, lambda _stage, _fraction: None) == on_hub.hub
    assert index.ranges == []


def test_a_folder_called_like_a_model_of_the_list_is_the_folder(
    models: Path, index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    given = AppSettings(data_dir=tmp_path), EngineSettings(models_dir=models)
    assert find_or_download("tiny", *given, lambda _stage, _fraction: None) == "tiny"


def test_the_server_downloads_a_model_of_the_list(
    models: Path,
    index: PackageIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ENGINE_MODELS_DIR", str(models))
    monkeypatch.chdir(tmp_path)
    served: list[str] = []
    monkeypatch.setattr("engine.find_model", served.append)
    monkeypatch.setattr("app.server.serving.serve", lambda *_arguments: sleep(0))
    arguments = ["serve", "--model", "tiny", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert not ended.value.code
    assert served == [str(models / "Tiny.Q4_1.gguf")]
    assert "Downloading Tiny Model..." in capsys.readouterr().err
    (models / "Tiny.Q4_1.gguf").unlink()
    index.sent = b"something else"
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert "Tiny Model cannot be downloaded from" in capsys.readouterr().err
    assert len(served) == 1


def test_a_model_is_checked_without_loading_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MODEL", str(GUIDE))
    status, said, errors = run("check")
    assert (status, errors) == (0, "")
    assert "a demo, which only knows Deskmate" in said
    status, _, errors = run("check", "--kv-cache-memory", "100000", "--device", "cpu")
    assert status == 2
    assert "does not fit into memory: it needs" in errors
    status, said, _ = run("check", "--remote-url", "http://127.0.0.1:1")
    assert status == 0
    assert "runs on http://127.0.0.1:1" in said


def test_adapters_are_checked_with_their_model(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = make_model(tmp_path / "base")
    flags = ("check", "--model", str(model), "--lora", f"sql={make_adapter(tmp_path / 'sql', model)}")
    status, said, _ = run(*flags)
    assert (status, "and its adapters" in said) == (0, True)
    monkeypatch.setattr("engine.available_host_memory", lambda: 10_000)
    monkeypatch.setattr("app.models.performance.may_have_gpu", lambda: False)
    status, _, errors = run(*flags)
    assert status == 2
    assert "but not its adapters, too" in " ".join(errors.split())
    assert run(*flags[:-1], f"sql={tmp_path}")[0] == 2


def test_a_model_is_downloaded_before_it_is_checked_if_that_is_asked_for(
    run: Run, models: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(
        "engine.prepare_model", lambda settings, _progress: checked.append(settings.model) or 98_000_000
    )
    notes = iter([None, "For chats of 8,192 tokens, put DESKMATE_MEMORY=5g into .env."])
    monkeypatch.setattr("engine.advise_memory_limit", lambda _settings, _progress: next(notes))
    monkeypatch.setattr("engine.find_model", lambda model: model if model == "org/name" else Path(model))
    status, said, _ = run("check", "--download", "--model", "tiny")
    assert (status, said) == (0, "tiny fits into memory: its weights take at most 98 MB.\n")
    assert checked == [str(models / "Tiny.Q4_1.gguf")]
    assert (models / "Tiny.Q4_1.gguf").read_bytes() == index.model
    status, said, _ = run("check", "--model", "org/name")
    assert status == 0
    assert "is a model of the hub. With --download" in said
    status, said, _ = run("check", "--download", "--model", "org/name")
    assert status == 0
    assert said.endswith("at most 98 MB. For chats of 8,192 tokens, put DESKMATE_MEMORY=5g into .env.\n")
    assert checked[1:] == ["org/name"]


def test_the_encoder_is_counted_with_its_vectors(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "check",
        "--model",
        str(make_model(tmp_path / "model")),
        "--encoder",
        str(make_encoder(tmp_path / "encoder")),
    )
    status, said, _ = run(*flags, "--encoder-vectors", "1000000")
    assert (status, "and the encoder with its vectors 128 MB" in said) == (0, True)
    monkeypatch.setattr("engine.available_host_memory", lambda: 50_000_000)
    monkeypatch.setattr("app.models.performance.may_have_gpu", lambda: False)
    status, _, errors = run(*flags, "--encoder-vectors", "1000000")
    assert status == 2
    assert "but not beside the encoder" in " ".join(errors.split())
    assert run(*flags, "--encoder-vectors", "1000")[0] == 0
