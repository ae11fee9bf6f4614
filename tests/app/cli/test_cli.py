"""The command line: what cannot work ends with one sentence and exit code 2; what runs ends in order."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.cli import flags, main
from app.cli.flags import flag_name, variable_name
from app.settings import AppSettings
from app.store.maintenance.migrate import migrate
from engine import EngineSettings
from engine.remote.sse import EventParser
from testing.databases import create_migrated_file
from testing.models import make_model

Run = Callable[..., str]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never ends a reply by itself, and has room for a long one."""
    return make_model(tmp_path_factory.mktemp("models") / "endless", eos=False, max_position_embeddings=100_000)


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command that must fail; returns its sentence."""
    for name in ("ANALYTICS_ENABLED", "TEMP_DIR", "ANALYTICS_MAX_EVENTS", "ANALYTICS_CACHE_FREQUENCY"):
        monkeypatch.setenv(f"GRADIO_{name}", "")  # put back what ``serve`` sets
    monkeypatch.setattr("app.server.logs.configure_logging", lambda level: None)
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("APP_PORT", "0")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main(list(arguments))
        assert ended.value.code == 2
        captured = capsys.readouterr()
        assert "ready" not in captured.out
        assert "Traceback" not in captured.out + captured.err
        sentences = [line for line in captured.err.splitlines() if line.startswith("deskmate: ")]
        assert len(sentences) == 1, captured.err
        assert sentences[0].endswith(".")
        assert captured.err.splitlines()[-1] == sentences[0]
        return sentences[0].removeprefix("deskmate: ")

    return run


def test_port_in_use(fails: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        sentence = fails("serve", "--port", port)
    assert sentence.startswith(f"Port {port} is in use")
    assert "--port" in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "http"), ["--port", "APP_PORT", "'http'"]),
        (("--port", "70000"), ["--port", "65535"]),
        (("--device", "tpu"), ["--device", "ENGINE_DEVICE", "'cpu'", "'tpu'"]),
        (("--max-model-len", "3"), ["--max-model-len", "16"]),
        (("--gpu-memory-utilization", "nan"), ["--gpu-memory-utilization"]),
        (("--log-level", "loud"), ["--log-level", "'loud'"]),
        (("--kv-cache-memory", "inf"), ["--kv-cache-memory", "finite"]),
        (("--data-dir", "what?"), ["--data-dir", "question mark"]),
        (("--database-url", "mysql://x/y"), ["APP_DATABASE_URL"]),
        (("--database-url", "nonsense"), ["APP_DATABASE_URL"]),
        (("--host", "0.0.0.0"), ["0.0.0.0", "accounts", "127.0.0.1"]),
        (("--host", "192.168.1.5"), ["192.168.1.5"]),
        (("--host", "example.org"), ["example.org"]),
        (("--host", "::"), ["::"]),
        (("--host", "203.0.113.7.0"), ["203.0.113.7.0"]),
    ],
)
def test_wrong_values(fails: Run, arguments: tuple[str, ...], words: list[str]) -> None:
    sentence = fails("serve", *arguments)
    assert all(word in sentence for word in words), sentence


def test_values_that_do_not_go_together(fails: Run) -> None:
    assert fails("serve", "--max-num-seqs", "4096").startswith("max_batched_tokens (512) must be at least")


def test_dotenv_that_is_no_text(fails: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"APP_LOG_LEVEL=\xff\xfe")
    monkeypatch.chdir(tmp_path)
    assert "UTF-8" in fails("serve")


def test_wrong_values_in_the_environment(fails: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_NUM_THREADS", "many")
    assert "ENGINE_NUM_THREADS" in fails("serve")


def test_wrong_values_in_dotenv(fails: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("APP_CHECKPOINT_SECONDS=-1\n")
    monkeypatch.chdir(tmp_path)
    assert "APP_CHECKPOINT_SECONDS" in fails("serve")


def test_flags_beat_the_environment_and_that_beats_dotenv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("APP_HOST=dotenv\nAPP_LOG_LEVEL=error\nAPP_MAX_MESSAGE_CHARS=5\nUNRELATED=1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APP_LOG_LEVEL", "warning")
    monkeypatch.setenv("APP_HOST", "environment")
    settings = flags.read_settings(AppSettings, {"host": "flag", "allowed_hosts": "a, b", "model": "another's"})
    assert (settings.host, settings.log_level, settings.max_message_chars) == ("flag", "warning", 5)
    assert settings.allowed_hosts == ("a", "b")


def test_flags_of_lists_are_repeated_or_have_commas() -> None:
    for given in (["a=x", "b=y"], ["a=x,b=y"], "a=x, b=y"):
        assert flags.read_settings(EngineSettings, {"lora": given}).lora == ("a=x", "b=y")
    assert flags.read_settings(EngineSettings, {"lora": []}).lora == ()


def test_engine_and_application_share_no_name() -> None:
    assert not AppSettings.model_fields.keys() & EngineSettings.model_fields.keys()


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["serve", "--help"])
    shown = capsys.readouterr().out
    for settings in (AppSettings, EngineSettings):
        for name, field in settings.model_fields.items():
            assert f"{flag_name(name)}" in shown
            assert f"[{variable_name(settings, name)}]" in shown
            assert field.description, f"{name} says nothing about itself"


def test_data_folder_is_a_file(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = fails("serve", "--data-dir", str(tmp_path / "file"))
    assert str(tmp_path / "file") in sentence
    assert "APP_DATA_DIR" in sentence


def test_data_folder_cannot_be_made(fails: Run) -> None:
    assert "/proc/nowhere" in fails("serve", "--data-dir", "/proc/nowhere")


def write_newer_database(folder: Path) -> None:
    folder.mkdir()
    migrate(f"sqlite:///{folder / 'deskmate.db'}")
    with sqlite3.connect(folder / "deskmate.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


@pytest.mark.parametrize("command", [("serve",), ("db", "upgrade"), ("db", "check")])
def test_database_newer_than_the_code(fails: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    write_newer_database(tmp_path / "data")
    sentence = fails(*command)
    assert "newer version" in sentence
    assert "9999" in sentence


@pytest.mark.parametrize("command", [("serve",), ("db", "upgrade"), ("db", "check")])
def test_database_is_not_one(fails: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/deskmate.db").write_bytes(b"this is a letter to somebody" * 100)
    assert "database" in fails(*command)


def test_damaged_database(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data/deskmate.db"
    migrate(f"sqlite:///{file}")
    pages = bytearray(file.read_bytes())
    pages[8192:] = b"\xa5" * (len(pages) - 8192)
    file.write_bytes(pages)
    assert "damaged" in fails("db", "check")


def break_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def make_pickled(folder: Path) -> None:
    break_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def make_unsupported(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "t5", "architectures": ["T5Model"]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (shutil.rmtree, ""),
        (break_weights, "weights"),
        (make_pickled, "safetensors"),
        (make_unsupported, "t5"),
    ],
)
def test_models_that_cannot_run(
    fails: Run, model: Path, tmp_path: Path, breakage: Callable[[Path], None], words: str
) -> None:
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    breakage(broken)
    assert words in fails("serve", "--model", str(broken)).lower()


def test_not_enough_memory_for_one_sequence(fails: Run, model: Path) -> None:
    sentence = fails("serve", "--model", str(model), "--num-kv-blocks", "4", "--max-model-len", "4096")
    assert "4096" in sentence.replace(",", "")


def test_doctor_names_what_would_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_newer_database(tmp_path / "data")
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SystemExit) as ended:
        main.main(["doctor", "--port", str(other.getsockname()[1]), "--model", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    serious = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("!!")]
    assert serious == ["!!  address", "!!  database", "!!  model"]


def test_database_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("APP_DATA_DIR", str(tmp_path / "data"))

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main(list(arguments))
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert "created at the first start" in run("db", "check")
    assert not (tmp_path / "data").exists(), "check changes nothing"
    assert "from nothing" in run("db", "upgrade")
    assert "already" in run("db", "upgrade")
    assert "in order" in run("db", "check")


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_marks_the_reply(model: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """The whole program, as a person starts it: a reply is under way when it is told to stop."""
    command = [sys.executable, "-m", "app", "serve", "--model", str(model), "--port", "0", "--shutdown-seconds", "0.2"]
    environment = {**os.environ, "APP_DATA_DIR": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Deskmate is ready at http://127.0.0.1:"), process.communicate()
        url = line.split()[-1]
        shown = ""
        with httpx.Client(base_url=url, timeout=60) as http:
            turn = http.post("/api/turns", json={"text": "on and on", "settings": {"max_tokens": 90_000}}).json()
            assert http.get("/health").status_code == 200  # leaves an idle connection open
            with http.stream("GET", f"/api/turns/{turn['turn_id']}/events") as response:
                parser = EventParser()
                for event in (event for piece in response.iter_bytes() for event in parser.feed(piece)):
                    if event.name == "text":
                        if not shown:
                            process.send_signal(sent)
                        shown += json.loads(event.data)["text"]
                    elif event.name == "end":
                        end = json.loads(event.data)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "ERROR" not in err.upper(), err
    assert out == "", "the address is the only line"
    assert end["status"] == "interrupted", end
    with sqlite3.connect(tmp_path / "data/deskmate.db") as connection:
        saved = connection.execute("SELECT status, content FROM message WHERE id = ?", [turn["message_id"]]).fetchone()
    assert saved == ("interrupted", shown)


#: Loads for ten minutes, deaf to everything, as from a disk that hangs.
_ENDLESS_LOAD = """
import signal, sys, time
import engine.runtime.model_loading
from app.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background, it is ignored

def load_model(settings, progress):
    progress("Reading", 0.0)
    time.sleep(600)

engine.runtime.model_loading.load_model = load_model
main(sys.argv[1:])
"""


@pytest.mark.full
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_model_loads_ends_at_once(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    command = [sys.executable, "-u", "-c", _ENDLESS_LOAD, "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Reading"):
                process.send_signal(sent)
                break
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    assert "is ready at" not in rest


@pytest.mark.parametrize(
    "command",
    [
        *("--help", "user list"),
        *(pytest.param(command, marks=pytest.mark.full) for command in ("serve --help", "doctor", "db upgrade")),
        *(pytest.param(command, marks=pytest.mark.full) for command in ("db check", "db backup", "export --to -")),
    ],
)
def test_commands_import_no_model_code_and_no_page(tmp_path: Path, command: str) -> None:
    """PyTorch, transformers and Gradio take seconds to import, and only ``serve`` needs them."""
    check = """
import sys
from app.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print("imported:", sorted({"torch", "transformers", "gradio"} & set(sys.modules)))
"""
    environment = {
        **os.environ,
        "APP_DATA_DIR": str(tmp_path / "data"),
        "APP_SECRET_KEY": secrets.token_urlsafe(48),
        "APP_PORT": "0",
    }
    if command != "db upgrade":
        create_migrated_file(tmp_path / "data" / "deskmate.db")
    command_line = [sys.executable, "-c", check, *command.split()]
    root = Path(__file__).parents[3]
    done = subprocess.run(command_line, capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_a_wrong_setting_or_folder_is_refused_before_the_page_is_imported(tmp_path: Path) -> None:
    check = """
import sys
from app.cli.main import main
try:
    main(["serve", "--port", "0", "--data-dir", sys.argv[1], "--model", sys.argv[1] + "/nowhere"])
except SystemExit as end:
    assert end.code == 2, end.code
print("imported:", sorted({"torch", "transformers", "gradio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", check, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "imported: []\n", done.stderr
    assert "There is no model folder at" in done.stderr
