"""``deskmate run``: replies are those of /v1, one a line; what was interrupted or torn is continued without a gap."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli import run as run_module
from app.cli.batch_file import ReplyFile
from app.cli.main import main
from engine import EngineOverloadedError, EngineSettings, EngineStoppedError, InvalidRequestError
from testing.fake_engine import FakeEngine
from testing.models import make_model

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


class Files:
    """The input and output of a run, with a scripted engine."""

    def __init__(self, folder: Path, engine: FakeEngine) -> None:
        self.input, self.output = folder / "prompts.jsonl", folder / "replies.jsonl"
        self.engine = engine

    def write(self, *lines: object) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.input.write_text("".join(f"{text}\n" for text in texts))

    def run(self, *more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["run", "--input", str(self.input), "--output", str(self.output), *more])
        return int(ended.value.code or 0)

    def replies(self) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines)
        return {line["custom_id"]: line for line in lines}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    engine = FakeEngine()

    @asynccontextmanager
    async def make(settings: object, progress: object) -> AsyncIterator[FakeEngine]:
        yield engine

    monkeypatch.setattr(run_module, "make_engine", make)
    return Files(tmp_path, engine)


def text_of(reply: dict[str, Any]) -> str:
    content: str = reply["response"]["body"]["choices"][0]["message"]["content"]
    return content


def test_each_line_gets_the_response_of_v1(files: Files) -> None:
    chat = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": HELLO}
    files.write(chat, "", {"prompt": ["One", "Two"]}, HELLO | {"custom_id": "c"})
    assert files.run() == 0
    replies = files.replies()
    assert set(replies) == {"a", "line-3", "c"}  # lines count as in the file, the empty one too
    assert text_of(replies["a"]) == "Hello, world."
    assert len(replies["line-3"]["response"]["body"]["choices"]) == 2
    assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in replies.values())


def test_a_recommended_model_is_downloaded_first(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def find(app: object, engine: EngineSettings, progress: object) -> EngineSettings:
        looked_up.append(engine.model)
        return engine

    monkeypatch.setattr(run_module, "with_found_model", find)
    files.write(HELLO)
    assert files.run("--model", "smollm2") == 0
    assert files.run("--model", "smollm2") == 0  # all is done: nothing is downloaded
    assert looked_up == ["smollm2"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "not a JSON object"),
        ("[" * 10_000, "not a JSON object"),
        ({"custom_id": 5, **HELLO}, "'custom_id' must be a string"),
        ({"max_tokens": 3}, "needs 'messages' or 'prompt'"),
        ({"url": "/v1/embeddings", "body": {}}, "'url' must be /v1/chat/completions or /v1/completions"),
        ({"method": "GET", "url": "/v1/completions", "body": {}}, "'method'"),
        ({"url": "/v1/completions", "body": "text"}, "'body' must be an object"),
        (HELLO | {"max_tokens": 0}, "max_tokens must be at least 1"),
        (HELLO | {"stream": True}, "Leave 'stream' out"),
        (HELLO | {"model": "another"}, "The model 'another' does not exist"),
        (HELLO | {"modalities": ["audio"]}, "modalities"),
        (HELLO | {"response_format": {"type": "json_schema"}}, "response_format needs a schema"),
        (HELLO | {"temperature": 0, "best_of": 2}, "best_of must be n"),
    ],
)
def test_an_error_is_recorded_and_not_fatal(files: Files, line: object, words: str) -> None:
    files.write(line, HELLO)
    assert files.run() == 1
    replies = files.replies()
    assert words in replies["line-1"]["error"]["message"]
    assert replies["line-1"]["response"]["body"]["error"]["message"] == replies["line-1"]["error"]["message"]
    assert replies["line-1"]["response"]["status_code"] in (400, 404)
    assert text_of(replies["line-2"]) == "Hello, world."


def test_a_second_run_answers_what_is_missing_and_tries_errors_again(files: Files) -> None:
    files.engine.say(fail_at=0, error=InvalidRequestError("This time not."))
    files.write(*({**HELLO, "custom_id": f"q{number}"} for number in range(4)))
    assert files.run("--max-concurrency", "1") == 1
    first = files.replies()
    assert first["q0"]["error"]["message"] == "This time not."
    assert files.run() == 0
    second = files.replies()
    assert {name: second[name] for name in ("q1", "q2", "q3")} == {name: first[name] for name in ("q1", "q2", "q3")}
    assert text_of(second["q0"]) == "Hello, world."
    before = files.output.read_bytes()
    assert files.run() == 0
    assert files.output.read_bytes() == before


def test_a_torn_last_line_is_repaired_at_every_byte(files: Files) -> None:
    files.write(HELLO, HELLO)
    assert files.run() == 0
    whole = files.output.read_bytes()
    start = whole.index(b"\n") + 1
    for end in (start, start + 1, (start + len(whole)) // 2, len(whole) - 1):
        files.output.write_bytes(whole[:end])
        assert files.run() == 0
        assert files.output.read_bytes()[:start] == whole[:start]
        assert set(files.replies()) == {"line-1", "line-2"}


def test_a_file_that_holds_something_else_is_left_as_it_is(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(HELLO)
    for content in ("my notes\n", '{"custom_id": "a"}\n', "[]\n"):
        files.output.write_text(content)
        assert files.run() == 2
        assert "line 1, is not a reply of deskmate run" in capsys.readouterr().err
        assert files.output.read_text() == content
        assert [one.name for one in files.output.parent.iterdir() if "unfinished" in one.name] == []


def test_what_cannot_be_told_apart_or_read_is_refused_before_anything_runs(
    files: Files, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files.write({**HELLO, "custom_id": "a"}, {**HELLO, "custom_id": "a"})
    assert files.run() == 2
    assert "the custom_id 'a' twice" in capsys.readouterr().err
    assert not files.output.exists()
    files.input.unlink()
    assert files.run() == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    files.input.mkdir()
    assert files.run() == 2
    assert "not a regular file" in capsys.readouterr().err


def test_a_full_queue_is_waited_for(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MIN_BACKOFF_SECONDS", 0.001)
    for _ in range(2):
        files.engine.say(fail_at=0, error=EngineOverloadedError("The queue is full."))
    files.write(HELLO, HELLO, HELLO)
    assert files.run() == 0
    assert len(files.replies()) == 3


def test_an_engine_that_stopped_ends_the_run_and_keeps_the_replies(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.engine.say()
    files.engine.say(fail_at=0, error=EngineStoppedError("No server answers."))
    files.write(HELLO, HELLO, HELLO)
    assert files.run("--max-concurrency", "1") == 2
    assert list(files.replies()) == ["line-1"]
    shown = capsys.readouterr().err
    assert "1 replies were written. Run again to go on." in shown
    assert shown.rstrip().endswith("deskmate: No server answers.")


def test_fields_without_effect_are_named_once(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(HELLO | {"temperatur": 1}, HELLO | {"temperatur": 1})
    assert files.run() == 0
    assert "2 requests have unknown fields, which had no effect: temperatur" in capsys.readouterr().err


def test_one_run_at_a_time_writes_a_file(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(HELLO)
    with ReplyFile(files.output):
        assert files.run() == 2
    assert "Another run writes" in capsys.readouterr().err
    assert files.run() == 0


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(300)  # on a busy machine, importing PyTorch alone takes half a minute
def test_ctrl_c_keeps_every_complete_reply(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    requests, output = tmp_path / "prompts.jsonl", tmp_path / "replies.jsonl"
    line = {"prompt": [11, 12, 13], "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    requests.write_text((json.dumps(line) + "\n") * 5_000)
    command = [sys.executable, "-m", "app", "run", "--input", str(requests), "--output", str(output)]
    settings: Sequence[str] = ["--model", str(model), "--dtype", "float32", "--max-num-seqs", "2", "--no-native"]
    process = subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True)
    while not (output.exists() and output.stat().st_size > 5_000):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    shown = process.communicate(timeout=120)[1]
    assert process.returncode == 130, shown
    assert "Run again to go on." in shown
    assert "Traceback" not in shown
    replies = [json.loads(one) for one in output.read_text().splitlines()]
    assert 0 < len(replies) < 5_000
    assert all(len(one["response"]["body"]["choices"]) == 1 for one in replies)
