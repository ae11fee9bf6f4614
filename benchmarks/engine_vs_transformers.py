"""Deskmate's engine beside transformers' ``generate``: same process, same weights, number format and threads.

Work: one chat (128 prompt tokens, 128 new), and eight at once (prompts of 32 to 256 tokens, replies of 64 to 128).
Greedy, end of sequence ignored, prompts of random token ids, the engine's prefix cache off. The two take turns
repetition by repetition, and medians are compared: a machine whose speed drifts changes both alike. transformers
gets the eight chats as one padded batch, its fastest way; only the tokens asked for count.

    make bench        or: .venv/bin/python benchmarks/engine_vs_transformers.py --repeats 7 --model models/guide
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging as transformers_logging

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import machine, models  # noqa: E402
from engine import Engine, EngineSettings, SamplingParams  # noqa: E402

GREEDY = SamplingParams(
    temperature=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    ignore_eos=True,
)
#: Above this share of the CPU for other programs a figure says more about them.
BUSY = 0.08


@dataclass(frozen=True)
class Chat:
    """One request: token ids, and how many new ones are wanted."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass(frozen=True)
class Run:
    """What one repetition measured. Seconds; tokens per second count the tokens asked for."""

    total_rate: float  #: all new tokens over the whole time, prompts included
    first_token: float | None = None  #: one chat: until its first new token
    decode_rate: float | None = None  #: one chat: tokens per second after that


def workload(vocab_size: int) -> dict[str, list[Chat]]:
    rng = random.Random(7)

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(10, vocab_size - 10) for _ in range(length))

    one = [Chat(prompt(128), 128)]
    eight = [Chat(prompt(rng.randint(32, 256)), rng.randint(64, 128)) for _ in range(8)]
    return {"1 chat": one, "8 chats": eight}


# -- transformers -----------------------------------------------------------------------------------------------


class _Clock(BaseStreamer):
    """Notes when new tokens appear; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002 - transformers' interface
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


def load_reference(path: Path, dtype: str, device: str = "cpu") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval().to(device)
    # generate() fills what a call leaves open from here: no end of sequence, no penalties.
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model


@torch.inference_mode()
def run_reference(model: PreTrainedModel, chats: Sequence[Chat]) -> Run:
    width = max(len(chat.prompt) for chat in chats)
    longest = max(chat.new_tokens for chat in chats)
    ids = torch.tensor([[0] * (width - len(chat.prompt)) + list(chat.prompt) for chat in chats])
    mask = torch.tensor([[0] * (width - len(chat.prompt)) + [1] * len(chat.prompt) for chat in chats])
    clock = _Clock()
    begin = perf_counter()
    output = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=longest,
        streamer=clock if len(chats) == 1 else None,  # generate() streams single chats only
    )
    seconds = perf_counter() - begin
    assert output.shape[1] == width + longest
    wanted = sum(chat.new_tokens for chat in chats)
    if len(chats) > 1:
        return Run(wanted / seconds)
    first, last = clock.times[1], clock.times[-1]
    return Run(wanted / seconds, first_token=first - begin, decode_rate=(longest - 1) / (last - first))


# -- Deskmate ---------------------------------------------------------------------------------------------------


async def run_engine(engine: Engine, chats: Sequence[Chat]) -> Run:
    begin = perf_counter()

    async def read(chat: Chat) -> list[float]:
        times: list[float] = []
        async for delta in engine.complete(chat.prompt, replace(GREEDY, max_tokens=chat.new_tokens)):
            times += [perf_counter()] * len(delta.token_ids)
        assert len(times) == chat.new_tokens
        return times

    times = await asyncio.gather(*(read(chat) for chat in chats))
    seconds = perf_counter() - begin
    wanted = sum(chat.new_tokens for chat in chats)
    if len(chats) > 1:
        return Run(wanted / seconds)
    first, last = times[0][0], times[0][-1]
    return Run(wanted / seconds, first_token=first - begin, decode_rate=(wanted - 1) / (last - first))


# -- side by side -----------------------------------------------------------------------------------------------


async def compare(name: str, path: Path, repeats: int, threads: int) -> list[dict[str, object]]:
    settings = EngineSettings(model=str(path), device="cpu", enable_prefix_caching=False, num_threads=threads)
    async with Engine(settings) as engine:
        reference = load_reference(path, engine.info.dtype)
        rows = []
        for work, chats in workload(engine.info.vocab_size).items():
            ours: list[Run] = []
            theirs: list[Run] = []
            mark = machine.CpuMark.now()
            for repetition in range(repeats + 1):
                peer = await asyncio.to_thread(run_reference, reference, chats)
                own = await run_engine(engine, chats)
                if repetition:  # the first one warms both up
                    theirs.append(peer)
                    ours.append(own)
            row: dict[str, object] = {
                "model": name,
                "dtype": engine.info.dtype,
                "work": work,
                "others_cpu_share": round(mark.others_share(), 3),
                "deskmate": [asdict(run) for run in ours],
                "transformers": [asdict(run) for run in theirs],
            }
            rows.append(row)
            show(name, engine.info.dtype, work, ours, theirs)
            if (busy := mark.others_share()) > BUSY:
                print(f"  (other programs used {busy:.0%} of the CPU meanwhile: measure again on a quiet machine)")
        return rows


def show(name: str, dtype: str, work: str, ours: Sequence[Run], theirs: Sequence[Run]) -> None:
    labels = {"total_rate": "tok/s, all", "decode_rate": "tok/s, decode", "first_token": "first token, s"}
    for field, label in labels.items():
        own, peer = ([getattr(run, field) for run in runs] for runs in (ours, theirs))
        if None in own:
            continue
        own, peer = median(own), median(peer)
        ratio = peer / own if field == "first_token" else own / peer
        print(f"{name:<8} {dtype:<9} {work:<8} {label:<16} {own:>9.4g} {peer:>13.4g} {ratio:>7.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions that count, after one that does not")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads for both")
    parser.add_argument("--model", action="append", type=Path, help="model folder; default: model S and models/guide")
    parser.add_argument("--output", type=Path, help="JSON file; default: benchmarks/results/DATE-....json")
    args = parser.parse_args()

    transformers_logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    about = machine.describe() | {"threads": args.threads, "repeats": args.repeats}
    print(f"{about['cpu']}, {args.threads} threads, torch {torch.__version__}; ratio: above 1 Deskmate is ahead\n")
    print(f"{'model':<8} {'weights':<9} {'work':<8} {'measure':<16} {'Deskmate':>9} {'transformers':>13} {'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        candidates = (
            [(path.name, path) for path in args.model]
            if args.model
            else [("S", models.make_s(Path(folder) / "s")), ("guide", ROOT / "models" / "guide")]
        )
        rows = [
            row for name, path in candidates for row in asyncio.run(compare(name, path, args.repeats, args.threads))
        ]
    date = str(about["date"])[:10]
    output: Path = args.output or ROOT / "benchmarks" / "results" / f"{date}-engine_vs_transformers.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    print(f"\nwritten to {output}")


if __name__ == "__main__":
    main()
