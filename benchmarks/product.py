"""Measures how much of the engine's speed the whole product keeps when users chat in browsers.

    .venv/bin/python -m benchmarks.product           # about ten minutes
    .venv/bin/python -m benchmarks.product --quick   # about two minutes
    .venv/bin/python -m benchmarks.product --postgres  # on a private PostgreSQL server instead of SQLite

64 signed-in users chat at once with a real server (``python -m app serve``, a process of its own, a fresh database, the
bundled model): each sends a message, reads the reply in the event stream that the page keeps open, and sends the next
one. In alternation, a process with only the engine answers the same messages with the same seeds, settings and history.
Both are measured by the engine's own counter of generated tokens, over a window in which all users are chatting.
Reports medians, without repetitions in which other programs used more than 8 % of the CPU.

The time from sampling a token to writing its text to the connection is the server's own metric
(``deskmate_token_delivery_seconds``, for the oldest token of each event). The simulated users share the CPU with the
server: they are one process that reads bytes and hardly parses them, and its CPU use is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tqdm import tqdm

from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.interleaving import Repetition, Series, run_interleaved
from benchmarks.live.engine_process import EngineProcess
from benchmarks.live.prometheus import Histogram, samples
from benchmarks.live.scripted_chats import chat
from benchmarks.live.server import LiveServer
from benchmarks.live.users import SimulatedUser
from benchmarks.machine import CpuMark, program_seconds, session_seconds
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result

ENGINE, PRODUCT = "the engine alone", "the whole product"
SETTLE_SECONDS = 3.0
MIN_ENGINE_SHARE, TARGET_ENGINE_SHARE = 0.80, 0.95
MAX_DELIVERY_MS = 60.0
TOKENS, DELIVERY = "deskmate_generation_tokens_total", "deskmate_token_delivery_seconds"


class MeasuredServer:
    """Simulated users of a server, measured by the server's metrics.

    Args:
        server: the running server.
        runner: runs the users.
        number: number of users.
    """

    def __init__(self, server: LiveServer, runner: asyncio.Runner, number: int) -> None:
        self._server = server
        self._runner = runner
        *browsers, self._observer = runner.run(server.sign_up(number + 1))
        self._people = [SimulatedUser(browser) for browser in browsers]
        self._scrapes: list[dict[str, float]] = []

    def measure(self, turn: int, seconds: float) -> dict[str, float]:
        """Runs one turn of chats and returns its figures."""
        self._scrapes.clear()
        for person in self._people:
            person.first_texts.clear()
            person.text_events = 0
        client, began = process_time(), perf_counter()
        asking = [person.ask for person in self._people]
        window = self._runner.run(chat(asking, turn, settle=SETTLE_SECONDS, seconds=seconds, count=self._count))
        cores = (process_time() - client) / (perf_counter() - began)
        before, after = self._scrapes
        delivery = Histogram.of(DELIVERY, after).since(Histogram.of(DELIVERY, before))
        first_texts = [one for person in self._people for one in person.first_texts]
        return {
            "tokens_per_s": window.tokens / window.seconds,
            "replies_per_s": (_finished(after) - _finished(before)) / window.seconds,
            "events_per_s": delivery.count / window.seconds,
            "client_cores": cores,
            **{f"delivery_p{share}_ms": 1000 * delivery.quantile(share / 100) for share in (50, 95, 99)},
            **{f"first_text_p{share}_ms": 1000 * quantile(first_texts, share / 100) for share in (50, 95)},
        }

    async def _count(self) -> tuple[float, float]:
        found = samples(await self._server.metrics(self._observer))
        self._scrapes.append(found)
        return found[TOKENS], perf_counter()


def _finished(found: Mapping[str, float]) -> float:
    return sum(value for name, value in found.items() if name.startswith("deskmate_request_success_total"))


def measure(people: int, seconds: float, repeats: int, kind: str) -> dict[str, Series]:
    """Measures the engine alone and the whole product in alternation. ``kind``: ``sqlite`` or ``postgresql``."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        databases([kind], Path(temporary)) as make_database,
        tqdm(total=2 * (repeats + 1), file=sys.stderr, dynamic_ncols=True, leave=False) as bar,
        asyncio.Runner() as runner,
    ):
        folder = Path(temporary)
        bar.set_description("starting")
        # Titles would be extra replies, which the engine alone does not generate.
        options = ["--no-auto-titles", "--database-url", make_database[kind]("product")]
        program = "postgres" if kind == "postgresql" else None
        with EngineProcess(folder) as alone, LiveServer(folder, options) as server:
            measured_server = MeasuredServer(server, runner, people)

            def one(name: str, turn: int) -> Repetition:
                bar.set_description(name)
                session = alone.pid if name == ENGINE else server.pid
                mark, began, used = CpuMark.now(session, program), perf_counter(), session_seconds(session)
                database = program_seconds(program)
                if name == ENGINE:
                    window = alone.chat(people, turn, SETTLE_SECONDS, seconds)
                    figures = {"tokens_per_s": window.tokens / window.seconds}
                else:
                    figures = measured_server.measure(turn, seconds)
                seconds_passed = perf_counter() - began
                figures["cores"] = (session_seconds(session) - used) / seconds_passed
                figures["database_cores"] = (program_seconds(program) - database) / seconds_passed
                bar.total = max(bar.total or 0, bar.n + 1)  # dropped repetitions are repeated
                bar.update()
                return Repetition(figures, mark.others_share())

            return run_interleaved([ENGINE, PRODUCT], repeats, one)


def format_report(found: Mapping[str, Series]) -> list[str]:
    """Formats the results as text."""
    engine, product = found[ENGINE].figures, found[PRODUCT].figures
    share = product["tokens_per_s"] / engine["tokens_per_s"]
    lines = [
        f"{ENGINE:<18} {engine['tokens_per_s']:7,.0f} tokens/s on {engine['cores']:.2f} cores",
        f"{PRODUCT:<18} {product['tokens_per_s']:7,.0f} tokens/s on {product['cores']:.2f} cores, and "
        f"{product['client_cores']:.2f} for the clients, {product['database_cores']:.2f} for PostgreSQL",
        f"share of the engine's tokens: {share:.1%} (at least {MIN_ENGINE_SHARE:.0%}: "
        f"{_verdict(share >= MIN_ENGINE_SHARE)}; "
        f"target {TARGET_ENGINE_SHARE:.0%}: {_verdict(share >= TARGET_ENGINE_SHARE)})",
        "time from sampling a token to the connection: "
        + ", ".join(f"p{share} {product[f'delivery_p{share}_ms']:.1f} ms" for share in (50, 95, 99))
        + f" (p95 at most {MAX_DELIVERY_MS:.0f} ms: {_verdict(product['delivery_p95_ms'] <= MAX_DELIVERY_MS)})",
        f"time from sending a message to its first text: p50 {product['first_text_p50_ms']:.0f} ms, "
        f"p95 {product['first_text_p95_ms']:.0f} ms; {product['replies_per_s']:.1f} replies and "
        f"{product['events_per_s']:.0f} events per second",
    ]
    for name, series in found.items():
        if series.is_disturbed:
            lines.append(f"{name}: other programs were busy in every repetition, so all repetitions count")
        elif series.dropped:
            lines.append(f"{name}: {series.dropped} repetitions dropped, other programs were busy")
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "not met"


def as_json(found: Mapping[str, Series], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results for the JSON file."""
    engine, product = (found[name].figures["tokens_per_s"] for name in (ENGINE, PRODUCT))
    return {
        "machine": machine.describe(),
        "asked": dict(asked),
        "share_of_engine": round(product / engine, 4),
        "medians": {name: _rounded(series.figures) for name, series in found.items()},
        "repetitions": {
            name: [
                {"others_cpu_share": round(one.others_cpu_share, 3), "counts": one.is_valid, **_rounded(one.figures)}
                for one in series.repetitions
            ]
            for name, series in found.items()
        },
    }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="two short repetitions")
    parser.add_argument("--seconds", type=float, help="duration of each repetition (20; 10 with --quick)")
    parser.add_argument("--repeats", type=int, help="measured repetitions (9; 2 with --quick)")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    seconds = args.seconds or (10.0 if args.quick else 20.0)
    repeats = args.repeats or (2 if args.quick else 9)
    kind = "postgresql" if args.postgres else "sqlite"
    found = measure(args.people, seconds, repeats, kind)
    print("\n".join(format_report(found)))
    result = as_json(found, {"people": args.people, "seconds": seconds, "repeats": repeats, "database": kind})
    write_result(result, f"product-{kind}", args.output)


if __name__ == "__main__":
    main()
