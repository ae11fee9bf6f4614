"""Measures a support desk with many visitors: how long they wait, and whether its agents can go on working.

    .venv/bin/python -m benchmarks.desk                     # three minutes: 1,000 visitors, 20 messages a second
    .venv/bin/python -m benchmarks.desk --quick             # half a minute: 200 visitors, 5 messages a second
    .venv/bin/python -m benchmarks.desk --model --rate 2    # the model decides and writes, although it is too small
    .venv/bin/python -m benchmarks.desk --postgres          # on a private PostgreSQL server

Starts a real server (``python -m app serve``, accounts, the bundled model, a fresh SQLite database) with the documents
in ``docs/`` and an inbox whose bot answers from them, and connects visitors by the widget's own protocol. A seed fixes
the times of their messages, which wait for no earlier ones. A visitor whose case has gone to people leaves, and another
one comes, so that each message is one for the bot. With the bundled model the bot shows the passages that it found
and hands over; ``--model`` takes the smallest size of a model from its prompt, so that the guide decides, writes and
hands over as a large one would, badly. Each visitor has an address of its own, as behind a proxy: the server's limits
of each address hold, as for any other visitors.

Meanwhile an agent loads ``/desk/cases``, lists and single cases, and another one has drafts written. Prints p50 and p95
of the time from sending a message to its acknowledgement and to the first word of the answer in the stream, of
sessions, of the agents' pages, and of the first text of a draft, alone and beside the visitors; memory, as in
:mod:`benchmarks.soak`; errors; and the CPU use of the server and of this process, which shares the machine with it, and
with PostgreSQL's processes, which count as other programs. ``benchmarks.desk_cost`` has the processor time by part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tqdm import tqdm

from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.live.agents import DraftingAgent, ReadingAgent
from benchmarks.live.browser import Browser, ResponseError
from benchmarks.live.proxy import Proxy
from benchmarks.live.scripted_chats import QUESTIONS
from benchmarks.live.server import ROOT, LiveServer
from benchmarks.live.trend import Trend
from benchmarks.live.visitors import Visitor
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result

MIB = 1024**2
MESSAGES_OF_VISITOR = 3
"""A visitor whom the bot answers leaves after so many."""
ARRIVALS_AT_ONCE = 8
DRAFTS_ALONE = 12
DRAFT_SECONDS = 2.0
SAMPLE_SECONDS = 1.0
PROMPTS = ("widget-bot", "reply-writer")


@dataclass
class Outcomes:
    """What the visitors have seen, seconds."""

    acknowledged: list[float] = field(default_factory=list)
    first_words: list[float] = field(default_factory=list)
    sessions: list[float] = field(default_factory=list)
    to_people: int = 0  #: messages in cases that people had
    late: int = 0  #: messages for which every visitor was still waiting
    errors: Counter[str] = field(default_factory=Counter)


class Crowd:
    """Visitors who are connected: those who wait for no answer are free to write.

    Args:
        inbox: its public token.
    """

    def __init__(self, proxy: Proxy, inbox: str, dice: random.Random) -> None:
        self._proxy = proxy
        self._inbox = inbox
        self._dice = dice
        self._free: deque[Visitor] = deque()
        self._num_arrived = 0
        self._slots = asyncio.Semaphore(ARRIVALS_AT_ONCE)
        self.outcomes = Outcomes()

    @property
    def num_connected(self) -> int:
        return sum(visitor.is_connected for visitor in self._free)

    async def arrive(self) -> None:
        """Lets another visitor come, with an address of its own."""
        self._num_arrived += 1
        high, low = divmod(self._num_arrived, 250)
        visitor = Visitor(self._proxy, f"10.{1 + high // 250}.{high % 250}.{low + 1}")
        async with self._slots:
            try:
                self.outcomes.sessions.append(await visitor.arrive(self._inbox))
            except (ResponseError, OSError, TimeoutError) as error:
                self._failed("session", error)
                return
        self._free.append(visitor)

    async def write(self, rate: float, seconds: float) -> None:
        """Lets visitors write ``rate`` messages per second at random times, and waits for the answers."""
        began, at = perf_counter(), 0.0
        async with asyncio.TaskGroup() as group:
            while (at := at + self._dice.expovariate(rate)) < seconds:
                await asyncio.sleep(at - (perf_counter() - began))
                if not self._free:
                    self.outcomes.late += 1
                    continue
                group.create_task(self._talk(self._free.popleft()))

    def leave(self) -> None:
        """Lets all leave."""
        for visitor in self._free:
            visitor.leave()

    async def _talk(self, visitor: Visitor) -> None:
        text = f"Hello, this is customer {self._dice.randrange(10**6)}. {self._dice.choice(QUESTIONS)}"
        try:
            acknowledged, first_word = await visitor.write(text)
        except (ResponseError, OSError, TimeoutError) as error:
            self._failed("message", error)
        else:
            self.outcomes.acknowledged.append(acknowledged)
            if first_word is None:
                self.outcomes.to_people += 1
            else:
                self.outcomes.first_words.append(first_word)
        if visitor.with_people or visitor.num_messages >= MESSAGES_OF_VISITOR or not visitor.is_connected:
            if not visitor.is_connected:
                self.outcomes.errors["stream: ended"] += 1
            visitor.leave()
            await self.arrive()
        else:
            self._free.append(visitor)

    def _failed(self, what: str, error: Exception) -> None:
        status = error.status if isinstance(error, ResponseError) else type(error).__name__
        self.outcomes.errors[f"{what}: {status}"] += 1


# -- the desk ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Desk:
    """A desk that is set up."""

    admin: Browser
    reader: Browser
    drafter: Browser
    inbox: str  #: the public token
    drafts_inbox: str  #: of an inbox without documents, where the drafts are written


async def set_up(server: LiveServer, proxy: Proxy, *, model_answers: bool) -> Desk:
    """Makes accounts, documents, two inboxes, and prompts that take the bundled model."""
    admin, reader, drafter = await server.sign_up(3)
    collection = await admin.post("/api/kb/collections", {"name": "Documents", "everyone": True})
    for path in sorted((ROOT / "docs").glob("*.md")):
        await _upload(proxy, admin, path, collection["id"])
    await _wait_until_read(admin)
    for name in PROMPTS if model_answers else PROMPTS[1:]:
        await _admit_any_model(proxy, admin, name)
    people = json.loads(await admin.get("/api/people"))["people"]
    tokens = []
    for name, collections in (("Shop", [collection["id"]]), ("Drafts", [])):
        inbox = await admin.post("/api/inboxes", {"name": name, "collections": collections, "bot": bool(collections)})
        tokens.append(inbox["token"])
        for person in people:
            member = f"/api/inboxes/{inbox['id']}/members/{person['id']}"
            await proxy.request("PUT", member, headers=admin.headers)
    return Desk(admin, reader, drafter, *tokens)


async def _upload(proxy: Proxy, admin: Browser, path: Path, collection: str) -> None:
    boundary = "a-boundary-in-no-document"
    parts = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="collection"\r\n\r\n{collection}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n'
        "Content-Type: text/markdown\r\n\r\n"
    )
    content = await asyncio.to_thread(path.read_bytes)
    body = parts.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    await proxy.request("POST", "/api/kb/documents", body, dict(admin.headers) | kind)


async def _wait_until_read(admin: Browser) -> None:
    async with asyncio.timeout(120):
        while True:
            states = {one["state"] for one in json.loads(await admin.get("/api/kb/documents"))["documents"]}
            if states <= {"ready"}:
                return
            if "failed" in states:
                raise RuntimeError("a document could not be read")
            await asyncio.sleep(0.2)


async def _admit_any_model(proxy: Proxy, admin: Browser, name: str) -> None:
    """Saves a version of the prompt that asks for no smallest size of a model."""
    prompts = json.loads(await admin.get("/api/desk/templates/prompt"))
    prompt = next(one for one in prompts if one["name"] == name)
    wanted = {"after": prompt["version"], "template": prompt["template"] | {"min_parameters": None}}
    await proxy.send_json("PUT", f"/api/desk/templates/prompt/{name}", wanted, admin.headers)


async def _make_case(proxy: Proxy, desk: Desk) -> str:
    """Makes a case in the inbox of the drafts; returns its id."""
    visitor = Visitor(proxy, "10.250.0.1")
    await visitor.arrive(desk.drafts_inbox)
    await visitor.write("How do I back up my conversations?")
    visitor.leave()
    return str(json.loads(await desk.drafter.get("/api/cases"))["cases"][0]["id"])


# -- measuring ---------------------------------------------------------------------------------------------------


async def measure(server: LiveServer, args: argparse.Namespace) -> dict[str, Any]:
    """Connects the visitors, lets them write, and returns the figures."""
    proxy, dice = Proxy(server.port), random.Random(args.seed)
    desk = await set_up(server, proxy, model_answers=args.model)
    drafting = DraftingAgent(desk.drafter, server.port, await _make_case(proxy, desk))
    for _ in range(1 + DRAFTS_ALONE):
        await drafting.ask()
    alone, drafting.first_texts = drafting.first_texts[1:], []
    reading = ReadingAgent(desk.reader, random.Random(args.seed))
    crowd = Crowd(proxy, desk.inbox, dice)
    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(args.visitors):
            group.create_task(crowd.arrive())
    connecting = perf_counter() - began
    print(f"{crowd.num_connected} visitors are connected after {connecting:.1f} s", flush=True)
    mark, cpu, own, began = machine.CpuMark.now(server.pid), server_cpu(server), process_time(), perf_counter()
    memory: list[tuple[float, float]] = []
    tasks = [
        asyncio.create_task(reading.run(server.port)),
        asyncio.create_task(drafting.run(DRAFT_SECONDS)),
        asyncio.create_task(_watch(server, crowd, memory, began, args.seconds)),
    ]
    writing = asyncio.create_task(crowd.write(args.rate, args.seconds))
    ended, _ = await asyncio.wait({*tasks, writing}, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    wall, used = perf_counter() - began, server_cpu(server) - cpu
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    found = {
        "connected_at_the_end": crowd.num_connected,
        "connecting_s": round(connecting, 1),
        "messages": len(crowd.outcomes.acknowledged),
        "messages_per_s": round(len(crowd.outcomes.acknowledged) / wall, 2),
        "messages_to_people": crowd.outcomes.to_people,
        "late": crowd.outcomes.late,
        "errors": dict(crowd.outcomes.errors),
        "too_many_requests": sum(n for name, n in crowd.outcomes.errors.items() if name.endswith(" 429")),
        "first_word": spread(crowd.outcomes.first_words),
        "acknowledgement": spread(crowd.outcomes.acknowledged),
        "session": spread(crowd.outcomes.sessions),
        "agent": {name: spread(seconds) for name, seconds in reading.seconds.items()}
        | {"any": spread([one for seconds in reading.seconds.values() for one in seconds])},
        "draft_first_text": {"alone": spread(alone), "beside_visitors": spread(drafting.first_texts)},
        "memory_mib": trend_of(memory),
        "server_cores": round(used / wall, 2),
        "server_cpu_ms_per_message": round(1000 * used / max(1, len(crowd.outcomes.acknowledged)), 1),
        "generator_cores": round((process_time() - own) / wall, 2),
        "others_share_of_cpu": round(mark.others_share(), 3),
    }
    crowd.leave()
    return found


def server_cpu(server: LiveServer) -> float:
    """CPU seconds that the server has used."""
    return machine.session_seconds(server.pid)


async def _watch(
    server: LiveServer, crowd: Crowd, memory: list[tuple[float, float]], began: float, seconds: float
) -> None:
    """Samples the server's memory until cancelled."""
    with tqdm(total=round(seconds), unit="s", file=sys.stderr, dynamic_ncols=True, leave=False) as bar:
        while True:
            server.require_running()
            memory.append((perf_counter() - began, machine.resident_bytes(server.pid) / MIB))
            bar.n = min(round(memory[-1][0]), round(seconds))
            bar.set_description(f"{memory[-1][1]:,.0f} MiB, {len(crowd.outcomes.acknowledged):,} messages")
            await asyncio.sleep(SAMPLE_SECONDS)


def trend_of(memory: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The memory at the start, in the middle and at the end, and whether its second half is flat."""
    times, values = [at for at, _ in memory], [value for _, value in memory]
    trend = Trend.of(times, values, share=0.02, least=0.0)
    return {
        "start": round(values[0], 1),
        "middle": round(values[len(values) // 2], 1),
        "end": round(values[-1], 1),
        "grown_in_second_half": round(trend.grown, 2),
        "at_most": round(trend.bound, 2),
        "flat": trend.is_flat,
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Count, p50, p95 and maximum, milliseconds."""
    if not seconds:
        return {"count": 0}
    p50, p95, longest = (round(1000 * quantile(seconds, share), 1) for share in (0.5, 0.95, 1.0))
    return {"count": len(seconds), "p50_ms": p50, "p95_ms": p95, "max_ms": longest}


def format_report(found: dict[str, Any]) -> list[str]:
    """Formats the results as text."""

    def line(name: str, values: dict[str, float]) -> str:
        if not values["count"]:
            return f"{name:<34} none"
        figures = f"p50 {values['p50_ms']:>8.1f}   p95 {values['p95_ms']:>8.1f}   max {values['max_ms']:>8.1f} ms"
        return f"{name:<34} {figures}   of {values['count']}"

    memory, drafts = found["memory_mib"], found["draft_first_text"]
    return [
        f"{found['messages']:,} messages, {found['messages_per_s']} per second; {found['messages_to_people']} to "
        f"people; {found['late']} not sent, as all visitors waited; errors: {found['errors'] or 'none'}",
        line("first word", found["first_word"]),
        line("acknowledgement", found["acknowledgement"]),
        line("session", found["session"]),
        *(line(f"agent: {name}", values) for name, values in found["agent"].items()),
        *(line(f"first text of a draft, {name.replace('_', ' ')}", values) for name, values in drafts.items()),
        f"memory: {memory['start']:,.0f}, {memory['middle']:,.0f}, {memory['end']:,.0f} MiB; "
        f"{memory['grown_in_second_half']:+.1f} over the second half: {'flat' if memory['flat'] else 'NOT FLAT'}",
        f"cores used: {found['server_cores']} by the server ({found['server_cpu_ms_per_message']} ms per message), "
        f"{found['generator_cores']} by the visitors, "
        f"{100 * found['others_share_of_cpu']:.0f} % of all by other programs",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int)
    parser.add_argument("--rate", type=float, help="messages per second")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--quick", action="store_true", help="a small desk for a short time")
    parser.add_argument("--model", action="store_true", help="let the model decide and write, although it is too small")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--bot-replies", type=int, default=4, help="the server's setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    visitors, rate, seconds = (200, 5.0, 20.0) if args.quick else (1000, 20.0, 120.0)
    args.visitors, args.rate, args.seconds = args.visitors or visitors, args.rate or rate, args.seconds or seconds
    options = ["--bot-replies", str(args.bot_replies), "--knowledge-min-parameters", "0"]
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.postgres:
            make_database = stack.enter_context(databases(["postgresql"], folder))["postgresql"]
            options += ["--database-url", make_database("desk")]
        found = asyncio.run(measure(stack.enter_context(LiveServer(folder, options)), args))
    print("\n".join(format_report(found)))
    asked = {
        name: getattr(args, name)
        for name in ("visitors", "rate", "seconds", "model", "postgres", "bot_replies", "seed")
    }
    result = {"machine": machine.describe() | {"load_before": load_before}, "asked": asked, **found}
    write_result(result, "desk", args.output)


if __name__ == "__main__":
    main()
