"""The figures in docs/benchmarks.md are those in benchmarks/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def table(section: str, position: int = 0) -> list[list[str]]:
    """The cells of a table of a section, its header first."""
    paragraphs = PAGE.split(f"## {section}\n")[1].split("\n#")[0].split("\n\n")
    lines = [paragraph for paragraph in paragraphs if paragraph.startswith("|")][position].splitlines()
    return [re.split(r" *\| *", line)[1:-1] for line in lines if not line.startswith("| ---")]


def figures_of(rows: list[dict[str, Any]], *, own: bool) -> list[float]:
    """All that was measured of Deskmate, or of its peers."""
    return [
        figure
        for row in rows
        if (row["engine"] == "deskmate") == own and row["figures"]
        for figure in row["figures"].values()
    ]


def as_shown(measured: float, cell: str) -> bool:
    """Whether ``cell`` is that figure, rounded as the cell is."""
    return cell == f"{measured:,.{len(cell.partition('.')[2])}f}"


@pytest.mark.parametrize(
    ("section", "date", "num_rows"), [("With AMX", "2026-11-22", 12), ("Another Xeon with AMX", "2026-11-26", 13)]
)
def test_every_figure_beside_a_peer_is_one_of_its_run(section: str, date: str, num_rows: int) -> None:
    rows = table(section)[1:]
    assert len(rows) == num_rows
    for work, own, peer, ratio, run in rows:
        measured = results(f"{date}-bench-amx-{run.split('`')[1]}")["rows"]
        theirs = peer.split()[-1]
        for cell, is_own in ((own, True), (theirs, False)):
            assert any(as_shown(figure, cell) for figure in figures_of(measured, own=is_own)), (work, cell)
        quotient = float(own.replace(",", "")) / float(theirs.replace(",", ""))
        is_time = "token," in work or "first token" in work
        assert float(ratio) == pytest.approx(1 / quotient if is_time else quotient, rel=0.015), work


@pytest.mark.parametrize(
    ("position", "name", "num_rows"), [(1, "2026-11-27-bench-amx-bursts", 11), (2, "2026-11-28-bench-amx-packing", 6)]
)
def test_every_figure_beside_vllm_is_one_of_its_run(position: int, name: str, num_rows: int) -> None:
    rows = table("Another Xeon with AMX", position)[1:]
    measured = results(name)["rows"]
    assert len(rows) == num_rows
    for work, *cells, ratio in rows:
        shown = []
        for cell, is_own in zip(cells, (True, False), strict=True):
            share = 100 if "multiple" in work else 1
            number = cell.removesuffix(" %")
            close = [each / share for each in figures_of(measured, own=is_own) if as_shown(each / share, number)]
            assert close, (work, cell)
            shown.append(close[0])
        if ratio:
            quotient = shown[0] / shown[1] if "per second" in work or work == "32 chats" else shown[1] / shown[0]
            assert float(ratio) == pytest.approx(quotient, rel=0.01), work


def test_every_figure_without_amx_is_one_of_its_run() -> None:
    rows = table("An EPYC without AMX")[1:]
    assert len(rows) == 13
    works = {
        "128": "1 chat",
        "1,024": "prompt of 1,024",
        "3,900": "context of 3,900",
        "second": "second turn after 2,000",
    }
    works |= {"one": "1 chat", "8": "8 chats", "32": "32 chats"}
    formats = {"8 bits": "int8", "4 bits": "int4"}

    def ratio_in(run: str, work: str, peer: str) -> tuple[float, float, float]:
        """Deskmate's figure, the peer's, and how many times better Deskmate's is."""
        name = next(name for part, name in works.items() if re.search(rf"(^|of ){part}", work))
        number_format = next((each for label, each in formats.items() if label in work), "bf16")
        is_time = "first token" in work
        figures = []
        for engine in ("deskmate", peer.split()[0].lower()):
            (row,) = (
                row
                for row in results(f"2026-11-27-bench-epyc-{run}")["rows"]
                if (row["engine"], row["work"], row["format"]) == (engine, name, number_format)
            )
            figures.append(row["figures"]["ttft" if is_time else "decode" if name == "1 chat" else "throughput"])
        own, theirs = figures
        return own, theirs, theirs / own if is_time else own / theirs

    for work, own, peer, ratio, before, run in rows:
        measured, theirs, quotient = ratio_in(run.strip("`"), work, peer)
        assert as_shown(measured, own), work
        assert as_shown(theirs, peer.split()[-1]), work
        assert float(ratio) == pytest.approx(quotient, abs=0.0051), work
        if before:
            assert float(before) == pytest.approx(ratio_in("before", work, peer)[2], abs=0.0051), work


def test_every_figure_beside_all_peers_is_that_of_its_run() -> None:
    """Every figure of the table, and no figure where none was measured."""
    header, *rows = table("Without AMX")
    engines = dict(zip(header[2:], ("deskmate", "transformers", "llama.cpp", "vllm-eager"), strict=True))
    models = {"M, 473 M parameters": ("m", "M"), "M, in 8 bits": ("m-int8", "M"), "S, 32 M parameters": ("small", "S")}
    models["the guide, 4 M parameters"] = ("small", "guide")
    works = {"one chat, decode": "1 chat", "8 chats at once": "8 chats", "32 chats at once": "32 chats"}
    assert len(rows) == 8
    for model, work, *shown in rows:
        name, label = models[model]
        measured_rows = results(f"2026-11-22-bench-{name}")["rows"]
        of_work = [row for row in measured_rows if (row["model"], row["work"]) == (label, works[work])]
        figures = {row["engine"]: row["figures"] for row in of_work}
        for engine, cell in zip(engines.values(), shown, strict=True):
            measured = figures.get(engine, {}).get("decode" if work == "one chat, decode" else "throughput")
            assert cell == "" if measured is None else as_shown(measured, cell), (model, work, engine)


def test_every_figure_of_long_contexts_is_that_of_its_run() -> None:
    after, before = (results(f"2026-11-25-context-speed{suffix}")["rows"] for suffix in ("", "-before"))
    rows = table("Long contexts")[1:]
    assert len(rows) == 4
    for index, (cache, chats, short, long, speed, speed_before, equal) in enumerate(rows):
        shallow, deep = after[2 * index : 2 * index + 2]
        assert (shallow["kv_cache_dtype"], shallow["chats"]) == ("int8" if cache == "int8" else "auto", int(chats))
        assert as_shown(shallow["milliseconds"], short)
        assert as_shown(deep["milliseconds"], long)
        assert as_shown(deep["speed"], speed)
        assert as_shown(before[2 * index + 1]["speed"], speed_before)
        weights = 946
        assert as_shown((weights + shallow["cache_megabytes"]) / (weights + deep["cache_megabytes"]), equal)


def test_the_figures_of_the_knowledge_base_are_those_of_its_run() -> None:
    run = results("2026-11-25-knowledge")
    encoding, dense = run["encoding"], run["dense"]
    measured = [
        encoding["chunks_per_second"],
        1000 * encoding["cpu_seconds"] / encoding["chunks"],
        encoding["query_p95_ms"],
        dense["all_p50_ms"],
        dense["all_p95_ms"],
        dense["one_of_ten_p95_ms"],
        dense["megabytes"],
    ]
    rows = table("Knowledge")[1:]
    cells = [row[1] for row in rows[: len(measured)]]
    assert len(cells) == len(measured)
    assert all(as_shown(figure, cell) for figure, cell in zip(measured, cells, strict=True))


def test_the_whole_product_is_shown_as_it_was_measured() -> None:
    _header, *rows = table("The whole product")
    for column, kind in enumerate(("sqlite", "postgresql"), start=1):
        found = results(f"2026-11-28-product-{kind}")
        engine, product = found["medians"]["the engine alone"], found["medians"]["the whole product"]
        measured = (
            (engine["tokens_per_s"],),
            (product["tokens_per_s"],),
            (100 * found["share_of_engine"],),
            (product["delivery_p50_ms"], product["delivery_p95_ms"]),
            (product["first_text_p50_ms"], product["first_text_p95_ms"]),
        )
        for row, figures in zip(rows, measured, strict=True):
            cells = row[column].removesuffix(" %").split(" / ")
            assert all(as_shown(figure, cell) for figure, cell in zip(figures, cells, strict=True)), row
