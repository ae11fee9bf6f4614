"""Formats the bench's table: a row per figure, a column per engine, and the ratio of ours to the best peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.workloads import Metric


@dataclass(frozen=True)
class Cell:
    """One engine's figure, or a note in its place."""

    value: float | None = None
    note: str = ""  #: printed instead of a missing value
    disturbed: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return self.note or "–"
        return format_number(self.value) + ("!" if self.disturbed else "")


@dataclass(frozen=True)
class TableRow:
    work: str
    figure: Metric
    cells: Mapping[str, Cell]  #: engine -> cell
    bandwidth: float | None = None  #: share of the memory bandwidth that our engine uses

    def ratio(self, ours: str) -> tuple[float, str] | None:
        """Returns how many times better ours is than the best peer, and that peer's name. None if either is missing."""
        own = self.cells.get(ours, Cell()).value
        others = [(cell.value, name) for name, cell in self.cells.items() if name != ours and cell.value]
        if not own or not others:
            return None
        value, name = (max if self.figure.higher_is_better else min)(others)
        return (own / value if self.figure.higher_is_better else value / own), name


def format_number(value: float) -> str:
    """Formats a number with three significant digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - _magnitude(value))
    return f"{value:,.{digits}f}"


def _magnitude(value: float) -> int:
    return int(f"{value:.2e}".partition("e")[2])


def format_table(lines: Sequence[TableRow], engines: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    """Formats a Markdown table with columns aligned in the source. Engines without any figure have no column."""
    ours = engines[0]
    said = {name for line in lines for name, cell in line.cells.items() if str(cell) != "–"}
    shown = [name for name in engines if name == ours or name in said]
    rows = [["Work", "Figure", *(titles[name] for name in shown), "Ratio", "Bandwidth"]]
    for line in lines:
        ratio = line.ratio(ours)
        rows.append(
            [
                line.work,
                f"{line.figure.title}, {line.figure.unit}".removesuffix(", "),
                *(str(line.cells.get(name, Cell())) for name in shown),
                f"{ratio[0]:.2f}x of {titles[ratio[1]]}" if ratio else "",
                f"{line.bandwidth:.0%}" if line.bandwidth is not None else "",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = {0, 1}
    rule = ["-" * width if column in left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    rows.insert(1, rule)
    return [
        "| "
        + " | ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
