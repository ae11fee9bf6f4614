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
from string import ascii_lowercase
from typing import Any

from benchmarks.markdown_table import Cell, TableRow, format_number
from benchmarks.model_files import FILE
from benchmarks.peers.catalogue import CATALOGUE
from benchmarks.result_files import RESULTS
from benchmarks.workloads import DEEP, Metric

OURS = CATALOGUE[0].name
PEERS = {entry.name: entry.title for entry in CATALOGUE if entry.name != OURS}
"""Engine in the result files -> its short name on the page."""


@dataclass(frozen=True)
class MachineRuns:
    """The runs on one kind of processor."""

    title: str  #: as :func:`kind` calls it
    files: tuple[str, ...]  #: the first file with Deskmate's and a peer's figures of a work has that work's row


MACHINES = (
    MachineRuns(
        "Xeon with AMX",
        (
            "2026-11-27-bench-amx-bursts",
            "2026-11-27-bench-amx-before-bursts",
            "2026-11-26-bench-amx-int8",
            "2026-11-26-bench-amx-int4",
        ),
    ),
    MachineRuns(
        "EPYC with AVX-512",
        (
            "2026-11-29-bench-epyc-bf16",
            "2026-11-29-bench-epyc-int",
            "2026-11-27-bench-epyc-bf16",
            "2026-11-29-bench-epyc-int8-chats",
            "2026-11-29-bench-epyc-int4-chats",
        ),
    ),
    MachineRuns(
        "EPYC with AVX2",
        ("2026-11-29-bench-avx2-bf16", "2026-11-29-bench-avx2-int", "2026-11-29-bench-avx2-int8"),
    ),
)
PRODUCT = (
    {"SQLite": "2026-11-30-product-sqlite", "PostgreSQL": "2026-11-30-product-postgresql"},
    {"SQLite": "2026-11-29-product-avx2-sqlite", "PostgreSQL": "2026-11-29-product-avx2-postgresql"},
    {"SQLite": "2026-11-28-product-sqlite", "PostgreSQL": "2026-11-28-product-postgresql"},
)
"""Runs of the whole product on both databases; the first one, the newest, has the picture."""
DESK = {"SQLite": "2026-11-27-desk", "PostgreSQL": "2026-11-27-desk-postgresql"}
SEARCH = "2026-11-29-knowledge-search"
HISTORY = "2026-11-21-history"

PRODUCT_WAITS = ("first_text", "delivery")
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


def _in_each_format(group: str, title: str, name: str, figure: str, unit: str = "") -> tuple[Work, ...]:
    """Returns a work's rows. ``unit`` ends the title of the first, of bfloat16; the others end with their format."""
    endings = (("bf16", unit), ("int8", ", 8 bits"), ("int4", ", 4 bits"))
    return tuple(Work(group, title + ending, name, figure, number_format=format_) for format_, ending in endings)


WORKS = (
    *_in_each_format(RATE, "one chat", "1 chat", "decode"),
    *_in_each_format(RATE, "one chat after 3,900", DEEP, "decode", unit=" tokens"),
    *_in_each_format(RATE, "8 chats at once", "8 chats", "throughput"),
    *_in_each_format(RATE, "32 chats at once", "32 chats", "throughput"),
    *_in_each_format(DELAY, "prompt of 128", "1 chat", "ttft", unit=" tokens"),
    *_in_each_format(DELAY, "prompt of 1,024", "prompt of 1,024", "ttft"),
    *_in_each_format(DELAY, "prompt of 3,900", DEEP, "ttft"),
    Work(DELAY, "second turn after 2,000", "second turn after 2,000", "ttft"),
    Work(DELAY, "prompt of 4,000 beside 4 chats", "a prompt of 4,000 comes", "ttft"),
)
"""Rows of the comparison, model M; those that no machine has are left out."""


def _decode(model: str, number_format: str = "bf16") -> Work:
    return Work(RATE, "one chat", "1 chat", "decode", model, number_format)


def _first_token(model: str) -> Work:
    return Work(DELAY, "first token, ms", "1 chat", "ttft", model)


_SMOLLM2_TOGETHER = Work(RATE, "32 chats", "32 chats", "throughput", "SmolLM2-135M-Q4_1", FILE)

SMALL = (
    ("SmolLM2 135M, Q4_1", "2026-11-25-bench-smollm2", _decode("SmolLM2-135M-Q4_1", FILE)),
    ("SmolLM2 135M, Q4_1", "2026-11-25-bench-smollm2", _SMOLLM2_TOGETHER),
    ("M, Q4_K_M", "2026-11-25-bench-gguf-M-G", _decode("M-Q4_K_M", FILE)),
    ("M, Q8_0", "2026-11-25-bench-gguf-M-G", _decode("M-Q8_0", FILE)),
    ("G, 268 M", "2026-11-25-bench-gguf-M-G", _decode("G")),
    ("G, 268 M", "2026-11-25-bench-G", _decode("G")),
    ("S, 32 M", "2026-11-22-bench-amx-small", _decode("S")),
    ("S, 32 M", "2026-11-22-bench-small", _decode("S")),
    ("S, 32 M", "2026-11-22-bench-small", _first_token("S")),
    ("the guide, 4 M", "2026-11-29-bench-epyc-guide", _decode("guide")),
    ("the guide, 4 M", "2026-11-29-bench-epyc-guide", _first_token("guide")),
    ("the guide, 4 M", "2026-11-22-bench-amx-small", _decode("guide")),
    ("the guide, 4 M", "2026-11-22-bench-small", _decode("guide")),
    ("the guide, 4 M", "2026-11-22-bench-small", _first_token("guide")),
)
"""Rows of other models and files: name, result file, work."""


Range = tuple[float, float]
"""Smallest and largest figure of the repetitions that count."""


@dataclass(frozen=True)
class Comparison:
    """One work on one machine."""

    own: float
    peer: float  #: of the best peer of the same run
    peer_name: str
    ratio: float  #: how many times better Deskmate is; below 1 the peer is
    file: str
    own_range: Range
    peer_range: Range

    @property
    def overlaps(self) -> bool:
        """Whether a repetition of the slower one was as fast as one of the faster one."""
        return self.own_range[0] <= self.peer_range[1] and self.peer_range[0] <= self.own_range[1]

    @property
    def spread(self) -> float:
        """By how much the largest figure exceeds the smallest: 0.1 is 10 %. Of the engine that differs more."""
        return max(largest / smallest - 1 for smallest, largest in (self.own_range, self.peer_range))


@cache
def result(name: str) -> Any:
    """Returns a result file's content."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def compare(files: Iterable[str], work: Work) -> Comparison | None:
    """Returns Deskmate and the best peer of the first of these runs that has both, or None.

    Figures of which other programs disturbed every repetition do not count.
    """
    for file in files:
        rows = {
            row["engine"]: row
            for row in result(file)["rows"]
            if (row["model"], row["work"], row["format"]) == (work.model, work.name, work.number_format)
            and not row["disturbed"]
        }
        cells = {engine: Cell(row["figures"].get(work.figure)) for engine, row in rows.items()}
        ratio = TableRow(work.name, work.metric, cells).ratio(OURS)
        if ratio is not None:
            own, peer = cells[OURS].value, cells[ratio[1]].value
            assert own is not None  # there is no ratio without them
            assert peer is not None
            ranges = [_range(rows[engine], work.figure) for engine in (OURS, ratio[1])]
            return Comparison(own, peer, PEERS[ratio[1]], ratio[0], file, *ranges)
    return None


def _range(row: Mapping[str, Any], figure: str) -> Range:
    found = [one[figure] for one in row["repetitions"] if one["counts"]]
    return min(found), max(found)


def comparisons() -> list[tuple[Work, list[Comparison | None]]]:
    """Returns each work with its figures on each of ``MACHINES``, without works that none has."""
    found = [(work, [compare(machine.files, work) for machine in MACHINES]) for work in WORKS]
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


def kind(run: Mapping[str, Any]) -> str:
    """Returns the kind of processor of a run, such as ``Xeon with AMX``."""
    maker = "Xeon" if "Xeon" in run["machine"]["cpu"] else "EPYC"
    extensions = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    return f"{maker} with {next(extensions[name] for name in extensions if name in run['machine']['cpu_extensions'])}"


def processor(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns the kind of processor of runs on one kind, such as ``an EPYC with AVX-512``."""
    (name,) = {kind(run) for run in runs}
    return f"{'an' if name.startswith('E') else 'a'} {name}"


def files_in_use(machine: MachineRuns) -> list[str]:
    """Returns the machine's files that have a row of the comparison, in the order of ``MACHINES``."""
    used = {found.file for work in WORKS if (found := compare(machine.files, work)) is not None}
    return [file for file in machine.files if file in used]


def run_letters() -> dict[str, str]:
    """Returns file -> the letter that names it in the table of figures."""
    files = [file for machine in MACHINES for file in files_in_use(machine)]
    return dict(zip(files, ascii_lowercase, strict=False))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Formats a Markdown table; its first ``text_columns`` columns are aligned left, the others right."""
    rule = ["---" if column < text_columns else "---:" for column in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def engine_table() -> str:
    """Returns Deskmate, the best peer, the ratio and the run's letter for each work and machine."""
    letters = run_letters()
    columns = [name for machine in MACHINES for name in (machine.title, "best peer", "ratio", "run")]
    rows = []
    for work, cells in comparisons():
        row = [work.title if work.group == RATE else f"first token, {work.title}"]
        for cell in cells:
            if cell is None:
                row += ["–"] * 4
            else:
                peer = f"{cell.peer_name} {format_number(cell.peer)}"
                row += [format_number(cell.own), peer, format_ratio(cell), letters[cell.file]]
        rows.append(row)
    return table(["Tokens per second; first token in ms", *columns], rows)


def format_ratio(found: Comparison) -> str:
    """Formats a ratio: in bold if Deskmate is not ahead, with ``≈`` if repetitions of both overlap."""
    text = shown_ratio(found)
    return text if is_ahead(found.ratio) else f"**{text}**"


def shown_ratio(found: Comparison) -> str:
    return f"{'≈' if found.overlaps else ''}{found.ratio:.2f}"


def is_ahead(ratio: float) -> bool:
    """Whether the ratio is above 1 as it is shown, with two digits."""
    return round(ratio, 2) > 1


def runs_table() -> str:
    """Returns the runs of the comparison: the peers, how many repetitions, how many of them were dropped."""
    rows = []
    letters = run_letters()
    for machine in MACHINES:
        for file in files_in_use(machine):
            run = result(file)
            counted = [row for row in run["rows"] if row["repetitions"]]
            repetitions = sum(len(row["repetitions"]) for row in counted)
            engines = sorted({PEERS[row["engine"]] for row in counted if row["engine"] != OURS})
            rows.append(
                [
                    letters[file],
                    f"`{file}`",
                    machine.title,
                    ", ".join(engines),
                    str(run["machine"]["repeats"]),
                    f"{sum(row['dropped'] for row in counted)} of {repetitions}",
                ]
            )
    return table(["Run", "File", "Machine", "Peers", "Repetitions", "Dropped in all"], rows, text_columns=4)


def small_table() -> str:
    """Returns figures of small models and of GGUF files beside the best peer."""
    rows = []
    for name, file, work in SMALL:
        found = compare((file,), work)
        if found is None:
            raise ValueError(f"{file}.json has no figures of Deskmate and a peer for {work.title} with {work.model}")
        peer = f"{found.peer_name} {format_number(found.peer)}"
        machine = kind(result(file))
        rows.append([name, work.title, f"`{file}`", machine, format_number(found.own), peer, format_ratio(found)])
    return table(["Model", "Work", "File", "Machine", "Deskmate", "best peer", "ratio"], rows, text_columns=4)


def product_table() -> str:
    """Returns what the whole product does on each machine and database; milliseconds as p50 / p95."""
    rows = []
    for files in PRODUCT:
        for database, file in files.items():
            run = result(file)
            alone, whole = run["medians"]["the engine alone"], run["medians"]["the whole product"]
            waits = [f"{whole[f'{name}_p50_ms']:.0f} / {whole[f'{name}_p95_ms']:.0f}" for name in PRODUCT_WAITS]
            rates = [f"{one['tokens_per_s']:,.0f}" for one in (alone, whole)]
            share = f"{100 * run['share_of_engine']:.1f} %"
            cores = f"{whole['cores']:.2f} + {whole['database_cores']:.2f}"
            rows.append([f"{kind(run)}, {day(file)}", database, *rates, share, *waits, cores])
    header = ["Machine, day", "Database", "engine alone", "whole product", "share", "first text", "token sent", "cores"]
    return table(header, rows, text_columns=2)


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
    "product": product_table,
    "history": history_table,
    "desk": desk_table,
}
"""The tables of docs/benchmarks.md by name, beside those of :mod:`benchmarks.documented_recall`."""
