"""Measures the speed-up from speculative decoding on questions of the guide's data, with and without it in turn.

    .venv/bin/python -m benchmarks.speculation [--repeats 5] [--speculation prompt-lookup] [--tokens 4]

Asks held-out questions greedily: each alone, each as a chat with a follow-up ("Say it again."), and eight such chats at
once. Reports the share of draft tokens accepted, the tokens per step, and the ratio of tokens per second. Both engines
run in one process, in turn; ``--model`` and ``--speculation`` select others. Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import machine
from benchmarks.model_files import ROOT
from benchmarks.result_files import write_result
from engine import ChatMessage, Engine, EngineSettings, SamplingParams
from models.guide.topics import load

AGAIN = "Say it again."
MAX_TOKENS = 160


async def ask(engine: Engine, questions: Sequence[str]) -> int:
    """Runs one chat, each question after the earlier replies. Returns the number of generated tokens."""
    messages: list[ChatMessage] = []
    written = 0
    for question in questions:
        messages.append({"role": "user", "content": question})
        text = ""
        async for delta in engine.chat(messages, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)):
            text += delta.text
            written += delta.num_tokens
        messages.append({"role": "assistant", "content": text})
    return written


async def measure(engine: Engine, chats: Sequence[Sequence[str]], at_once: int) -> dict[str, float]:
    """Measures tokens per second, prompts included, and counts draft tokens."""
    before = engine.stats()
    begin = perf_counter()
    written = 0
    for start in range(0, len(chats), at_once):
        written += sum(await asyncio.gather(*(ask(engine, chat) for chat in chats[start : start + at_once])))
    seconds = perf_counter() - begin
    after = engine.stats()
    return {
        "tokens_per_second": written / seconds,
        "tokens": written,
        "steps": after.num_steps - before.num_steps,
        "draft_tokens": after.draft_tokens - before.draft_tokens,
        "accepted_draft_tokens": after.accepted_draft_tokens - before.accepted_draft_tokens,
    }


def make_workloads(count: int) -> dict[str, tuple[list[list[str]], int]]:
    """Returns workload -> its chats and how many of them run at once."""
    questions = [question for topic in load().topics for question in topic.held_out[:1]]
    asked = random.Random(7).sample(questions, min(count, len(questions)))
    alone = [[question] for question in asked]
    chats = [[question, AGAIN] for question in asked]
    return {"questions": (alone, 1), "chats": (chats, 1), "8 chats": (chats, 8)}


async def run(args: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    async with AsyncExitStack() as stack:
        engines = {}
        for choice in ("off", args.speculation):
            settings = EngineSettings(
                model=str(args.model),
                enable_prefix_caching=False,  # otherwise the second repetition would compute no prompt
                speculation=choice,
                speculative_tokens=args.tokens,
            )
            engines[choice] = await stack.enter_async_context(Engine(settings))
        for work, (chats, at_once) in make_workloads(args.questions).items():
            figures: dict[str, list[dict[str, float]]] = {choice: [] for choice in engines}
            for turn in range(args.repeats + 1):
                for choice, engine in engines.items():
                    one = await measure(engine, chats, at_once)
                    if turn:  # the first one warms up
                        figures[choice].append(one)
            plain, drafted = figures["off"], figures[args.speculation]
            pairs = zip(plain, drafted, strict=True)
            ratio = median(b["tokens_per_second"] / a["tokens_per_second"] for a, b in pairs)
            last = drafted[-1]
            accepted = last["accepted_draft_tokens"] / max(1.0, last["draft_tokens"])
            print(
                f"{work}: {ratio:.2f}x the tokens per second, {100 * accepted:.0f} % of {last['draft_tokens']:g} "
                f"draft tokens accepted, {last['tokens'] / last['steps']:.2f} tokens a step (without: "
                f"{plain[-1]['tokens'] / plain[-1]['steps']:.2f})",
                flush=True,
            )
            rows.append({"work": work, "ratio": ratio, "accepted": accepted, "off": plain, "on": drafted})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "guide")
    parser.add_argument("--speculation", default="prompt-lookup", help="see ENGINE_SPECULATION")
    parser.add_argument("--tokens", type=int, default=4, help="see ENGINE_SPECULATIVE_TOKENS")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    about = machine.describe()
    mark = machine.CpuMark.now()
    rows = asyncio.run(run(args))
    about["others_cpu_share"] = round(mark.others_share(), 3)
    chosen = {"model": args.model.name, "speculation": args.speculation, "tokens": args.tokens}
    write_result({"machine": about, **chosen, "rows": rows}, "speculation")


if __name__ == "__main__":
    main()
