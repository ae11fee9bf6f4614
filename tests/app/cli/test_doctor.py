"""``deskmate doctor``: each check ends with a sentence, and what cannot work is not called ok."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli import doctor
from app.cli.doctor import examine
from app.errors import StartupError
from app.server.serving import bind
from app.settings import AppSettings
from app.store.maintenance.migrate import migrate
from app.store.maintenance.process_lock import claim_database
from engine import EngineSettings, ModelLoadError, find_model
from testing.encoders import make_encoder
from testing.lora import make_adapter
from testing.models import make_model

NOBODY = 65534
TOO_LONG = "a" * 300


@contextmanager
def _without_privileges(folder: Path) -> Iterator[None]:
    """Permissions below ``folder`` hold for this process, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    for parent in (folder, *folder.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o777)
    os.seteuid(NOBODY)
    try:
        if not os.path.exists(Path(__file__)):
            pytest.skip("this checkout lies in a folder that only root may read")
        yield
    finally:
        os.seteuid(0)


@contextmanager
def _as_nobody(folder: Path) -> Iterator[None]:
    """As :func:`_without_privileges`, also for ``os.access``, which looks at the real user."""
    real = os.getresuid()
    with _without_privileges(folder):
        if real[0] == 0:
            os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield
        finally:
            if real[0] == 0:
                os.setresuid(0, 0, 0)
                os.seteuid(NOBODY)


def _findings(
    data_dir: Path, *, model: str = "nowhere/at/all", url: str | None = None, **engine: Any
) -> dict[str, doctor.Finding]:
    settings = AppSettings(data_dir=data_dir, database_url=url, port=0)
    return {finding.subject: finding for finding in examine(settings, EngineSettings(model=model, **engine))}


def _file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file"


def _dangling(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "nowhere")
    return folder / "link"


def _circle(folder: Path) -> Path:
    (folder / "circle").symlink_to(folder / "circle")
    return folder / "circle"


IMPOSSIBLE: list[tuple[Callable[[Path], Path], str]] = [
    (_file, "a file is there"),
    (lambda folder: _file(folder) / "data", "Not a directory"),
    (_dangling, "a broken link"),
    (lambda folder: _dangling(folder) / "data", "a broken link"),
    (_circle, "a broken link"),
    (lambda folder: folder / TOO_LONG, "name too long"),
    (lambda folder: Path("/proc/deskmate/data"), "No such file"),
]


@pytest.mark.parametrize(("make", "reason"), IMPOSSIBLE)
def test_a_folder_that_cannot_be_is_not_called_ok(tmp_path: Path, make: Callable[[Path], Path], reason: str) -> None:
    folder = make(tmp_path)
    found = _findings(folder)
    for finding in (found["data folder"], found["database"]):
        assert finding.serious, finding
        assert reason in finding.text
        assert "APP_DATA_DIR" in finding.text
    assert str(folder) in found["data folder"].text
    with pytest.raises(StartupError, match="cannot be written"), claim_database(f"sqlite:///{folder / 'deskmate.db'}"):
        pass  # the same as ``serve`` finds


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o500])
def test_a_folder_that_may_not_be_read_or_written(tmp_path: Path, mode: int) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(mode)
    _findings(tmp_path)  # imports what the next ones need
    with _without_privileges(tmp_path):
        for folder in (locked, locked / "data"):
            finding = _findings(folder)["data folder"]
            assert finding.serious
            assert "Permission denied" in finding.text
        found = _findings(tmp_path, model=str(locked / "model"), url=f"sqlite:///{locked / 'x.db'}")
    assert not found["data folder"].serious
    for subject in ("database", "model"):
        assert found[subject].serious
        assert "This check failed" not in found[subject].text


def test_a_database_and_weights_that_may_not_be_read(tmp_path: Path) -> None:
    migrate(f"sqlite:///{tmp_path / 'deskmate.db'}")
    model = make_model(tmp_path / "model")
    assert not any(finding.serious for finding in _findings(tmp_path, model=str(model)).values())
    (tmp_path / "deskmate.db").chmod(0o400)
    (model / "model.safetensors").chmod(0)
    with _without_privileges(tmp_path):
        found = _findings(tmp_path, model=str(model))
    assert found["database"].serious
    assert "deskmate.db" in found["database"].text
    assert found["model"].serious
    assert "model.safetensors" in found["model"].text


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("app.store.maintenance.writable_folder.os.fsync", full)
    finding = _findings(tmp_path / "data")["data folder"]
    assert finding.serious
    assert "No space left on device" in finding.text
    assert not (tmp_path / "data").exists()


def _check_refusal(text: str, url: str) -> None:
    """Checks that ``serve`` refuses the database in the doctor's words."""
    with pytest.raises(StartupError) as refusal, claim_database(url):
        migrate(url)
    assert refusal.value.message == text


def test_another_servers_database_is_not_called_ok(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    with claim_database(url):
        migrate(url)
        finding = _findings(tmp_path)["database"]
        assert finding.serious
        assert f"Another Deskmate (process {os.getpid()}) is using" in finding.text
        _check_refusal(finding.text, url)
    assert not _findings(tmp_path)["database"].serious
    with claim_database(url):
        pass  # looking has taken nothing


def test_what_may_not_be_written_has_the_words_of_serve(tmp_path: Path) -> None:
    """A lock file that root has left behind, a database of another user, a folder that is read-only."""
    url = f"sqlite:///{tmp_path / 'deskmate.db'}"
    migrate(url)
    lock = tmp_path / "deskmate.db.lock"
    lock.touch()
    (tmp_path / "deskmate.db").chmod(0o666)
    _findings(tmp_path)
    for file in (lock, tmp_path / "deskmate.db"):
        file.chmod(0o444)
        with _as_nobody(tmp_path):
            finding = _findings(tmp_path)["database"]
            assert finding.serious
            assert str(file) in finding.text
            _check_refusal(finding.text, url)
        file.chmod(0o666)
    with _as_nobody(tmp_path):
        assert not _findings(tmp_path)["database"].serious
    url = f"sqlite:///{tmp_path / 'locked' / 'new' / 'deskmate.db'}"
    (tmp_path / "locked").mkdir(mode=0o555)
    with _as_nobody(tmp_path):
        finding = _findings(tmp_path, url=url)["database"]
        _check_refusal(finding.text, url)
    assert finding.serious
    assert "Permission denied" in finding.text


@pytest.mark.parametrize("url", ["postgresql+psycopg://user:secret@127.0.0.1:1/name", "postgresql+psycopg://[::1]:1/x"])
def test_a_server_that_does_not_answer_has_the_words_of_serve(tmp_path: Path, url: str) -> None:
    finding = _findings(tmp_path, url=url)["database"]
    assert finding.serious
    assert "cannot be opened" in finding.text
    _check_refusal(finding.text, url)


def test_a_folder_is_looked_at_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert _findings(Path("there"))["data folder"].text == "there is writable"
    assert _findings(Path("new/inner"))["data folder"].text == "new/inner will be created"
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@host:port/name",
        "postgresql+asyncpg://host/name",
        "postgresql+nonsense://host/name",
        "sqlite+nonsense:///x.db",
        "sqlite:////dev/null/x.db",
        f"sqlite:///{TOO_LONG}.db",
        "sqlite:///x.db?nonsense=1",
        "sqlite:///file:x.db?mode=ro&uri=true",
        "sqlite:///",
        "://",
        "postgresql://user:secret@127.0.0.1:1/name",
        "postgresql://127.0.0.1/name?nonsense=1",
    ],
)
def test_a_database_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    finding = _findings(tmp_path, url=url)["database"]
    assert finding.serious
    assert "This check failed" not in finding.text
    assert "secret" not in finding.text
    resolved = AppSettings(database_url=url).resolved_database_url
    with pytest.raises(StartupError), claim_database(resolved):  # what ``serve`` does first
        migrate(resolved)


@pytest.mark.parametrize("name", [TOO_LONG, f"./{TOO_LONG}", "two words/ü", "-org/name"])
def test_a_model_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match="model folder"):
        find_model(name)
    assert "model folder" in _findings(tmp_path, model=name)["model"].text


def test_a_model_of_the_recommended_list_will_be_downloaded(tmp_path: Path) -> None:
    finding = _findings(tmp_path, model="smollm2")["model"]
    assert not finding.serious
    assert finding.text == "smollm2 is on the recommended list, and serve downloads it first"


def test_a_model_folder_that_cannot_be_loaded(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (model / "config.json").write_text("{")
    finding = _findings(tmp_path, model=str(model))["model"]
    assert finding.serious
    assert "config.json" in finding.text


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_the_bundled_models_files_are_checked_without_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this check imports PyTorch")

    model = tmp_path / "guide"
    shutil.copytree(find_model(doctor.BUNDLED_MODEL), model, ignore=shutil.ignore_patterns("data", "draft", "*.py"))
    monkeypatch.setattr(doctor, "BUNDLED_MODEL", str(model))
    with monkeypatch.context() as patched:
        patched.setattr("engine.model.load.prepare_model", refuse)
        assert not _findings(tmp_path, model=str(model))["model"].serious
        content = (model / name).read_bytes()
        (model / name).write_bytes(content[: len(content) // 2] + b"\xff")
        damaged = _findings(tmp_path, model=str(model))["model"]
        (model / name).unlink()
        missing = _findings(tmp_path, model=str(model))["model"]
    for finding in (damaged, missing):
        assert finding.serious
        assert name in finding.text
        assert "This check failed" not in finding.text
    assert "damaged" in damaged.text
    (model / name).write_bytes(content)
    whole = EngineSettings(model=str(model), device="cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    [*_, finding] = examine(AppSettings(data_dir=tmp_path, port=0), whole)
    assert finding.serious
    assert "PyTorch finds no CUDA device" in finding.text


def test_a_draft_model_is_checked_as_the_model_is(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    settings = EngineSettings(model=str(model), speculation=str(tmp_path / "nowhere"))
    [*_, finding] = examine(AppSettings(data_dir=tmp_path, port=0), settings)
    assert finding.serious
    assert f"There is no model folder at {tmp_path / 'nowhere'}" in finding.text
    settings = settings.model_copy(update={"speculation": str(model)})
    [*_, finding] = examine(AppSettings(data_dir=tmp_path, port=0), settings)
    assert not finding.serious
    assert finding.text == f"folder {model}; draft model: folder {model}"


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999", "ftp://host", "nonsense"])
def test_a_model_server_whose_address_is_none(tmp_path: Path, url: str) -> None:
    [*_, finding] = examine(AppSettings(data_dir=tmp_path, port=0), EngineSettings(remote_url=(url,)))
    assert finding.serious
    assert "is not the address of a model server" in finding.text


def test_an_address_that_is_no_name() -> None:
    with pytest.raises(StartupError, match="not a valid host name"):
        bind("ü" * 70, 0)


def test_a_check_that_fails_itself_is_reported_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_url: str) -> str:
        raise RuntimeError("something\nunforeseen")

    monkeypatch.setattr(doctor, "describe_database", fail)
    found = _findings(tmp_path)
    assert found["database"].text == "This check failed: something unforeseen."
    assert found["database"].serious
    assert "model" in found


def test_a_pytorch_that_cannot_be_imported_is_reported_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "may_have_gpu", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", None)  # the import statement raises ImportError
    found = _findings(tmp_path)
    assert found["processor"].serious
    assert "model" in found


def test_the_compiled_decoder_is_named_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = _findings(tmp_path)["C++ decoder"]
    assert found.text.endswith("more slowly: CXX names no-such-compiler, which was not found")
    assert not found.serious, "the server starts all the same"
    settings = AppSettings(data_dir=tmp_path, port=0)
    for unused in (EngineSettings(model="nowhere/at/all", native=False), EngineSettings(model="x/y", device="cuda")):
        assert "C++ decoder" not in {finding.subject for finding in examine(settings, unused)}


def test_adapters_are_counted(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    adapter = make_adapter(tmp_path / "adapter", model, rank=4, targets=("o_proj",))  # 2 layers, 64 by 64
    found = _findings(tmp_path, model=str(model), lora=(f"sql={adapter}",))
    assert found["adapters"].text == f"sql takes {2 * 4 * (64 + 64) * 4 / 1e6:.1f} MB of memory"
    assert "adapters" not in _findings(tmp_path, model=str(model))
    (adapter / "adapter_model.safetensors").write_bytes(b"x")
    found = _findings(tmp_path, model=str(model), lora=(f"sql={adapter}",))
    assert found["adapters"].serious
    assert "cannot be read" in found["adapters"].text


def test_an_adapter_that_is_not_applied_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    assert "LoRA" not in _findings(tmp_path, model=str(model))["model"].text
    (model / "adapter_config.json").write_text("{}")
    found = _findings(tmp_path, model=str(model))["model"]
    assert "without the LoRA adapter in it: load it with --lora" in found.text
    assert not found.serious


def test_the_encoder_is_counted(tmp_path: Path) -> None:
    model, encoder = make_model(tmp_path / "model"), make_encoder(tmp_path / "encoder")
    found = _findings(tmp_path, model=str(model), encoder=str(encoder), encoder_vectors=10_000)
    assert f"and {10_000 * 32 * 4 / 1e6:.1f} MB are left free for 10,000 vectors" in found["encoder"].text
    assert "encoder" not in _findings(tmp_path, model=str(model))
    found = _findings(tmp_path, model=str(model), encoder=str(tmp_path / "nothing"))
    assert found["encoder"].serious
    assert found["encoder"].text.startswith("ENGINE_ENCODER: There is no model folder")
