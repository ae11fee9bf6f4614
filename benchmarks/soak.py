"""Checks that the server's memory stays flat while users chat, stop, leave, regenerate and delete for an hour.

    .venv/bin/python -m benchmarks.soak             # an hour
    .venv/bin/python -m benchmarks.soak --quick     # ten minutes

Starts a real server (``python -m app serve``, the bundled model, a fresh SQLite database) and 32 users with accounts,
who act at random: read a reply to its end, stop it, close the connection in the middle, regenerate it, or delete the
conversation during the reply. The server's resources are sampled every few seconds. The test passes if, over the second
half, memory (RssAnon; slope by Theil and Sen) grows by at most 2 %, open files and threads by at most 8 each, and
nothing is left at the end: no request, no KV block, no event stream. Otherwise the exit status is 1. All samples are
written to ``benchmarks/results/`` as JSON, with a picture if matplotlib is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from benchmarks import machine
from benchmarks.live.browser import Browser, ResponseError
from benchmarks.live.prometheus import samples
from benchmarks.live.scripted_chats import QUESTIONS
from benchmarks.live.server import LiveServer
from benchmarks.live.trend import Trend
from benchmarks.live.users import SimulatedUser
from benchmarks.result_files import write_result

MIB = 1024**2
CONVERSATIONS = 8
"""Conversations that each user keeps; beyond it the oldest is deleted."""
IDLE_TIMEOUT_SECONDS = 30.0
"""Time within which a server without users must have released everything."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's resource use at one time."""

    seconds: float  #: since the start of the soak
    memory_mib: float
    files: float
    threads: float
    running: float
    waiting: float
    blocks_used: float  #: share of the KV cache
    event_streams: float

    @property
    def is_idle(self) -> bool:
        """Whether the server has no requests, no used KV blocks and no event streams."""
        return not (self.running or self.waiting or self.blocks_used or self.event_streams)


class RandomUser(SimulatedUser):
    """A user who does one random action after the other.

    Args:
        browser: the user's browser.
        dice: source of randomness.
        outcomes: counts the actions.
    """

    def __init__(self, browser: Browser, dice: random.Random, outcomes: Counter[str]) -> None:
        super().__init__(browser)
        self._dice = dice
        self._outcomes = outcomes
        self._conversations: list[str] = []

    async def run(self, stop_event: asyncio.Event) -> None:
        """Acts until ``stop_event`` is set."""
        while not stop_event.is_set():
            try:
                self._outcomes[await self._do_random_action()] += 1
            except ResponseError as error:
                # Replies whose reader has left are still generated: their conversations are busy, and each user may
                # have only a few replies at a time.
                if error.status not in (409, 429):
                    raise
                self._outcomes["busy"] += 1
                await asyncio.sleep(self._dice.random())
        self.browser.close_page()

    async def _do_random_action(self) -> str:
        dice = self._dice
        if len(self._conversations) > CONVERSATIONS:
            await self.browser.delete(f"/api/conversations/{self._conversations.pop(0)}")
        self.conversation_id = dice.choice(self._conversations) if self._conversations and dice.random() < 0.7 else None
        self.last_reply_id = None
        begins = self.conversation_id is None
        turn, reply = await self.send(dice.choice(QUESTIONS), dice.randrange(2**31), dice.choice([16, 64, 256]))
        if begins:
            self._conversations.append(turn["conversation_id"])
        does = dice.choice(["read", "read", "read", "stop", "leave", "ask again", "delete"])
        if does in ("stop", "leave", "delete"):
            await asyncio.sleep(dice.random())
        if does == "leave":
            self.browser.close_page()
            return does
        if does == "stop":
            await self.browser.post(f"/api/turns/{turn['turn_id']}/stop", {})
        if does == "delete":
            self._conversations.remove(turn["conversation_id"])
            await self.browser.delete(f"/api/conversations/{turn['conversation_id']}")
        await reply.end()
        if does == "ask again":
            again = await self.browser.post(f"/api/messages/{turn['message_id']}/regenerate", {})
            await (await self.browser.follow(again["turn_id"])).end()
        return does


async def soak(server: LiveServer, people: int, seconds: float, every: float) -> tuple[list[Sample], Counter[str]]:
    """Lets all users act for ``seconds``; returns the server's samples, the last one at rest, and the action counts."""
    *browsers, observer = await server.sign_up(people + 1)
    outcomes: Counter[str] = Counter()
    stop_event = asyncio.Event()
    began = perf_counter()
    found: list[Sample] = []

    async def look() -> Sample:
        return await _sample(server, observer, perf_counter() - began)

    async def watch() -> None:
        with tqdm(total=round(seconds), unit="s", file=sys.stderr, dynamic_ncols=True, leave=False) as bar:
            while perf_counter() - began < seconds:
                await asyncio.sleep(every)
                found.append(await look())
                bar.n = min(round(found[-1].seconds), round(seconds))
                bar.set_description(f"{found[-1].memory_mib:,.0f} MiB, {sum(outcomes.values()):,} visits")
        stop_event.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for number, browser in enumerate(browsers):
            group.create_task(RandomUser(browser, random.Random(number), outcomes).run(stop_event))
    ended = perf_counter()
    rest = await look()
    while not rest.is_idle and perf_counter() - ended < IDLE_TIMEOUT_SECONDS:
        await asyncio.sleep(0.5)
        rest = await look()
    return [*found, rest], outcomes


async def _sample(server: LiveServer, observer: Browser, seconds: float) -> Sample:
    metrics = samples(await server.metrics(observer))
    return Sample(
        seconds=round(seconds, 2),
        memory_mib=round(machine.resident_bytes(server.pid) / MIB, 2),
        files=machine.open_files(server.pid),
        threads=machine.threads_of(server.pid),
        running=metrics["deskmate_num_requests_running"],
        waiting=metrics["deskmate_num_requests_waiting"],
        blocks_used=metrics["deskmate_kv_cache_usage_perc"],
        event_streams=metrics["deskmate_event_streams"],
    )


def trends(found: Sequence[Sample]) -> dict[str, Trend]:
    """Computes the trends of the resources that must not grow."""
    seconds = [one.seconds for one in found]
    return {
        "memory_mib": Trend.of(seconds, [one.memory_mib for one in found], share=0.02, least=0.0),
        "files": Trend.of(seconds, [one.files for one in found], share=0.0, least=8.0),
        "threads": Trend.of(seconds, [one.threads for one in found], share=0.0, least=8.0),
    }


def format_report(grown: Mapping[str, Trend], rest: Sample, outcomes: Mapping[str, int]) -> list[str]:
    """Formats the results as text."""
    names = {"memory_mib": "memory, MiB", "files": "open files", "threads": "threads"}
    lines = [
        f"{sum(outcomes.values()):,} visits: " + ", ".join(f"{n:,} {what}" for what, n in sorted(outcomes.items()))
    ]
    lines += [
        f"{names[name]}: {trend.grown:+.2f} over the second half ({trend.per_hour:+.1f} per hour; at most "
        f"{trend.bound:.2f}): {'flat' if trend.is_flat else 'NOT FLAT'}"
        for name, trend in grown.items()
    ]
    left = "nothing is left" if rest.is_idle else f"LEFT AT THE END: {rest}"
    return [*lines, f"at rest: {left}; {rest.files:.0f} files, {rest.threads:.0f} threads, {rest.memory_mib:,.0f} MiB"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=60.0)
    length.add_argument("--quick", action="store_const", dest="minutes", const=10.0, help="ten minutes")
    parser.add_argument("--people", type=int, default=32)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    seconds = 60 * args.minutes
    with tempfile.TemporaryDirectory() as temporary, LiveServer(Path(temporary)) as server:
        found, outcomes = asyncio.run(soak(server, args.people, seconds, every=max(1.0, seconds / 360)))
    grown, rest = trends(found[:-1]), found[-1]
    flat = rest.is_idle and all(trend.is_flat for trend in grown.values())
    print("\n".join(format_report(grown, rest, outcomes)))
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "asked": {"minutes": args.minutes, "people": args.people},
        "flat": flat,
        "second_half": {name: asdict(trend) for name, trend in grown.items()},
        "outcomes": dict(outcomes),
        "samples": [asdict(one) for one in found],
    }
    output = write_result(result, "soak", args.output)
    if find_spec("matplotlib") is not None:
        from benchmarks.plots import draw_lines

        about = f"{result['machine']['cpu']}, {args.people} people, {result['machine']['date']}"
        panels = {name: [getattr(one, name) for one in found] for name in Sample.__slots__ if name != "seconds"}
        draw_lines([one.seconds / 60 for one in found], panels, "minutes", about, [output.with_suffix(".png")])
    sys.exit(not flat)


if __name__ == "__main__":
    main()
