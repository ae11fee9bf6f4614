"""Others' evaluation and load programs against the server with the model that comes in the box, unchanged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine import Engine, EngineSettings
from tests.app.live_server import serve_app
from tests.clients.installed import PYTHON, ROOT, require, run

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

GUIDE = ROOT / "models" / "guide"
QUESTIONS = (
    {"question": "Deskmate is a", "choices": ["chat application", "kind of fish"], "answer": 0},
    {"question": "Top-p is a", "choices": ["green garden", "sampling parameter"], "answer": 1},
)
CHOICE_TASK = """\
task: deskmate_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
WRITING_TASK = """\
task: deskmate_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    require(PYTHON.parents[1] / "installed.txt")
    engine = Engine(EngineSettings(_env_file=None, model=str(GUIDE)))
    async with serve_app(tmp_path_factory.mktemp("data"), engine, gradio=False) as (url, _app, _http):
        yield url


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    for name, task in (("choice", CHOICE_TASK), ("writing", WRITING_TASK)):
        (tmp_path / f"{name}.yaml").write_text(task.format(data=data))
    return tmp_path


async def evaluate(url: str, tasks: Path, kind: str, task: str, *options: str) -> Any:
    """Runs lm-eval, and returns its results and samples of a task."""
    path = "chat/completions" if "chat" in kind else "completions"
    arguments = f"model=guide,base_url={url}/v1/{path},num_concurrent=2,max_retries=1,tokenizer={GUIDE}"
    command: list[str | Path] = [
        PYTHON.parent / "lm-eval",
        "run",
        "--model",
        kind,
        "--model_args",
        arguments,
        "--tasks",
        task,
    ]
    command += ["--include_path", tasks, "--output_path", tasks / "out", "--log_samples", *options]
    await run(command, HF_HOME=str(tasks / "hf"))
    (results,) = (tasks / "out").rglob("results_*.json")
    (samples,) = (tasks / "out").rglob("samples_*.jsonl")
    return json.loads(results.read_text())["results"][task], [json.loads(line) for line in samples.open()]


async def test_lm_eval_scores_choices(url: str, tasks: Path) -> None:
    results, samples = await evaluate(url, tasks, "local-completions", "deskmate_choice")
    assert results["acc,none"] == 1.0
    assert all(float(logprob) < 0 for sample in samples for ((logprob, _greedy),) in sample["resps"])


async def test_lm_eval_chats(url: str, tasks: Path) -> None:
    results, samples = await evaluate(url, tasks, "local-chat-completions", "deskmate_writing", "--apply_chat_template")
    assert "exact_match,none" in results
    assert all(sample["resps"][0][0].strip() for sample in samples)


async def test_guidellm(url: str, tmp_path: Path) -> None:
    command: list[str | Path] = [PYTHON.parent / "guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={url},model=guide"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={GUIDE}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=8"]
    command += ["--output", f"kind=json,path={tmp_path / 'report.json'}"]
    await run(command)
    metrics = json.loads((tmp_path / "report.json").read_text())["benchmarks"][0]["metrics"]
    assert metrics["request_totals"] == {"successful": 6, "errored": 0, "incomplete": 0, "total": 6}
    assert metrics["output_token_count"]["successful"]["mean"] == 8
