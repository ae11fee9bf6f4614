"""Reports the results of a bench run: tables, notes, JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.markdown_table import Cell, TableRow, format_table
from benchmarks.model_files import BenchModel
from benchmarks.peers.catalogue import CATALOGUE
from benchmarks.side_by_side import NOT_BUILT, START, Row
from benchmarks.workloads import DEEP, Metric

OURS = CATALOGUE[0]
TITLES = {entry.name: entry.title for entry in CATALOGUE}
OUTSIDE = Metric("outside_forward", "time outside the model's forward", "%", False)
KEPT = Metric("kept", "the same, of 1 chat's", "%", True)
LARGE_MIB = 1024
"""Buffer size in MiB that is larger than most caches."""

PANELS = (
    ("M", "bf16", "1 chat", "decode"),
    ("M", "bf16", "1 chat", "ttft"),
    ("M", "bf16", "prompt of 1,024", "ttft"),
    ("M", "bf16", "8 chats", "throughput"),
    ("M", "bf16", "32 chats", "throughput"),
    ("M", "bf16", START.name, "seconds"),
    ("M", "int8", "1 chat", "decode"),
    ("M", "int8", "32 chats", "throughput"),
    ("M", "int4", "1 chat", "decode"),
    ("S", "bf16", "1 chat", "decode"),
    ("S", "bf16", "32 chats", "throughput"),
    ("guide", "bf16", "1 chat", "decode"),
)
"""Panels of the picture as (model, format, workload, figure); those that were not measured are left out."""


@dataclass(frozen=True)
class Bandwidth:
    """Read bandwidth in GB/s per buffer size in MiB: a model that fits into a cache is read from there."""

    measured: Mapping[int, float]

    @staticmethod
    def sizes(models: Sequence[BenchModel]) -> list[int]:
        """Returns the buffer sizes to measure, MiB."""
        return sorted({Bandwidth._size(model) for model in models} | {LARGE_MIB})

    @staticmethod
    def _size(model: BenchModel) -> int:
        mebibytes = max(1, round(model.weight_bytes("bf16") / 2**20))
        return mebibytes if mebibytes < LARGE_MIB // 2 else LARGE_MIB

    def of(self, model: BenchModel) -> float:
        """Returns the bandwidth in bytes per second for a model of this size."""
        return self.measured[self._size(model)] * 1e9

    def limit(self, model: BenchModel, format_: str, context: float = 0.0) -> float:
        """Returns the bandwidth bound of one chat, tokens per second."""
        return self.of(model) / model.bytes_per_token(format_, context)


@dataclass
class Report:
    """Collects the results of each measured model and format."""

    machine: Mapping[str, object]
    bandwidth: Bandwidth
    missing: Mapping[str, str]  #: missing engine -> how to install it
    rows: list[Row] = field(default_factory=list)

    def section(self, model: BenchModel, format_: str, rows: Sequence[Row]) -> str:
        """Formats one table with its heading and notes."""
        self.rows += rows
        return "\n".join(
            [
                f"{model.name}, {model.parameters / 1e6:,.0f} million parameters, {format_}: the memory bandwidth "
                f"allows {self.bandwidth.limit(model, format_):,.0f} tokens per second for one chat.",
                "",
                *format_table(self.lines(rows), list(TITLES), TITLES),
                *_notes(rows),
            ]
        )

    def lines(self, rows: Sequence[Row]) -> list[TableRow]:
        by_work: dict[str, list[Row]] = {}
        for row in rows:
            by_work.setdefault(row.work.name, []).append(row)
        lines = [
            TableRow(
                name, figure, {row.engine.name: _cell(row, figure) for row in of_work}, self._share(of_work, figure)
            )
            for name, of_work in by_work.items()
            for figure in (*of_work[0].work.figures, *((OUTSIDE,) if name == "32 chats" else ()))
        ]
        short, deep = (next((one for one in lines if one.work == name), None) for name in ("1 chat", DEEP))
        if short is not None and deep is not None:
            lines.insert(lines.index(deep) + 1, TableRow(DEEP, KEPT, _shares(deep.cells, short.cells)))
        return lines

    def _share(self, rows: Sequence[Row], figure: Metric) -> float | None:
        """Returns the share of the bandwidth that our decodes use."""
        for row in rows:
            if row.engine is OURS and figure.key == "decode" and row.bytes_per_second is not None:
                return row.bytes_per_second / self.bandwidth.of(row.model)
        return None

    def write(self, folder: Path, name: str, versions: Mapping[str, Mapping[str, str]]) -> list[Path]:
        """Writes JSON, and pictures if matplotlib is installed. Returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{name}.json"
        found: dict[str, Any] = {
            "machine": self.machine,
            "read_bandwidth_gb_s": {f"{size} MiB": value for size, value in self.bandwidth.measured.items()},
            "versions": versions,
            "missing": self.missing,
            "rows": [row.as_json() for row in self.rows],
        }
        target.write_text(json.dumps(found, indent=1) + "\n")
        if find_spec("matplotlib") is None:
            return [target]
        from benchmarks.plots import Panel, draw

        panels = []
        for model, format_, work, key in PANELS:
            rows = [row for row in self.rows if (row.model.name, row.format, row.work.name) == (model, format_, work)]
            for line in self.lines(rows):
                if line.figure.key == key and any(cell.value for cell in line.cells.values()):
                    read_at = rows[0].work.read_at if key == "decode" else None
                    limit = self.bandwidth.limit(rows[0].model, format_, read_at) if read_at is not None else None
                    panels.append(Panel(f"{model}, {format_}: {work}, {line.figure.title}", line, limit))
        pictures = [folder / f"{name}.png", folder / f"{name}.svg"] if panels else []
        if panels:
            about = self.machine
            caption = f"{about['cpu']}, {about['threads']} threads, {about['date']}. Dashed: bandwidth bound."
            draw(panels, OURS.name, TITLES, caption, pictures)
        return [target, *pictures]


def _cell(row: Row, figure: Metric) -> Cell:
    value = row.series.figures.get(figure.key)
    if value is not None:
        return Cell(value, disturbed=row.series.is_disturbed)
    return Cell(note=NOT_BUILT if row.series.problem == NOT_BUILT else "")


def _shares(cells: Mapping[str, Cell], whole: Mapping[str, Cell]) -> dict[str, Cell]:
    """Returns each engine's figure as a percentage of its figure in ``whole``."""
    return {
        name: Cell(100 * cell.value / of.value, disturbed=cell.disturbed or of.disturbed)
        for name, cell in cells.items()
        if (of := whole.get(name, Cell())).value and cell.value
    }


def _notes(rows: Sequence[Row]) -> list[str]:
    """Formats notes on failed and dropped measurements."""
    works_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        series = row.series
        said = []
        if series.problem and series.problem != NOT_BUILT:
            said.append(series.problem)
        if series.is_disturbed:
            said.append("other programs were busy in every repetition (!)")
        elif series.dropped:
            said.append(f"{series.dropped} of {len(series.repetitions)} repetitions dropped: other programs were busy")
        for what in said:
            works_of.setdefault((row.engine.title, what), []).append(row.work.name)
    every = len({row.work.name for row in rows})
    notes = [
        f"- {who} ({'everything' if len(names) == every else ', '.join(names)}): {what}."
        for (who, what), names in works_of.items()
    ]
    return ["", *notes] if notes else []
