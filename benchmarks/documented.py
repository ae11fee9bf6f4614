"""The results that docs/benchmarks.md shows: which file stands for which machine, and the tables that are made of them.

To show a newer run, put its file into ``benchmarks/results``, name it below instead of the older one, and run
``make docs``, which writes the page's tables and, by :mod:`benchmarks.pictures`, its pictures. The page's sentences are
compared with the files by ``tests/benchmarks/test_documented_figures.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.markdown_table import Cell, TableRow, format_number
from benchmarks.workloads import Metric

RESULTS = Path(__file__).parent / "results"
OURS = "deskmate"
PEERS = {
    "transformers": "transformers",
    "batching": "transformers",
    "llama.cpp": "llama.cpp",
    "llama-server": "llama-server",
    "vllm": "vLLM",
    "vllm-eager": "vLLM, eager",
}
"""Engine in the result files -> its short name on the page."""


@dataclass(frozen=True)
class Machine:
    title: str
    files: tuple[str, ...]  #: the first file with Deskmate's and a peer's figures of a work has that work's row


MACHINES = (
    Machine(
        "Xeon with AMX",
        (
            "2026-11-27-bench-amx-bursts",
            "2026-11-27-bench-amx-before-bursts",
            "2026-11-26-bench-amx-int8",
            "2026-11-26-bench-amx-int4",
        ),
    ),
    Machine(
        "EPYC with AVX-512",
        (
            "2026-11-27-bench-epyc-bf16",
            "2026-11-27-bench-epyc-int",
            "2026-11-27-bench-epyc-before",
        ),
    ),
)
PRODUCT = {"SQLite": "2026-11-28-product-sqlite", "PostgreSQL": "2026-11-28-product-postgresql"}
DESK = {"SQLite": "2026-11-27-desk", "PostgreSQL": "2026-11-27-desk-postgresql"}
SEARCH = "2026-11-26-knowledge-search"
HISTORY = "2026-11-21-history"

RATE, DELAY = "tokens per second", "first token, ms"


@dataclass(frozen=True)
class Work:
    """A row of the comparison with peers.

    Args:
        group: what is measured, and its unit.
        title: the row's name.
        name: the work's name in the result files, as in :mod:`benchmarks.workloads`.
        figure: key of the figure in the result files.
    """

    group: str
    title: str
    name: str
    figure: str
    model: str = "M"
    number_format: str = "bf16"

    @property
    def metric(self) -> Metric:
        return Metric(self.figure, self.title, self.group, higher_is_better=self.group == RATE)


WORKS = (
    Work(RATE, "one chat", "1 chat", "decode"),
    Work(RATE, "one chat, 8 bits", "1 chat", "decode", number_format="int8"),
    Work(RATE, "one chat, 4 bits", "1 chat", "decode", number_format="int4"),
    Work(RATE, "one chat after 3,900 tokens", "context of 3,900", "decode"),
    Work(RATE, "8 chats at once", "8 chats", "throughput"),
    Work(RATE, "8 chats at once, 8 bits", "8 chats", "throughput", number_format="int8"),
    Work(RATE, "8 chats at once, 4 bits", "8 chats", "throughput", number_format="int4"),
    Work(RATE, "32 chats at once", "32 chats", "throughput"),
    Work(RATE, "32 chats at once, 8 bits", "32 chats", "throughput", number_format="int8"),
    Work(RATE, "32 chats at once, 4 bits", "32 chats", "throughput", number_format="int4"),
    Work(DELAY, "prompt of 128 tokens", "1 chat", "ttft"),
    Work(DELAY, "prompt of 128, 8 bits", "1 chat", "ttft", number_format="int8"),
    Work(DELAY, "prompt of 128, 4 bits", "1 chat", "ttft", number_format="int4"),
    Work(DELAY, "prompt of 1,024", "prompt of 1,024", "ttft"),
    Work(DELAY, "prompt of 1,024, 8 bits", "prompt of 1,024", "ttft", number_format="int8"),
    Work(DELAY, "prompt of 1,024, 4 bits", "prompt of 1,024", "ttft", number_format="int4"),
    Work(DELAY, "prompt of 3,900", "context of 3,900", "ttft"),
    Work(DELAY, "second turn after 2,000", "second turn after 2,000", "ttft"),
    Work(DELAY, "prompt of 4,000 beside 4 chats", "a prompt of 4,000 comes", "ttft"),
)
"""Rows of the comparison, model M; those that no machine has are left out."""


_FILE = "file"
"""Number format of a GGUF file in the result files."""

SMALL = (
    (
        "SmolLM2 135M, Q4_1",
        "2026-11-25-bench-smollm2",
        Work(RATE, "one chat", "1 chat", "decode", "SmolLM2-135M-Q4_1", _FILE),
    ),
    (
        "the same",
        "2026-11-25-bench-smollm2",
        Work(RATE, "32 chats", "32 chats", "throughput", "SmolLM2-135M-Q4_1", _FILE),
    ),
    ("M, Q4_K_M", "2026-11-25-bench-gguf-M-G", Work(RATE, "one chat", "1 chat", "decode", "M-Q4_K_M", _FILE)),
    ("M, Q8_0", "2026-11-25-bench-gguf-M-G", Work(RATE, "one chat", "1 chat", "decode", "M-Q8_0", _FILE)),
    ("the guide, 4 M", "2026-11-25-bench-guide", Work(RATE, "one chat", "1 chat", "decode", "guide")),
    ("the guide, 4 M", "2026-11-22-bench-amx-small", Work(RATE, "one chat", "1 chat", "decode", "guide")),
    ("S, 32 M", "2026-11-22-bench-amx-small", Work(RATE, "one chat", "1 chat", "decode", "S")),
)
"""Rows of other models and files: name, result file, work."""


@dataclass(frozen=True)
class Comparison:
    """One work on one machine."""

    own: float
    peer: float  #: of the best peer of the same run
    peer_name: str
    ratio: float  #: how many times better Deskmate is; below 1 the peer is
    file: str


@cache
def result(name: str) -> Any:
    """Returns a result file's content."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def compare(machine: Machine, work: Work) -> Comparison | None:
    """Returns Deskmate and the best peer of the same run, or None if no file has both.

    Figures of which other programs disturbed every repetition do not count.
    """
    for file in machine.files:
        cells = {
            row["engine"]: Cell(row["figures"].get(work.figure))
            for row in result(file)["rows"]
            if (row["model"], row["work"], row["format"]) == (work.model, work.name, work.number_format)
            and not row["disturbed"]
        }
        ratio = TableRow(work.name, work.metric, cells).ratio(OURS)
        if ratio is not None:
            own, peer = cells[OURS].value, cells[ratio[1]].value
            assert own is not None  # there is no ratio without them
            assert peer is not None
            return Comparison(own, peer, PEERS[ratio[1]], ratio[0], file)
    return None


def comparisons() -> list[tuple[Work, list[Comparison | None]]]:
    """Returns each work with its figures on each of ``MACHINES``, without works that none has."""
    found = [(work, [compare(machine, work) for machine in MACHINES]) for work in WORKS]
    return [(work, cells) for work, cells in found if any(cells)]


def day(file: str) -> str:
    """Returns the date of a result file, such as ``27 November 2026``."""
    measured = date.fromisoformat(str(result(file)["machine"]["date"])[:10])
    return f"{measured.day} {measured:%B %Y}"


def days(files: Sequence[str]) -> str:
    """Returns the dates of result files: ``26 and 27 November 2026``."""
    found = sorted({str(result(file)["machine"]["date"])[:10] for file in files})
    *others, last = [date.fromisoformat(one) for one in found]
    months = {(one.year, one.month) for one in (*others, last)}
    names = [str(one.day) if len(months) == 1 else f"{one.day} {one:%B}" for one in others]
    return " and ".join([*([", ".join(names)] if names else []), f"{last.day} {last:%B %Y}"])


def processor(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns the kind of processor of runs on one kind, such as ``a Xeon with AMX``."""
    (kind,) = {
        ("a Xeon" if "Xeon" in run["machine"]["cpu"] else "an EPYC", "amx_bf16" in run["machine"]["cpu_extensions"])
        for run in runs
    }
    return f"{kind[0]} {'with' if kind[1] else 'without'} AMX"


def files_in_use(machine: Machine) -> list[str]:
    """Returns the machine's files that have a row of the comparison, in the order of ``MACHINES``."""
    used = {found.file for work in WORKS if (found := compare(machine, work)) is not None}
    return [file for file in machine.files if file in used]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Formats a Markdown table; its first ``text_columns`` columns are aligned left, the others right."""
    rule = ["---" if column < text_columns else "---:" for column in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def engine_table() -> str:
    """Returns Deskmate, the best peer and the ratio for each work and machine."""
    columns = [name for machine in MACHINES for name in (machine.title, "best peer", "ratio")]
    rows = []
    for work, cells in comparisons():
        row = [work.title if work.group == RATE else f"first token, {work.title}"]
        for cell in cells:
            if cell is None:
                row += ["–", "–", "–"]
            else:
                peer = f"{cell.peer_name} {format_number(cell.peer)}"
                row += [format_number(cell.own), peer, format_ratio(cell.ratio)]
        rows.append(row)
    return table(["Tokens per second; first token in ms", *columns], rows)


def format_ratio(ratio: float) -> str:
    """Formats a ratio; in bold if Deskmate is not ahead."""
    return f"{ratio:.2f}" if is_ahead(ratio) else f"**{ratio:.2f}**"


def is_ahead(ratio: float) -> bool:
    """Whether the ratio is above 1 as it is shown, with two digits."""
    return round(ratio, 2) > 1


def runs_table() -> str:
    """Returns the runs of the comparison: when, how many repetitions, how many of them were dropped."""
    rows = []
    for machine in MACHINES:
        for file in files_in_use(machine):
            run = result(file)
            counted = [row for row in run["rows"] if row["repetitions"]]
            repetitions = sum(len(row["repetitions"]) for row in counted)
            engines = sorted({PEERS[row["engine"]] for row in counted if row["engine"] != OURS})
            rows.append(
                [
                    f"`{file}`",
                    machine.title,
                    ", ".join(engines),
                    str(run["machine"]["repeats"]),
                    f"{sum(row['dropped'] for row in counted)} of {repetitions}",
                    *[format_number(one) for one in run["read_bandwidth_gb_s"].values()][-1:],
                ]
            )
    header = ["File", "Machine", "Peers", "Repetitions", "Dropped in all", "Memory bandwidth, GB/s"]
    return table(header, rows, text_columns=3)


def small_table() -> str:
    """Returns tokens per second of small models and of GGUF files beside the best peer."""
    rows = []
    for name, file, work in SMALL:
        machine = Machine("Xeon with AMX" if "amx" in file else "EPYC", (file,))
        found = compare(machine, work)
        if found is None:
            raise ValueError(f"{file}.json has no figures of Deskmate and a peer for {work.title} with {work.model}")
        peer = f"{found.peer_name} {format_number(found.peer)}"
        own, ratio = format_number(found.own), format_ratio(found.ratio)
        rows.append([name, work.title, f"`{file}`", machine.title, own, peer, ratio])
    return table(["Model", "Work", "File", "Machine", "Deskmate", "best peer", "ratio"], rows, text_columns=4)


def desk_table() -> str:
    """Returns what visitors and agents of a support desk wait for, p50 / p95 in milliseconds."""
    columns = []
    for file in DESK.values():
        run = result(file)
        drafts = run["draft_first_text"]
        waits = (run["first_word"], run["acknowledgement"], run["agent"]["any"], drafts["beside_visitors"])
        memory = run["memory_mib"]
        columns.append(
            [
                format_number(run["messages_per_s"]),
                *[f"{wait['p50_ms']:.0f} / {wait['p95_ms']:.0f}" for wait in waits],
                f"{memory['start']:.0f}, {memory['end']:.0f}",
            ]
        )
    names = (
        "messages answered, per second",
        "first word of the answer",
        "acknowledgement",
        "an agent's page, list or case",
        "first text of an agent's draft",
        "memory at start and end, MiB",
    )
    return table(["", *DESK], list(zip(names, *columns, strict=True)))


def history_table() -> str:
    """Returns what reading and saving take among two million messages, p50 / p95 in milliseconds."""
    queries = {
        "first page of conversations": "first page of conversations",
        "opening a conversation of 500 messages (its last 100)": "last 100 of 500 messages",
        "searching for a word in most messages": "search, common word",
        "searching for a rare word": "search, rare word",
        "saving a turn, its start and its end": "saving a turn",
    }
    databases = result(HISTORY)["databases"]
    rows = []
    for title, name in queries.items():
        found = [databases[database]["all"]["queries"][name] for database in ("sqlite", "postgresql")]
        rows.append([title, *[f"{one['p50_ms']:.0f} / {one['p95_ms']:.0f}" for one in found]])
    return table(["", "SQLite", "PostgreSQL"], rows)


TABLES = {
    "engine": engine_table,
    "runs": runs_table,
    "small models": small_table,
    "history": history_table,
    "desk": desk_table,
}
"""The tables of docs/benchmarks.md by name."""
