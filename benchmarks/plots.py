"""Plots the bench's figures: a panel per figure, a bar per engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from benchmarks.markdown_table import TableRow, format_number

matplotlib.use("agg")
from matplotlib import pyplot

OURS, OTHERS = "#2f6fde", "#b9bfc9"
COLUMNS = 3


@dataclass(frozen=True)
class Panel:
    title: str
    line: TableRow
    limit: float | None = None  #: bound from the memory bandwidth, in the figure's unit


def draw(panels: Sequence[Panel], ours: str, titles: Mapping[str, str], caption: str, targets: Sequence[Path]) -> None:
    rows = -(-len(panels) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(4.4 * COLUMNS, 2.3 * rows + 0.5), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        shown = [(name, cell.value) for name, cell in panel.line.cells.items() if cell.value]
        shown.reverse()  # barh draws from the bottom up
        colours = [OURS if name == ours else OTHERS for name, _ in shown]
        bars = axis.barh([titles[name] for name, _ in shown], [value for _, value in shown], color=colours, height=0.7)
        axis.bar_label(bars, [format_number(value) for _, value in shown], padding=3, fontsize=8)
        if panel.limit is not None:
            axis.axvline(panel.limit, color="#c0392b", linewidth=1, linestyle="--")
        longest = max([value for _, value in shown] + ([panel.limit] if panel.limit is not None else []))
        axis.set_xlim(0, 1.18 * longest)
        better = "more is better" if panel.line.figure.higher_is_better else "less is better"
        unit = panel.line.figure.unit
        axis.set_title(f"{panel.title}\n{unit + ', ' if unit else ''}{better}", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.005, caption, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    for target in targets:
        figure.savefig(target, dpi=150)
    pyplot.close(figure)


def draw_lines(
    times: Sequence[float], values: Mapping[str, Sequence[float]], unit: str, caption: str, targets: Sequence[Path]
) -> None:
    """Plots values over time, a panel per value."""
    rows = -(-len(values) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(4.4 * COLUMNS, 2.3 * rows + 0.5), squeeze=False)
    for axis in axes.flat[len(values) :]:
        axis.set_visible(False)
    for axis, (name, line) in zip(axes.flat, values.items(), strict=False):
        axis.plot(times, line, color=OURS, linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_title(name.replace("_", " "), fontsize=9, loc="left")
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.005, caption, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    for target in targets:
        figure.savefig(target, dpi=150)
    pyplot.close(figure)
