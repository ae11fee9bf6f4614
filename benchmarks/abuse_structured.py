"""Measures how much hostile requests to ``/v1`` disturb a user who reads a reply, compared with plain chats.

    .venv/bin/python -m benchmarks.abuse_structured            # every attack; about six minutes
    .venv/bin/python -m benchmarks.abuse_structured patterns   # only this one

Starts a real server as :mod:`benchmarks.abuse` does. In each round of each attack a victim reads replies three times:
alone (quiet), while the attacker sends plain chats (control), and while the attacker sends the attack's requests at the
same rate, whether or not earlier ones were answered. Reports the medians over the rounds of the victim's gaps between
tokens, and what the attacker was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx

from benchmarks import machine
from benchmarks.live import hostile_requests
from benchmarks.live.hostile_requests import HostileRequest
from benchmarks.live.server import LiveServer
from benchmarks.live.victim import Victim
from benchmarks.quantiles import quantile
from benchmarks.result_files import RESULTS, write_result

ATTACKS: dict[str, Callable[[int], Sequence[HostileRequest]]] = {
    "schemas": hostile_requests.schemas,
    "patterns": hostile_requests.patterns,
    "tools": hostile_requests.tools,
    "bodies": hostile_requests.bodies,
}
ANSWER_SECONDS = 30.0
"""Maximum wait for the answers that are missing when a phase ends."""


class Attacker:
    """Sends requests at a fixed rate and counts the answers."""

    def __init__(self, http: httpx.AsyncClient, requests_per_second: float) -> None:
        self._http = http
        self._interval = 1 / requests_per_second
        self.answers: Counter[str] = Counter()
        self.refusals: dict[str, int] = {}  #: sentences of the refusals, with their numbers

    async def send_for(self, seconds: float, requests: Sequence[HostileRequest], first: int) -> int:
        """Sends requests for some seconds, from the one with the index ``first``; returns the next index."""
        began, number = perf_counter(), 0
        sending: list[asyncio.Task[None]] = []
        while perf_counter() - began < seconds:
            sending.append(asyncio.create_task(self._send(requests[(first + number) % len(requests)])))
            number += 1
            await asyncio.sleep(max(0.0, began + number * self._interval - perf_counter()))
        _done, late = await asyncio.wait(sending, timeout=ANSWER_SECONDS)
        self.answers["unanswered"] += len(late)
        for task in late:
            task.cancel()
        return first + number

    async def _send(self, request: HostileRequest) -> None:
        try:
            answer = await self._http.post(
                request.path, content=request.body, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            self.answers[type(error).__name__] += 1
            return
        self.answers[str(answer.status_code)] += 1
        if answer.status_code >= 400:
            said = answer.json()["error"]["message"][:160]
            self.refusals[said] = self.refusals.get(said, 0) + 1


async def measure(name: str, server: LiveServer, headers: Sequence[dict[str, str]], args: argparse.Namespace) -> Any:
    """Runs one attack's rounds and returns their measurements."""
    url = f"http://127.0.0.1:{server.port}"
    count = int(args.rounds * args.seconds * args.rate) + 1
    requests = {"control": hostile_requests.plain(count), "attack": ATTACKS[name](count // 5 + 1)}
    sent = dict.fromkeys(requests, 0)
    rounds: dict[str, list[dict[str, float]]] = {"quiet": [], "control": [], "attack": []}
    failures: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, headers=headers[1], timeout=60) as http:
        attackers = {phase: Attacker(http, args.rate) for phase in requests}
        for _ in range(args.rounds):
            for phase, measured in rounds.items():
                async with Victim(url, headers[0]).running() as timings:
                    if phase in requests:
                        sent[phase] = await attackers[phase].send_for(args.seconds, requests[phase], sent[phase])
                    else:
                        await asyncio.sleep(args.seconds)
                gaps = sorted(timings.gaps)
                failures[phase] += len(timings.failures)
                measured.append({"p50": quantile(gaps, 0.5), "p95": quantile(gaps, 0.95), "max": gaps[-1]})
    server.require_running()
    return {
        "attack": name,
        "gap_ms": {
            phase: {mark: round(1000 * median(one[mark] for one in measured), 1) for mark in ("p50", "p95", "max")}
            for phase, measured in rounds.items()
        },
        "rounds": rounds,
        "victim_failures": dict(failures),
        "answers": {phase: dict(attacker.answers) for phase, attacker in attackers.items()},
        "refusals": attackers["attack"].refusals,
    }


def format_row(row: dict[str, Any]) -> str:
    gaps = "; ".join(
        f"{phase} p50 {found['p50']} p95 {found['p95']} max {found['max']}" for phase, found in row["gap_ms"].items()
    )
    return f"{row['attack']:9} gap ms: {gaps}; {row['answers']}; victim's failures {row['victim_failures']}"


async def run(names: Sequence[str], server: LiveServer, args: argparse.Namespace) -> list[dict[str, Any]]:
    _admin, victim, attacker = await server.sign_up(3)
    rows = []
    for name in names:
        rows.append(await measure(name, server, [victim._headers, attacker._headers], args))
        print(format_row(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=f"any of {', '.join(ATTACKS)}; default: all")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=4.0, help="the attacker's requests per second")
    parser.add_argument("--name", help="name of the output file; default: DATE-abuse-structured")
    args = parser.parse_args(arguments)
    names = args.attacks or list(ATTACKS)
    if unknown := [name for name in names if name not in ATTACKS]:
        parser.error(f"unknown attack '{unknown[0]}'. Choose from: {', '.join(ATTACKS)}")
    about = machine.describe() | {"load_average": os.getloadavg()}
    with tempfile.TemporaryDirectory() as temporary, LiveServer(Path(temporary)) as server:
        rows = asyncio.run(run(names, server, args))
    about["load_average_after"] = os.getloadavg()
    output = RESULTS / f"{args.name}.json" if args.name else None
    chosen = {"seconds": args.seconds, "rounds": args.rounds, "requests_per_second": args.rate}
    write_result({"machine": about, "parameters": chosen, "attacks": rows}, "abuse-structured", output)


if __name__ == "__main__":
    main()
