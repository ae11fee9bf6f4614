"""Measures how long a user waits for a first token while other users send the costliest requests.

    .venv/bin/python -m benchmarks.fairness            # about two minutes
    .venv/bin/python -m benchmarks.fairness --seconds 10 all

A victim asks the bundled model short questions, one after another. Meanwhile attackers send the costliest requests:
``n: 16``, long prompts, log-probabilities of reply and prompt, biases, forbidden words, and all of these together. Each
load runs with 1 attacker, with 10, and with 10 whose requests carry the victim's own user id: the scheduler then has
one user, whose requests it serves by arrival.

Prints the victim's time to first token as median and maximum, and the median's ratio to the median without attackers.
``steps`` is the largest number of steps that the scheduler planned from a question's arrival there to its first token.
The number after "of" is the scheduler's bound: the steps that read one prompt of each other user and the question's
own, if a step reads all the prompt tokens that its budget leaves. The bound holds while there are seats and blocks for
one request of each user. The engine's pacing (``engine/scheduling/pacing.py``) reads fewer prompt tokens per step while
replies are decoded, and may take more steps.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

from benchmarks import machine
from benchmarks.result_files import RESULTS, write_result
from engine import Caller, Engine, EngineOverloadedError, EngineSettings, SamplingParams
from engine.runtime import engine_core
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler

PROMPT_TOKEN_IDS = range(100, 3000)
LONG_PROMPT = 1900
SHORT_PROMPT = 20
REPLY_TOKENS = 100
MIN_QUESTIONS = 3
CELL_TIMEOUT_SECONDS = 25.0
QUESTION_TOKENS = 4
VICTIM = "victim"

FORBIDDEN = tuple(f"{a}{b}{c}e" for a in "bcdfghlm" for b in "aeio" for c in "dlmnprst")


@dataclass(frozen=True)
class AttackLoad:
    """The request that every attacker repeats."""

    prompt_tokens: int = SHORT_PROMPT
    params: Mapping[str, Any] = field(default_factory=dict)


N = {"n": 16}
LOGPROBS = {"logprobs": 20, "prompt_logprobs": 20}
BIASES = {"logit_bias": dict.fromkeys(range(100, 1124), 1.0)}
WORDS = {"forbidden_words": FORBIDDEN}
LOADS = {
    "n": AttackLoad(params=N),
    "prompts": AttackLoad(prompt_tokens=LONG_PROMPT),
    "logprobs": AttackLoad(prompt_tokens=LONG_PROMPT, params=LOGPROBS),
    "biases": AttackLoad(params=N | BIASES),
    "words": AttackLoad(params=N | WORDS),
    "all": AttackLoad(prompt_tokens=LONG_PROMPT, params=N | LOGPROBS | BIASES | WORDS),
}


class StepCountingScheduler(Scheduler):
    """Counts the steps from the arrival of each of the victim's questions to its first token."""

    waits: ClassVar[list[int]] = []
    arrived: ClassVar[dict[str, int]] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        if request.user == VICTIM and request.max_tokens == QUESTION_TOKENS:
            self.arrived[request.id] = self.counters.steps

    def _append(self, request: Request, token: int, now: float) -> None:
        if request.first_token is None and request.id in self.arrived:
            self.waits.append(self.counters.steps - self.arrived.pop(request.id))
        super()._append(request, token, now)


class FairnessBench:
    """Runs the victim and its attackers against one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = count()
        self._refusals = 0
        self._prompt_tokens = 0

    async def attack(self, user: str, load: AttackLoad) -> None:
        """Sends one request after another until cancelled. No two prompts share a prefix."""
        params = SamplingParams(max_tokens=REPLY_TOKENS, ignore_eos=True, temperature=1.0, **load.params)
        while True:
            number = next(self._numbers)
            prompt = [
                PROMPT_TOKEN_IDS[(number * 7919 + position * 31) % len(PROMPT_TOKEN_IDS)]
                for position in range(load.prompt_tokens)
            ]
            try:
                async with aclosing(self._engine.complete(prompt, params, caller=Caller(user))) as deltas:
                    async for _ in deltas:
                        pass
            except EngineOverloadedError:
                self._refusals += 1
                await asyncio.sleep(0.05)

    async def ask(self) -> float:
        """Asks one question; returns the seconds until its first token."""
        text = f"Question {next(self._numbers)}: how do I change the temperature?"
        params = SamplingParams(max_tokens=QUESTION_TOKENS, ignore_eos=True)
        began, seconds = perf_counter(), 0.0
        chat = self._engine.chat([{"role": "user", "content": text}], params, caller=Caller(VICTIM))
        async with aclosing(chat) as deltas:
            async for delta in deltas:
                if delta.num_tokens and not seconds:
                    seconds = perf_counter() - began
                    self._prompt_tokens = max(self._prompt_tokens, delta.prompt_tokens or 0)
        return seconds

    async def measure(self, load: AttackLoad | None, users: Sequence[str], seconds: float) -> dict[str, Any]:
        """Measures the victim's waits while attackers with these user ids are active."""
        self._refusals = 0
        attackers = [asyncio.create_task(self.attack(user, load)) for user in users if load is not None]
        waits: list[float] = []
        StepCountingScheduler.waits.clear()
        cut = False
        mark = machine.CpuMark.now()
        began = perf_counter()
        try:
            await asyncio.sleep(1.0 if attackers else 0.0)  # time for the attackers to fill the seats
            began = perf_counter()
            async with asyncio.timeout(CELL_TIMEOUT_SECONDS):
                while perf_counter() - began < seconds or len(waits) < MIN_QUESTIONS:
                    waits.append(await self.ask())
        except TimeoutError:  # the interrupted question counts with the time it has waited
            cut = True
            waits.append(perf_counter() - began - sum(waits))
        finally:
            for one in attackers:
                one.cancel()
            ended = await asyncio.gather(*attackers, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise RuntimeError("an attacker ended before the victim had its answers") from error
        while self._engine.stats().num_requests_running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return {
            "questions": len(waits),
            "ttft_ms": {
                "median": round(1000 * median(waits), 1),
                "max": round(1000 * max(waits), 1),
            },
            "max_steps": max(StepCountingScheduler.waits, default=None),
            "last_question_cut_off": cut,
            "attackers_refused": self._refusals,
            "others_share_of_cpu": round(mark.others_share(), 2),
        }

    def max_steps(self, load: AttackLoad, num_attackers: int) -> int:
        """Returns the scheduler's bound on the steps to the victim's first token, without pacing.

        The same bound as in ``tests/engine/scheduling/test_fairness.py``.
        """
        settings = self._engine.settings
        chunk = settings.max_batched_tokens - settings.max_num_seqs
        prompts = [self._prompt_tokens, *[load.prompt_tokens + REPLY_TOKENS] * num_attackers]
        return sum(-(-prompt // chunk) + 1 for prompt in prompts) + 1


async def run(names: Sequence[str], seconds: float) -> dict[str, Any]:
    engine_core.Scheduler = StepCountingScheduler  # type: ignore[attr-defined]
    async with Engine(EngineSettings(model="models/guide")) as engine:
        bench = FairnessBench(engine)
        await bench.ask()
        alone = await bench.measure(None, (), seconds)
        print(f"alone: {alone['ttft_ms']}", flush=True)
        many = [f"attacker {number}" for number in range(10)]
        loads: dict[str, Any] = {}
        for name in names:
            loads[name] = {}
            for way, users in (("1", many[:1]), ("10", many), ("10 as one user", [VICTIM] * 10)):
                row = await bench.measure(LOADS[name], users, seconds)
                row["times_alone"] = round(row["ttft_ms"]["median"] / alone["ttft_ms"]["median"], 1)
                bound = None if VICTIM in users else bench.max_steps(LOADS[name], len(users))
                row["bound_steps_without_pacing"] = bound
                loads[name][way] = row
                print(format_row(name, way, row), flush=True)
        return {"prompt_tokens": bench._prompt_tokens, "alone": alone, "loads": loads}


def format_row(name: str, way: str, row: Mapping[str, Any]) -> str:
    ttft, bound = row["ttft_ms"], row["bound_steps_without_pacing"]
    return (
        f"{name:9} {way:15} ttft ms median {ttft['median']:8} max {ttft['max']:8}  {row['times_alone']:6} x alone  "
        f"steps {row['max_steps']}"
        + (f" of {bound}" if bound else "")
        + (" (cut off)" if row["last_question_cut_off"] else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", help=f"any of {', '.join(LOADS)}; default: every load")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--name", help="name of the output file; default: DATE-fairness")
    args = parser.parse_args()
    names = args.loads or list(LOADS)
    if unknown := [name for name in names if name not in LOADS]:
        parser.error(f"unknown load '{unknown[0]}'. Choose from: {', '.join(LOADS)}")
    about = machine.describe()
    found = asyncio.run(run(names, args.seconds))
    output = RESULTS / f"{args.name}.json" if args.name else None
    write_result({"machine": about, **found}, "fairness", output)


if __name__ == "__main__":
    main()
