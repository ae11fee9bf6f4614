"""The synchronous interface: plain scripts, one conversation or several, and what it says where it cannot block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import (
    LLM,
    BeamSearchParams,
    ChatMessage,
    ContextLengthError,
    EngineStoppedError,
    InvalidRequestError,
    SamplingParams,
    ToolCall,
    ToolCallDelta,
    join_tool_calls,
)
from testing.models import make_model

GREEDY = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), dtype="float32", max_num_seqs=2, max_waiting=1, show_progress=False) as loaded:
        yield loaded


def asked(text: str) -> list[ChatMessage]:
    return [{"role": "user", "content": text}]


def test_a_text_token_ids_and_several_of_them_are_prompts(llm: LLM) -> None:
    text = "Hello"
    ids = [11, 12, 13]
    (of_text,) = llm.generate(text, GREEDY)
    (of_ids,) = llm.generate(ids, GREEDY)
    prompts: list[str | list[int]] = [text, ids]
    both = llm.generate(prompts, GREEDY)
    assert [one.token_ids for one in both] == [of_text.token_ids, of_ids.token_ids]
    assert of_ids.prompt_token_ids == tuple(ids)
    assert llm.generate([]) == []


@pytest.mark.full
def test_beam_search_returns_the_best_of_each_prompt_first(llm: LLM) -> None:
    search = BeamSearchParams(width=3, length_penalty=0.0)
    found = llm.beam_search([[11, 12, 13], [14, 15]], search, SamplingParams(n=3, max_tokens=4, ignore_eos=True))
    assert [len(replies) for replies in found] == [3, 3]
    for prompt, replies in zip(((11, 12, 13), (14, 15)), found, strict=True):
        scores = [reply.beam_score or 0.0 for reply in replies]
        assert scores == sorted(scores, reverse=True)
        assert len({reply.token_ids for reply in replies}) == 3
        assert {reply.prompt_token_ids for reply in replies} == {prompt}
    assert len(llm.beam_search("Hello", BeamSearchParams(width=20))[0]) == 16


def test_a_conversation_and_a_list_of_them_get_replies_in_their_order(llm: LLM) -> None:
    chats = [asked(f"Question {number}") for number in range(7)]  # more than the engine takes at once
    together = llm.chat(chats, GREEDY)
    alone = [llm.chat(chat, GREEDY)[0] for chat in chats]
    assert [one.prompt_token_ids for one in together] == [one.prompt_token_ids for one in alone]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


def test_the_replies_to_one_prompt_are_adjacent(llm: LLM) -> None:
    params = [SamplingParams(n=2, max_tokens=2, ignore_eos=True, seed=1), GREEDY]
    assert [one.index for one in llm.chat([asked("a"), asked("b")], params)] == [0, 1, 0]


def test_what_cannot_be_served_says_so_and_the_model_still_serves(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="use generate"):
        llm.chat("Hello")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 conversations need as many params"):
        llm.chat([asked("a"), asked("b")], [GREEDY])
    with pytest.raises(ContextLengthError):
        llm.generate([[5], [5] * 10_000], GREEDY)
    assert len(llm.generate("still here", GREEDY)) == 1


async def test_a_running_event_loop_is_told_the_way_out(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match=r"an event loop is running here.*asyncio.to_thread"):
        llm.generate("Hello")
    with pytest.raises(RuntimeError, match="an event loop is running here"):
        LLM("nowhere")


def test_unknown_and_invalid_settings_are_named(model: Path) -> None:
    with pytest.raises(ValueError, match="gpu_memory is no setting"):
        LLM(str(model), gpu_memory=0.5)
    with pytest.raises(ValueError, match=r"max_num_seqs: .*got 0"):
        LLM(str(model), max_num_seqs=0)


def test_a_closed_model_says_so(model: Path) -> None:
    llm = LLM(str(model), dtype="float32", show_progress=False)
    llm.close()
    llm.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("Hello")


def test_calls_are_joined_by_their_index() -> None:
    deltas = [
        ToolCallDelta(0, id="a", name="f"),
        ToolCallDelta(1, '{"x"', id="b", name="g"),
        ToolCallDelta(0, "{}"),
        ToolCallDelta(1, ": 1}"),
    ]
    assert join_tool_calls(deltas) == (ToolCall("a", "f", "{}"), ToolCall("b", "g", '{"x": 1}'))


@pytest.mark.full
@pytest.mark.slow
def test_a_plain_script_ends_without_close(model: Path) -> None:
    script = (
        "from engine import LLM, SamplingParams\n"
        f"print(len(LLM({str(model)!r}).generate('Hello', SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "Generating" in done.stderr
    assert "Traceback" not in done.stderr
