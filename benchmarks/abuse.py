"""Measures how much one account's abuse disturbs another user who is reading a reply.

    .venv/bin/python -m benchmarks.abuse                 # every attack; about five minutes
    .venv/bin/python -m benchmarks.abuse zip branches    # only these

Starts a real server (``python -m app serve``, the bundled model, a fresh SQLite database) with accounts: a victim
who reads replies and sends messages, and an attacker. Each attack lasts some seconds, after a similar time without one.
Reports for each attack: the victim's gaps between tokens (p50, p95, the longest), the latency of the victim's small
requests and messages, the server's peak memory (``VmHWM``, and the peak of all its processes together), the data
folder's size before and after, and the answers to the attacker. Memory is compared with the 4 GiB of the container
(docker-compose.yml).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import resource
import tempfile
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from benchmarks import machine
from benchmarks.live.server import LiveServer, ServerEnded
from benchmarks.live.victim import Victim, VictimTimings
from benchmarks.quantiles import quantile
from benchmarks.result_files import RESULTS, write_result

MIB = 2**20
CONTAINER_MIB = 4096
BASELINE_SECONDS = 10.0
SAMPLE_INTERVAL_SECONDS = 0.1
UPLOAD = {"Content-Type": "application/octet-stream"}
NUM_STREAM_READERS = 200
NUM_HALF_OPEN_CONNECTIONS = 3000
DEFAULT_MAX_OPEN_FILES = 1024


@dataclass
class Attacker:
    """The attacking account's client, with a count of the server's answers."""

    http: httpx.AsyncClient
    port: int
    cookie: str
    seconds: float  #: duration of an attack
    answers: Counter[str] = field(default_factory=Counter)
    said: str = ""  #: text of the last refusal

    def record(self, answer: httpx.Response) -> httpx.Response:
        self.answers[str(answer.status_code)] += 1
        if answer.status_code >= 400:
            self.said = answer.text[:300]
        return answer

    async def repeat(self, act: Callable[[int], Awaitable[object]], *, tasks: int = 1) -> None:
        """Repeats an action until the time is over, in ``tasks`` concurrent tasks."""
        until = perf_counter() + self.seconds
        numbers = iter(range(10**9))

        async def on() -> None:
            while perf_counter() < until:
                try:
                    async with asyncio.timeout(max(1.0, until + 20 - perf_counter())):
                        await act(next(numbers))
                except (httpx.HTTPError, TimeoutError) as error:
                    self.answers[type(error).__name__] += 1

        await asyncio.gather(*(on() for _ in range(tasks)))


def make_zip(name: str, pieces: Sequence[bytes]) -> bytes:
    """Makes a zip archive with one file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        for piece in pieces:
            file.write(piece)
    return out.getvalue()


def own_document(content: Sequence[bytes]) -> list[bytes]:
    """Makes a Deskmate export with one message."""
    moment = '"2026-01-01T00:00:00Z"'
    head = (
        '{"format":"deskmate.conversations","version":1,"conversations":[{"id":"019a0000-0000-7000-8000-000000000001",'
        f'"title":"x","created_at":{moment},"updated_at":{moment},"messages":[{{"id":'
        f'"019a0000-0000-7000-8000-000000000002","role":"user","created_at":{moment},"content":"'
    )
    return [head.encode(), *content, b'"}]}]}']


async def zip_of_one_message(attacker: Attacker) -> None:
    """a. Imports small archives that unpack to one message of 190 MiB, 190 MiB of empty lists, and of messages."""
    filling = ["é".encode() * (MIB // 2)] * 189 + ["🦜".encode() * (MIB // 4)]
    lists = b"[]," * (MIB // 3)
    message = b'{"from":"human","value":"a"},' * (MIB // 29)
    files = [
        make_zip("conversations.json", own_document(filling)),
        make_zip("c.json", [b'[{"title":"x","conversations":[', lists * 190, b"[]]}]"]),
        make_zip("c.json", [b'[{"title":"x","conversations":[', message * 190, message[:-1], b"]}]"]),
    ]
    for file in files:
        attacker.record(await attacker.http.post("/api/import", content=file, headers=UPLOAD, timeout=300))


async def branches(attacker: Attacker) -> None:
    """b. Branches a conversation whose system prompt has 4 MiB, or as much as the server accepts."""
    for chars in (4 * MIB - 2000, 190_000):
        settings = {"system_prompt": "p" * chars, "max_tokens": 1}
        sent = attacker.record(await attacker.http.post("/api/turns", json={"text": "hi"}))
        turn = sent.json()
        await asyncio.sleep(2)
        changed = await attacker.http.patch(
            f"/api/conversations/{turn['conversation_id']}", json={"settings": settings}, timeout=60
        )
        attacker.record(changed)
        if changed.status_code < 400:
            break

    async def branch(number: int) -> None:  # noqa: ARG001
        attacker.record(await attacker.http.post(f"/api/messages/{turn['message_id']}/branch", timeout=60))

    await attacker.repeat(branch, tasks=4)


async def templates(attacker: Attacker) -> None:
    """c. Tries templates with thousands of operators."""
    variable = [{"name": "a", "description": "x", "default": "y"}]
    bodies = [
        "{{ " + " ~ ".join(["a"] * 4900) + " }}",
        "{% if " + " or ".join(["a"] * 3300) + " %}x{% endif %}",
        "{{ a" + "|title" * 3000 + " }}",
        "".join("{% if a %}" for _ in range(95)) + "x" + "".join("{% endif %}" for _ in range(95)),
        "{{ a" + "|lower|upper" * 1600 + " }}",
        "{% if a == 'b' %}x{% endif %}" * 680,
    ]

    async def attempt(number: int) -> None:
        template = {"title": "x", "description": "x", "variables": variable, "body": bodies[number % len(bodies)]}
        path = "/api/desk/templates/prompt/x/try"
        attacker.record(await attacker.http.post(path, json={"template": template, "values": {"a": "z" * 2000}}))

    await attacker.repeat(attempt, tasks=8)


async def searches(attacker: Attacker) -> None:
    """d. Searches repetitive text for phrases, prefixes and characters."""
    made = []
    for number in range(10):
        text = ("a b " if number % 2 else "a ") * 450_000
        turns = ",".join(f'{{"from":"human","value":"{text[k * 190_000 : (k + 1) * 190_000]}"}}' for k in range(4))
        made.append(f'{{"id":"s{number}","conversations":[{turns}]}}')
    body = ("[" + ",".join(made) + "]").encode()
    attacker.record(await attacker.http.post("/api/import", content=body, headers=UPLOAD, timeout=120))
    queries = [" ".join(["a"] * 100), "-".join(["a"] * 100), " ".join(["a", "b"] * 50), '"', "a", "%", "' '"]

    async def search(number: int) -> None:
        query = queries[number % len(queries)]
        found = await attacker.http.get("/api/conversations", params={"query": query, "limit": 200}, timeout=120)
        attacker.record(found)

    await attacker.repeat(search, tasks=8)


async def readers(attacker: Attacker) -> None:
    """e. Opens event streams of a long reply without reading them, and connections without sending a request."""
    sent = await attacker.http.post("/api/turns", json={"text": "hi", "settings": {"max_tokens": 400}})
    turn_id = attacker.record(sent).json()["turn_id"]
    head = f"Host: 127.0.0.1:{attacker.port}\r\nSec-Fetch-Site: same-origin\r\nCookie: {attacker.cookie}\r\n\r\n"
    opened: list[asyncio.StreamWriter] = []

    async def open_one(request: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", attacker.port, limit=1024)
        opened.append(writer)
        writer.write(request.encode())
        if request.endswith("\r\n\r\n"):
            try:
                async with asyncio.timeout(10):
                    line = await reader.readline()
                attacker.answers["stream " + line.decode().split()[1]] += 1
            except (TimeoutError, ValueError, OSError, IndexError):
                attacker.answers["stream unanswered"] += 1

    async def open_all(requests: Sequence[str]) -> None:
        done = await asyncio.gather(*(open_one(one) for one in requests), return_exceptions=True)
        attacker.answers["connections refused"] += sum(isinstance(one, OSError) for one in done)

    await open_all([f"GET /api/turns/{turn_id}/events?offset=0 HTTP/1.1\r\n{head}"] * NUM_STREAM_READERS)
    for _ in range(NUM_HALF_OPEN_CONNECTIONS // 100):
        await open_all(["GET / HTTP/1.1\r\nHost: 127.0.0"] * 100)
    await asyncio.sleep(attacker.seconds)
    for writer in opened:
        writer.transport.abort()


async def exports(attacker: Attacker) -> None:
    """f. Imports a large history, then exports everything repeatedly, eight exports at a time."""
    text = "some words of a long talk " * 7000
    roles = ("human", "gpt")

    def turns(number: int) -> str:
        return ",".join(f'{{"from":"{roles[turn % 2]}","value":"{number} {text}"}}' for turn in range(20))

    body = "[" + ",".join(f'{{"id":"e{number}","conversations":[{turns(number)}]}}' for number in range(20)) + "]"
    attacker.record(await attacker.http.post("/api/import", content=body.encode(), headers=UPLOAD, timeout=120))

    async def export(number: int) -> None:
        async with attacker.http.stream(
            "GET", "/api/export", params={"format": ("json", "markdown")[number % 2]}
        ) as got:
            attacker.answers[str(got.status_code)] += 1
            if got.status_code >= 400:
                attacker.said = (await got.aread()).decode()[:300]
                await asyncio.sleep(0.05)
            else:
                async for _ in got.aiter_raw():
                    pass

    await attacker.repeat(export, tasks=8)


async def many(attacker: Attacker) -> None:
    """g. Imports 100,000 conversations with tags, and creates as many API keys as the server allows."""
    made = ",".join(
        f'{{"id":"019b0000-0000-7000-8000-{number:012x}","title":"x","tags":["{number}"],"messages":[],'
        '"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}'
        for number in range(100_000)
    )
    body = f'{{"format":"deskmate.conversations","version":1,"conversations":[{made}]}}'.encode()
    attacker.record(await attacker.http.post("/api/import", content=body, headers=UPLOAD, timeout=300))

    async def make(number: int) -> None:
        new = {"name": f"k{number}", "scopes": ["chat"], "days": 90}
        attacker.record(await attacker.http.post("/api/account/keys", json=new))
        attacker.record(await attacker.http.get("/api/tags"))
        attacker.record(await attacker.http.get("/api/conversations", params={"limit": 200}))

    await attacker.repeat(make, tasks=4)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "zip": zip_of_one_message,
    "branches": branches,
    "templates": templates,
    "searches": searches,
    "readers": readers,
    "exports": exports,
    "many": many,
}


def process_tree(pid: int) -> list[int]:
    """Returns the ids of a process and its descendants."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [one for number in child.read_text().split() for one in process_tree(int(number))]
        except OSError:
            continue
    return found


def resident_mib(pid: int) -> float:
    total = 0
    for one in process_tree(pid):
        try:
            total += machine.resident_bytes(one)
        except (OSError, StopIteration):  # the process has just ended
            continue
    return total / MIB


def peak_mib(pid: int) -> float:
    """Returns the peak memory of the process itself since :func:`reset_peak_memory`, MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def reset_peak_memory(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def disk_mib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / MIB


def latencies_ms(experience: VictimTimings) -> dict[str, Any]:
    def of(values: Sequence[float]) -> dict[str, float]:
        ordered = sorted(values)
        if not ordered:
            return {}
        marks = {"p50": quantile(ordered, 0.5), "p95": quantile(ordered, 0.95), "max": ordered[-1]}
        return {name: round(1000 * value, 1) for name, value in marks.items()}

    return {
        "gap_ms": of(experience.gaps),
        "request_ms": of(experience.requests),
        "send_ms": of(experience.sends),
        "tokens": len(experience.gaps),
        "failures": len(experience.failures),
        "first_failure": experience.failures[0] if experience.failures else None,
    }


async def attack(name: str, server: LiveServer, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs one attack against a fresh server and returns its measurements."""
    _admin, victim_browser, attacker_browser = await server.sign_up(3)
    url = f"http://127.0.0.1:{server.port}"
    headers = [one._headers for one in (victim_browser, attacker_browser)]
    victim = Victim(url, headers[0])
    async with victim.running() as calm:
        await asyncio.sleep(BASELINE_SECONDS)
    reset_peak_memory(server.pid)
    before, peak = disk_mib(folder), 0.0
    resting = resident_mib(server.pid)
    stop_event = asyncio.Event()

    async def watch() -> float:
        max_mib = 0.0
        while not stop_event.is_set():
            max_mib = max(max_mib, await asyncio.to_thread(resident_mib, server.pid))
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)
        return max_mib

    watching = asyncio.create_task(watch())
    died = None
    async with httpx.AsyncClient(base_url=url, headers=headers[1], timeout=60) as http:
        attacker = Attacker(http, server.port, headers[1]["Cookie"], seconds)
        began = perf_counter()
        async with victim.running() as attacked:
            try:
                await ATTACKS[name](attacker)
            except (httpx.HTTPError, OSError) as error:
                attacker.answers[type(error).__name__] += 1
            took = perf_counter() - began
        stop_event.set()
        peak = await watching
        try:
            server.require_running()
        except ServerEnded as error:
            died = str(error)[-500:]
    return {
        "attack": name,
        "seconds": round(took, 1),
        "without": latencies_ms(calm),
        "beside": latencies_ms(attacked),
        "memory_mib": {
            "resting": round(resting),
            "peak": round(peak_mib(server.pid)) if died is None else None,
            "peak_with_children": round(peak),
            "container": CONTAINER_MIB,
        },
        "disk_mib": {"before": round(before, 1), "after": round(disk_mib(folder), 1)},
        "answers": dict(attacker.answers),
        "last_refusal": attacker.said or None,
        "server_ended": died,
    }


def format_row(row: Mapping[str, Any]) -> str:
    calm, hit = row["without"], row["beside"]
    gaps = " ".join(f"{name} {calm['gap_ms'].get(name)} → {hit['gap_ms'].get(name)}" for name in ("p50", "p95", "max"))
    memory, disk = row["memory_mib"], row["disk_mib"]
    max_mib = memory["peak_with_children"]
    return (
        f"{row['attack']:10} gap ms {gaps}; send max {hit['send_ms'].get('max')} ms; failures {hit['failures']}; "
        f"memory {memory['resting']} → {max_mib} MiB; disk {disk['before']} → {disk['after']} MiB; "
        f"{row['answers']}" + (" THE SERVER ENDED" if row["server_ended"] else "")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=f"any of {', '.join(ATTACKS)}; default: all")
    parser.add_argument("--seconds", type=float, default=12.0, help="duration of each attack")
    parser.add_argument("--database-url", help="a PostgreSQL database that may be filled; default: fresh SQLite files")
    parser.add_argument("--name", help="name of the output file; default: DATE-abuse")
    args = parser.parse_args(arguments)
    names = args.attacks or list(ATTACKS)
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"unknown attack '{unknown[0]}'. Choose from: {', '.join(ATTACKS)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    about = machine.describe() | {"open_files_of_the_server": DEFAULT_MAX_OPEN_FILES}
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            options = ["--database-url", args.database_url] if args.database_url else []
            resource.setrlimit(resource.RLIMIT_NOFILE, (DEFAULT_MAX_OPEN_FILES, hard))
            with LiveServer(Path(temporary), options) as server:
                # The server started with the usual limit of most systems; the client needs more.
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
                rows.append(asyncio.run(attack(name, server, Path(temporary) / "data", args.seconds)))
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(format_row(rows[-1]), flush=True)
    output = RESULTS / f"{args.name}.json" if args.name else None
    write_result({"machine": about, "attacks": rows}, "abuse", output)


if __name__ == "__main__":
    main()
