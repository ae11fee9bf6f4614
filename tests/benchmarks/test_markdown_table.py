"""The table's ratios say who is ahead, whichever way a figure is read."""

from __future__ import annotations

import pytest

from benchmarks.markdown_table import Cell, TableRow, format_number, format_table
from benchmarks.quantiles import quantile
from benchmarks.workloads import Metric

RATE = Metric("decode", "decode", "tok/s", True)
DELAY = Metric("ttft", "first token", "ms", False)
TITLES = {"ours": "Ours", "a": "Peer A", "b": "Peer B", "c": "Peer C"}


def line(figure: Metric, ours: float | None, **others: float | None) -> TableRow:
    cells = {name: Cell(value) for name, value in {"ours": ours, **others}.items()}
    return TableRow("1 chat", figure, cells, 0.5 if figure is RATE else None)


@pytest.mark.parametrize(
    ("asked", "ratio"),
    [
        (line(RATE, 30.0, a=20.0, b=10.0), (1.5, "a")),
        (line(RATE, 30.0, a=20.0, b=60.0), (0.5, "b")),
        (line(DELAY, 100.0, a=50.0, b=400.0), (0.5, "a")),
        (line(DELAY, 100.0, a=200.0, b=None), (2.0, "a")),
        (line(RATE, None, a=1.0), None),
        (line(RATE, 1.0, a=None), None),
    ],
)
def test_above_one_ours_is_ahead_of_the_best_other(asked: TableRow, ratio: tuple[float, str] | None) -> None:
    assert asked.ratio("ours") == ratio


def test_the_table_says_what_is_missing_and_what_was_disturbed() -> None:
    cells = {"ours": Cell(note="not built"), "a": Cell(1234.5, disturbed=True), "b": Cell()}
    heading, rule, first, second = format_table(
        [line(RATE, 30.0, a=20.0), TableRow("8 chats", RATE, cells)], list(TITLES), TITLES
    )

    def cells_of(row: str) -> list[str]:
        return [cell.strip() for cell in row.split("|")[1:-1]]

    assert cells_of(heading) == ["Work", "Figure", "Ours", "Peer A", "Ratio", "Bandwidth"]
    assert cells_of(first)[2:] == ["30.0", "20.0", "1.50x of Peer A", "50%"]
    assert cells_of(second)[2:] == ["not built", "1,234!", "", ""]
    assert len({len(heading), len(rule), len(first), len(second)}) == 1


def test_numbers_have_three_digits_that_count() -> None:
    assert [format_number(value) for value in (0.01234, 1.005, 9.999, 99.96, 123.4, 1_234_567, 0)] == [
        "0.0123",
        "1.00",
        "10.0",
        "100",
        "123",
        "1,234,567",
        "0",
    ]


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.5, 0.95, 1)] == [1, 2.5, pytest.approx(3.85), 4]
    assert quantile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)
