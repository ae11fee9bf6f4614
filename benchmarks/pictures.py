"""Draws the pictures of docs/benchmarks.md from the result files that :mod:`benchmarks.documented` names.

    .venv/bin/python -m benchmarks.pictures             # part of make docs
    .venv/bin/python -m benchmarks.pictures --check     # fails if one is out of date

Plain SVG, without a plotting library: the same figures make the same file on every machine. The pictures follow the
reader's light or dark theme and are 900 units wide, about as wide as a page on GitHub.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Sequence
from math import ceil, floor, log2
from pathlib import Path

from benchmarks.documented import (
    DELAY,
    MACHINES,
    PRODUCT,
    RATE,
    SEARCH,
    Comparison,
    comparisons,
    day,
    days,
    files_in_use,
    is_ahead,
    processor,
    result,
    shown_ratio,
)
from benchmarks.product import MIN_ENGINE_SHARE, TARGET_ENGINE_SHARE

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, MARGIN = 900, 24
ROW = 22
"""Height of a bar and the space below it."""
BAR = 13

GROUPS = {RATE: "Tokens per second", DELAY: "Time to the first token"}

# Text has a contrast of 4.5 to 1 with the page at least, bars or their outlines 3 to 1. "over" hides a rule.
STYLE = """
text { font: 13px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.head { font-weight: 600 }
.small { font-size: 12px }
.soft { font-size: 12px; fill: #59636e }
.page { fill: #ffffff }
.over { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round }
.good { fill: #2f6fde }
.bad { fill: #b45309 }
.pale { fill: #a9c4f0; stroke: #2f6fde }
.rule { stroke: #d1d9e0; fill: none }
.mark { stroke: #1f2328; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.soft { fill: #9198a1 }
.page { fill: #0d1117 }
.over { stroke: #0d1117 }
.good { fill: #4b8bf5 }
.bad { fill: #e38b3f }
.pale { fill: #274b86; stroke: #4b8bf5 }
.rule { stroke: #3d444d }
.mark { stroke: #e6edf3 }
}
"""


class Picture:
    """An SVG with a title and lines of explanation on top."""

    def __init__(self, title: str, explanation: Sequence[str]) -> None:
        self._title = title
        self._parts: list[str] = []
        self.facts: list[str] = []  #: what the picture shows, in words, for readers who do not see it
        self.top = 38  #: where the next line of the picture begins
        self.text(MARGIN, self.top, title, "title")
        self.top += 4
        for line in explanation:
            self.top += 19
            self.text(MARGIN, self.top, line, "soft")

    def text(self, x: float, y: float, content: str, style: str = "", anchor: str = "start") -> None:
        attributes = f' class="{style}"' if style else ""
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{html.escape(content, quote=False)}</text>')

    def bar(self, x: float, y: float, width: float, style: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{BAR}" rx="2" class="{style}"/>'
        )

    def panels(self, label_width: float, gap: float, titles: Sequence[str]) -> tuple[list[float], float]:
        """Divides the width right of the rows' labels into panels, and writes a title over each.

        Returns:
            Where each panel begins, and how wide they are.
        """
        width = (WIDTH - 2 * MARGIN - label_width - gap * (len(titles) - 1)) / len(titles)
        lefts = [MARGIN + label_width + index * (width + gap) for index in range(len(titles))]
        self.top += 34
        for left, title in zip(lefts, titles, strict=True):
            self.text(left, self.top, title, "head")
        return lefts, width

    def line(self, x: float, top: float, bottom: float, style: str) -> None:
        self._parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" class="{style}"/>')

    def svg(self) -> str:
        height = self.top + MARGIN
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
        page = f'<rect width="{WIDTH}" height="{height:.0f}" class="page"/>'
        title = f"<title>{html.escape(self._title, quote=False)}</title>"
        facts = f"<desc>{html.escape('; '.join(self.facts), quote=False)}.</desc>"
        return "\n".join([head, title, facts, f"<style>{STYLE}</style>", page, *self._parts, "</svg>", ""])


def engine_picture() -> str:
    """Returns the engine beside its best peer: a row for each work, a panel for each kind of processor."""
    picture = Picture(
        "Deskmate's engine beside the best peer of the same run",
        [
            "How many times as fast as the peer named at the right, on two threads; blue where Deskmate is faster.",
            "Model M, 473 million parameters, bfloat16 unless a row says otherwise. Each line doubles the ratio.",
            "≈ where a repetition of the slower one was as fast as one of the faster.",
        ],
    )
    rows = comparisons()
    ratios = [cell.ratio for _, cells in rows for cell in cells if cell is not None]
    lowest, highest = log2(min(1.0, *ratios)), log2(max(1.0, *ratios))
    lefts, panel = picture.panels(label_width=222, gap=28, titles=[machine.title for machine in MACHINES])
    ratio_width, peer_width = 40, 78
    unit = (panel - ratio_width - peer_width) / (highest - lowest)  # a bar's length for twice the speed
    for left, machine in zip(lefts, MACHINES, strict=True):
        picture.text(left, picture.top + 17, days(files_in_use(machine)), "soft")
    picture.top += 24
    first_row = picture.top
    last_row = first_row + ROW * len(rows) + 30 * len({work.group for work, _ in rows})
    ticks = range(ceil(lowest), floor(highest) + 1)
    for left in lefts:
        for tick in ticks:
            x = left + unit * (tick - lowest)
            picture.line(x, first_row, last_row, "mark" if tick == 0 else "rule")
            picture.text(x, last_row + 15, f"{2.0**tick:g}×", "soft", "middle")
    group = ""
    for work, cells in rows:
        if work.group != group:
            group = work.group
            picture.top += 22
            picture.text(MARGIN, picture.top, GROUPS[group], "head")
            picture.top += 8
        middle = picture.top + ROW / 2
        picture.text(MARGIN, middle + 4.5, work.title)
        for left, cell in zip(lefts, cells, strict=True):
            _ratio_bar(picture, left - unit * lowest, middle, unit, left + panel, cell)
        shown = zip(MACHINES, cells, strict=True)
        known = [f"{shown_ratio(cell)} on {machine.title}" for machine, cell in shown if cell is not None]
        picture.facts.append(f"{GROUPS[group]}, {work.title}: {', '.join(known)}")
        picture.top += ROW
    picture.top += 15
    return picture.svg()


def _ratio_bar(picture: Picture, one: float, middle: float, unit: float, right: float, cell: Comparison | None) -> None:
    """Draws a bar that begins where the ratio is 1, at ``one``, and ends at the ratio."""
    if cell is None:
        picture.text(one + 8, middle + 4.5, "not measured", "soft over")
        return
    length = unit * log2(cell.ratio)
    style = "good" if is_ahead(cell.ratio) else "bad"
    picture.bar(one + min(0.0, length), middle - BAR / 2, abs(length), style)
    number_style = "head small over" if is_ahead(cell.ratio) else "head small bad over"
    picture.text(one + max(0.0, length) + 7, middle + 4.5, shown_ratio(cell), number_style)
    picture.text(right, middle + 4.5, cell.peer_name, "soft", "end")


def product_picture() -> str:
    """Returns the whole product's share of the engine's speed, and the wait for a reply's first text."""
    newest = PRODUCT[0]
    runs = {name: result(file) for name, file in newest.items()}
    asked = next(iter(runs.values()))["asked"]
    picture = Picture(
        "How much of the engine's speed the whole product keeps",
        [
            f"{asked['people']} users chat at once with the bundled guide, on two threads of "
            f"{processor(runs.values())}; medians of {asked['repeats']}, {days(list(newest.values()))}.",
        ],
    )
    names, bars, right = MARGIN, MARGIN + 92, 600
    share_width, wait_width = 270, 190
    picture.top += 36
    picture.text(bars, picture.top, "Share of the engine's tokens per second", "head")
    picture.text(right, picture.top, "Wait for the first text, milliseconds", "head")
    picture.top += 20
    goals = ((MIN_ENGINE_SHARE, "goal", "end"), (TARGET_ENGINE_SHARE, "aim", "start"))
    for goal, name, anchor in goals:
        picture.text(bars + share_width * goal, picture.top, f"{name} {goal:.0%}".replace("%", " %"), "soft", anchor)
    _legend(picture, right, picture.top)
    picture.top += 8
    first_row = picture.top
    longest = max(run["medians"]["the whole product"]["first_text_p95_ms"] for run in runs.values())
    for name, run in runs.items():
        middle = picture.top + ROW / 2 + 3
        share, product = run["share_of_engine"], run["medians"]["the whole product"]
        picture.text(names, middle + 4.5, name)
        picture.bar(bars, middle - BAR / 2, share_width * share, "good" if share >= MIN_ENGINE_SHARE else "bad")
        picture.text(bars + share_width + 10, middle + 4.5, f"{100 * share:.1f} %", "head small")
        picture.text(bars + share_width + 58, middle + 4.5, f"{product['tokens_per_s']:,.0f} per second", "soft")
        waits = product["first_text_p50_ms"], product["first_text_p95_ms"]
        _wait_bar(picture, right, middle, wait_width / longest, *waits)
        picture.facts.append(
            f"{name} keeps {100 * share:.1f} %, {product['tokens_per_s']:,.0f} tokens per second; the first text comes "
            f"after {waits[0]:.0f} ms, 95th percentile {waits[1]:.0f}"
        )
        picture.top += ROW + 6
    picture.line(bars, first_row, picture.top, "rule")
    picture.line(right, first_row, picture.top, "rule")
    for goal, _, _ in goals:
        picture.line(bars + share_width * goal, first_row - 4, picture.top, "mark")
    return picture.svg()


def search_picture() -> str:
    """Returns how long a search of the knowledge base takes, by number of chunks, kind of search and database."""
    run = result(SEARCH)
    picture = Picture(
        "How long a search of the knowledge base takes",
        [
            "Milliseconds by number of chunks; 200 queries of six words, some misspelt or with synonyms.",
            f"Two threads of {processor([run])}, {day(SEARCH)}, with nothing else to do.",
        ],
    )
    kinds = (("text", "By words"), ("dense", "By meaning"), ("fused", "By both"))
    rows = [
        (f"{title}, {int(run[size][name]['chunks']):,}", run[size][name])
        for name, title in (("sqlite", "SQLite"), ("postgresql", "PostgreSQL"))
        for size in ("a_tenth", "databases")
    ]
    lefts, panel = picture.panels(label_width=150, gap=22, titles=[title for _, title in kinds])
    number_width = 66
    unit = (panel - number_width) / max(figures[f"{kind}_p95_ms"] for _, figures in rows for kind, _ in kinds)
    _legend(picture, MARGIN, picture.top)
    picture.top += 8
    first_row = picture.top
    for name, figures in rows:
        middle = picture.top + ROW / 2 + 2
        picture.text(MARGIN, middle + 4.5, name)
        for left, (kind, _) in zip(lefts, kinds, strict=True):
            _wait_bar(picture, left, middle, unit, figures[f"{kind}_p50_ms"], figures[f"{kind}_p95_ms"])
        waits = [f"{title.lower()} {figures[f'{kind}_p50_ms']:.0f} ms" for kind, title in kinds]
        picture.facts.append(f"{name} chunks: {', '.join(waits)} in the median")
        picture.top += ROW + 2
    for left in lefts:
        picture.line(left, first_row, picture.top + 2, "rule")
    return picture.svg()


def _wait_bar(picture: Picture, left: float, middle: float, unit: float, p50: float, p95: float) -> None:
    """Draws a bar up to the 95th percentile, dark up to the median."""
    picture.bar(left, middle - BAR / 2, unit * p95, "pale")
    picture.bar(left, middle - BAR / 2, unit * p50, "good")
    picture.text(left + unit * p95 + 7, middle + 4.5, f"{p50:.0f} / {p95:.0f}", "small")


def _legend(picture: Picture, left: float, base: float) -> None:
    picture.bar(left, base - 10, 13, "good")
    picture.text(left + 18, base, "half", "soft")
    picture.bar(left + 50, base - 10, 13, "pale")
    picture.text(left + 68, base, "95 % of them", "soft")


PICTURES = {
    "benchmarks-engine.svg": engine_picture,
    "benchmarks-product.svg": product_picture,
    "benchmarks-search.svg": search_picture,
}
"""File in docs/ -> what draws it."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture is out of date")
    args = parser.parse_args(arguments)
    for name, draw in PICTURES.items():
        file, wanted = DOCS / name, draw()
        if not args.check:
            file.write_text(wanted, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{name} is out of date: run make docs.")


if __name__ == "__main__":
    main()
