"""Draws a loss curve as an SVG picture, without any package, so that every ``make guide`` can show one."""

from __future__ import annotations

import csv
import math
from pathlib import Path

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 14, 44
_POINTS = 600  # of the curve; neighbours are averaged
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


def draw(log: Path, picture: Path) -> None:
    """Draw the losses of ``log`` (CSV with columns ``tokens`` and ``loss``) over the tokens, on a logarithmic scale.

    The picture is replaced at once: a viewer never sees half of it.
    """
    with log.open(encoding="utf-8") as file:
        rows = [(int(row["tokens"]), float(row["loss"])) for row in csv.DictReader(file)]
    if not rows:
        return
    group = math.ceil(len(rows) / _POINTS)
    groups = [rows[i : i + group] for i in range(0, len(rows), group)]
    # The mean of logarithms: on this scale, one bad step among good ones must not look like many.
    points = [
        (part[-1][0], math.exp(sum(math.log(max(loss, 1e-9)) for _, loss in part) / len(part))) for part in groups
    ]
    max_tokens = points[-1][0]
    low, high = min(loss for _, loss in points) * 0.9, max(loss for _, loss in points) * 1.1

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / max_tokens

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(high / loss) / math.log(high / low)

    lines: list[str] = []
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        lines.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        at = x(max_tokens * share)
        lines.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        anchor = "end" if share == 1 else "middle"
        label = f"{max_tokens * share / 1e6:.1f}"
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{label}</text>')
    curve = " ".join(f"{x(tokens):.1f},{y(loss):.1f}" for tokens, loss in points)
    middle = (LEFT + WIDTH - RIGHT) / 2
    svg = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">
<style>text {{ font: 12px sans-serif; fill: #444 }} .grid {{ stroke: #ddd; fill: none }}</style>
<rect width="100%" height="100%" fill="#fff"/>
{chr(10).join(lines)}
<polyline points="{curve}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>
<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">million tokens</text>
<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">loss on replies</text>
</svg>
"""
    part = picture.with_suffix(".part")
    part.write_text(svg, encoding="utf-8")
    part.replace(picture)
