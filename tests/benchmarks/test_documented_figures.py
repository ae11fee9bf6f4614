"""The figures in docs/benchmarks.md are those in benchmarks/results.

Tables are made of the result files (``benchmarks/documented.py``; ``tests/test_docs.py`` compares them). Here are the
sentences.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.documented import (
    DELAY,
    DESK,
    MACHINES,
    PRODUCT,
    RESULTS,
    WORKS,
    Comparison,
    Machine,
    Work,
    compare,
    comparisons,
    day,
    days,
    files_in_use,
    is_ahead,
    processor,
    result,
)
from benchmarks.product import MIN_ENGINE_SHARE, TARGET_ENGINE_SHARE

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split())


def says(*texts: str) -> None:
    for text in texts:
        assert text in PAGE, f"docs/benchmarks.md does not say: {text}"


def figures(file: str, engine: str, work: str, model: str = "M", number_format: str = "bf16") -> dict[str, float]:
    """The medians of an engine with a work."""
    wanted = (engine, work, model, number_format)
    rows = result(file)["rows"]
    (row,) = [row for row in rows if (row["engine"], row["work"], row["model"], row["format"]) == wanted]
    medians: dict[str, float] = row["figures"]
    return medians


def found(machine: Machine, work: Work) -> Comparison:
    comparison = compare(machine, work)
    assert comparison is not None, (machine.title, work)
    return comparison


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def test_every_result_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(20\d\d-\d\d-\d\d-[\w-]+)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not (RESULTS / f"{name}.json").exists()] == []


def test_the_files_of_the_product_and_of_the_desk_are_named() -> None:
    for first, second in (PRODUCT.values(), DESK.values()):
        says(f"`{first}` and `-postgresql`")
        assert second == f"{first.removesuffix('-sqlite')}-postgresql"


def test_what_is_not_ahead_is_said() -> None:
    behind = {
        (machine.title, work.title)
        for work, cells in comparisons()
        for machine, cell in zip(MACHINES, cells, strict=True)
        if cell is not None and not is_ahead(cell.ratio)
    }
    titles = ("prompt of 1,024", "prompt of 3,900", "prompt of 4,000 beside 4 chats")
    assert behind == {("Xeon with AMX", title) for title in titles}
    amx, epyc = MACHINES
    works = {work.title: work for work in WORKS}
    short, long, beside = (found(amx, works[title]) for title in titles)
    assert {short.peer_name, long.peer_name, beside.peer_name} == {"vLLM"}
    assert long.own == pytest.approx(long.peer, rel=0.004)
    gaps, gaps_there = (found(machine, Work(DELAY, "", "a prompt of 4,000 comes", "gap")) for machine in (amx, epyc))
    says(
        f"The first token of a prompt of 1,024 takes {short.own:.0f} ms, vLLM's {short.peer:.0f}; "
        "that of 3,900 takes as long as vLLM's.",
        f"first token after {beside.own / 1000:.1f} s, vLLM's after {beside.peer / 1000:.1f}.",
        f"is {gaps.peer:,.0f} ms, with Deskmate {gaps.own:.0f} "
        f"(on the EPYC {gaps_there.peer:,.0f} and {gaps_there.own:.0f})",
    )


def test_the_other_runs_with_amx_are_quoted() -> None:
    slow = "2026-11-28-bench-amx-packing"
    ratios = []
    for work in ("prompt of 1,024", "a prompt of 4,000 comes"):
        own, peer = (figures(slow, engine, work)["ttft"] for engine in ("deskmate", "vllm"))
        ratios.append(f"{peer / own:.2f}")
    says(f"were {ratios[0]} and {ratios[1]}, but vLLM's")
    rows = result(slow)["rows"]
    (row,) = [row for row in rows if (row["engine"], row["work"]) == ("vllm", "prompt of 1,024")]
    first_tokens = [one["ttft"] for one in row["repetitions"]]
    says(f"repetitions differed by {percent(max(first_tokens) / min(first_tokens) - 1)}")
    older = "2026-11-26-bench-amx-bf16"
    own_decode = figures(older, "deskmate", "1 chat")["decode"]
    peer_figures = figures(older, "llama.cpp", "1 chat")
    says(
        f"decoded one chat at {peer_figures['decode']:.1f} tokens per second beside Deskmate's {own_decode:.1f}",
        f"first token of a prompt of 128 came after {peer_figures['ttft']:,.0f} ms",
    )


def test_the_other_models_and_starts() -> None:
    native, plain = "2026-11-22-bench-small", "2026-11-21-bench-small"
    rate = {
        (file, model): figures(file, "deskmate", "1 chat", model)["decode"]
        for file in (native, plain)
        for model in ("S", "guide")
    }
    peer = figures(native, "transformers", "1 chat", "S")["decode"]
    says(
        f"{peer:.1f} tokens per second for one chat, Deskmate {rate[native, 'S']:.0f}",
        f"model S has {rate[plain, 'S']:.1f} tokens per second instead of {rate[native, 'S']:.0f}, "
        f"and with the guide {rate[plain, 'guide']:.0f} instead of {rate[native, 'guide']:,.0f}",
    )
    (guide, _) = result("2026-11-25-bench-guide")["rows"]
    assert (guide["engine"], guide["dropped"], len(guide["repetitions"])) == ("deskmate", 6, 10)
    says("six of its ten repetitions were dropped")
    own, other = (
        figures("2026-11-22-bench-amx-start", name, "second start")["seconds"] for name in ("deskmate", "vllm")
    )
    says(f"first token after {own:.1f} s with model M, vLLM's after {other:.0f}")
    start = result("2026-11-24-startup")["medians"]["this checkout"]
    says(
        f"the page answers after {start['page answers, s']:.1f} s, "
        f"and the first token comes after {start['first token, s']:.1f} s"
    )
    mixed = {row["beside"]: percent(row["ratio"]) for row in result("2026-11-26-mixed-rows")["rows"]}
    says(
        f"31 plain chats keep {mixed['penalties']} of their speed beside one with penalties, "
        f"{mixed['log-probabilities']} with log-probabilities, {mixed['schema']} with a schema, "
        f"{mixed['adapter']} with an adapter"
    )


def test_long_contexts_and_structured_output() -> None:
    kept = [percent(row["speed"]) for row in result("2026-11-25-context-speed")["rows"][1::2]]
    says(
        f"one chat keeps {kept[0]} of the speed it has after 128, and {kept[2]} with a cache in 8 bits; "
        f"three chats keep {kept[1].removesuffix(' %')} and {kept[3]}"
    )
    many, few = result("2026-11-25-structured-32"), result("2026-11-25-structured")
    (free,), (dictated,) = many["speed"], many["speed_dictated"]
    one, eight, _ = few["speed_dictated"]
    compiling = many["compiling"]
    says(
        f"32 chats keep {percent(free['ratio'], 1)} of their speed with free strings, "
        f"and {percent(dictated['ratio'], 1)} with records",
        f"is {one['ratio']:.1f} times as fast as a free one, and eight are {eight['ratio']:.1f} times",
        f"takes {compiling['p50_ms']:.1f} ms, p95 {compiling['p95_ms']:.1f}",
    )


def test_the_whole_product() -> None:
    runs = [result(file) for file in PRODUCT.values()]
    shares = [run["share_of_engine"] for run in runs]
    assert MIN_ENGINE_SHARE <= shares[0] < TARGET_ENGINE_SHARE
    assert shares[1] < MIN_ENGINE_SHARE
    says(
        f"PostgreSQL misses the goal of {percent(MIN_ENGINE_SHARE)}, "
        f"and both miss the aim of {percent(TARGET_ENGINE_SHARE)}"
    )
    alone = [run["medians"]["the engine alone"]["tokens_per_s"] for run in runs]
    says(f"The engine alone writes {alone[0]:,.0f} and {alone[1]:,.0f} tokens per second")
    sqlite, postgresql = (run["medians"]["the whole product"] for run in runs)
    says(
        f"used {sqlite['cores']:.1f} of the two cores on SQLite and {postgresql['cores']:.1f} on PostgreSQL, "
        f"whose own processes took {postgresql['database_cores']:.2f}",
        f"it takes {sqlite['delivery_p50_ms']:.0f} ms, "
        f"p95 {sqlite['delivery_p95_ms']:.0f} and {postgresql['delivery_p95_ms']:.0f}",
    )
    assert round(postgresql["delivery_p50_ms"]) == round(sqlite["delivery_p50_ms"])
    asked = runs[0]["asked"]
    says(
        f"Two threads of {processor(runs)} and the guide",
        f"{asked['people']} users",
        f"`--seconds {asked['seconds']:.0f} --repeats {asked['repeats']}`",
    )
    repetitions = [one for run in runs for series in run["repetitions"].values() for one in series]
    assert all(one["counts"] for one in repetitions)
    says("No repetition was dropped.")


def test_load_over_http() -> None:
    rates = result("2026-11-22-serve")["rates"]
    slow, fast, much = (rates[rate]["ttft_ms"] for rate in ("5", "15", "30"))
    says(
        f"the first text comes after {slow['p50']:.0f} ms, p95 {slow['p95']:.0f}, "
        f"at 15 after {fast['p50']:.0f} and {fast['p95']:.0f}"
    )
    assert round(much["p50"] / 1000) == 1


def test_fairness() -> None:
    run = result("2026-11-24-fairness")
    attacks = {others: [load[others] for load in run["loads"].values()] for others in ("1", "10", "10 as one user")}

    def waits(others: str) -> tuple[str, str]:
        times = [one["ttft_ms"] for one in attacks[others]]
        medians = sorted(one["median"] for one in times)
        return f"{medians[0]:.0f} to {medians[-1]:.0f} ms", f"{max(one['max'] for one in times) / 1000:.2g} s"

    assert {one["max_steps"] for others in ("1", "10") for one in attacks[others]} == {1}
    (ten, ten_longest), (one, one_longest), alone = waits("10"), waits("1"), run["alone"]["ttft_ms"]
    says(
        f"With ten it took {ten} (medians; longest {ten_longest}), with one {one} (longest {one_longest}), "
        f"alone {alone['median']:.0f} ms (longest {alone['max'] / 1000:.2f} s)"
    )
    in_order = sorted(one["ttft_ms"]["median"] / 1000 for one in attacks["10 as one user"])
    says(f"In order of arrival it took {in_order[0]:.1f} to {in_order[-1]:.0f} s")
    busy = [one["others_share_of_cpu"] for group in attacks.values() for one in group]
    says(f"of which other programs used {100 * min(busy):.0f} to {percent(max(busy))}")

    structured = result("2026-11-25-abuse-structured")["attacks"]
    gaps = {kind: [one["gap_ms"][kind]["p95"] for one in structured] for kind in ("attack", "control")}
    longest = max(one["gap_ms"]["attack"]["max"] for one in structured)
    says(
        f"is {min(gaps['attack']):.0f} to {max(gaps['attack']):.0f} ms, beside as many plain chats "
        f"{min(gaps['control']):.0f} to {max(gaps['control']):.0f}; the longest was {longest:.0f} ms"
    )
    assert all(failures == 0 for one in structured for failures in one["victim_failures"].values())


def test_saving_and_accepting() -> None:
    saving = result("2026-11-21-persistence")["databases"]
    taken = [percent(saving[name]["64 replies"]["share_taken_by_saving"], 1) for name in ("sqlite", "postgresql")]
    says(f"takes {taken[0]} of the throughput on SQLite and {taken[1]} on PostgreSQL")
    times = result("2026-11-24-acceptance")["milliseconds"]
    says(
        f"accepted in {times['40 messages']['both']:.0f} ms in a chat of 40 messages "
        f"and in {times['400 messages']['both']:.0f} ms in one of 400"
    )


def test_knowledge() -> None:
    ingest = result("2026-11-26-knowledge-ingest")
    parsed = [ingest["parsing"][name]["documents_per_second"] for name in ("sqlite", "postgresql")]
    says(
        f"{parsed[0]:.1f} documents of 20 chunks per second on SQLite and {parsed[1]:.1f} on PostgreSQL",
        f"lose {percent(ingest['parsing_loss']['loss'], 1)} of their speed meanwhile, "
        f"and {percent(ingest['encoding_loss']['loss'], 1)} while chunks are encoded",
    )
    encoding = result("2026-11-25-knowledge")["encoding"]
    says(f"{encoding['chunks_per_second']:.1f} chunks per second, a query in {encoding['query_p95_ms']:.1f} ms (p95)")
    answers = result("2026-11-26-knowledge-answers")
    without, cold, warm = (answers[name]["first_token_p50_ms"] for name in ("without", "cold", "warm"))
    says(
        f"comes after {without:.0f} ms without sources, after {cold / 1000:.1f} s with "
        f"{answers['cold']['prompt_tokens']:,.0f} tokens of new ones, and after {warm:.0f} ms with the same ones again"
    )


def test_what_a_search_finds() -> None:
    run = result("2026-11-27-knowledge-recall")

    def of(half: str, encoder: str = "all-MiniLM-L6-v2") -> list[str]:
        scores_of = run[half]
        scores = (scores_of["text"], scores_of[encoder]["dense"], scores_of[encoder]["fused"])
        return [f"{100 * one['recall_at_3']:.1f}" for one in scores]

    words, meaning, both = of("held-out")
    says(
        f"the first three passages answer {words} % by words, {meaning} % by meaning with all-MiniLM-L6-v2 "
        f"and {both} % by both; of the others {', '.join(of('tuning')[:2])} and {of('tuning')[2]} %",
        f"With all-mpnet-base-v2, both answer {of('held-out', 'all-mpnet-base-v2')[2]} % of the held-out ones",
    )
    tried = run["tried_on_tuning_recall_at_3_fused_minilm"]
    merged = max(tried["minus_mean_share_0.6"], tried["calibrated_from_50th_share_0.5_power_2"])
    says(
        f"merge ({percent(merged, 1)} at the best), vectors of headings ({percent(tried['plus_0.05_heading'], 1)}), "
        f"neighbouring chunks ({percent(tried['plus_0.05_neighbours'], 1)}), "
        f"one passage of each page ({percent(tried['one_per_page'], 1)}). "
        f"One of each section had {percent(tried['one_per_section'], 1)} there, and less than now on the held-out half"
    )
    assert tried["one_per_section_held_out"] < run["held-out"]["all-MiniLM-L6-v2"]["fused"]["recall_at_3"]


def test_the_desk() -> None:
    runs = [result(file) for file in DESK.values()]
    assert max(run["first_word"]["p95_ms"] for run in runs) <= 2000
    assert max(run["agent"]["any"]["p95_ms"] for run in runs) <= 300
    assert [run["errors"] for run in runs] == [{}, {}]
    assert [run["messages_to_people"] for run in runs] == [0, 2]
    says(
        f"on PostgreSQL, two of {runs[1]['messages']:,} went to people",
        f"used {runs[0]['server_cores']:.2f} and {runs[1]['server_cores']:.2f} of a core",
    )
    older = result("2026-11-26-desk")
    written = older["runs"]["1 per second, the model writes"]["first_word"]
    says(f"came after {written['p50_ms']:.0f} ms, p95 {written['p95_ms']:.0f}, on a busy machine")
    sqlite, postgresql = (older["case_list"][name] for name in ("sqlite", "postgresql"))
    first, search = "first page of all", "search, a word in a quarter"
    says(
        f"takes {sqlite[first]['p50_ms']:.0f} ms on SQLite and {postgresql[first]['p50_ms']:.0f} on PostgreSQL",
        f"took {sqlite[search]['p50_ms']:.0f} ms on SQLite, but {postgresql[search]['p50_ms']:.0f} on PostgreSQL, "
        f"p95 {postgresql[search]['p95_ms']:,.0f}",
    )
    cost = result("2026-11-27-desk-cost")["cpu_ms"]["sqlite"]
    says(f"takes {cost['sum']:.1f} ms of processor time on SQLite, {cost['bot: sources']:.1f} of it to search")


def test_pages_and_hours() -> None:
    run = result("2026-11-27-rendering")
    frames = {name: f"{reply['median']['longest_frame_ms']:.0f} ms" for name, reply in run["replies"].items()}
    first = run["first_visit"]["median"]
    says(
        f"takes {frames['mixed']} with formulas, code and tables, {frames['one code block']} with one code block "
        f"and {frames['one list']} with a list",
        f"transfers {first['transferred_bytes'] / 1000:.0f} KB in {first['requests']:.0f} requests",
    )
    soak: dict[str, Any] = result("2026-11-23-soak")
    visits, grown = sum(soak["outcomes"].values()), soak["second_half"]["memory_mib"]["grown"]
    end = median(one["memory_mib"] for one in soak["samples"][-3:])
    says(f"{visits:,} visits, memory +{grown:.1f} MiB (of {end:.0f}) over")
    assert soak["second_half"]["files"]["grown"] == soak["second_half"]["threads"]["grown"] == 0


def test_dates_are_written_as_people_do() -> None:
    assert day("2026-11-27-bench-amx-bursts") == "27 November 2026"
    assert (
        days(["2026-11-27-bench-amx-bursts", "2026-11-26-bench-amx-int8", "2026-11-27-desk"])
        == "26 and 27 November 2026"
    )
    assert days(["2026-11-21-history", "2026-11-26-desk", "2026-11-27-desk"]) == "21, 26 and 27 November 2026"


def test_only_files_with_a_row_are_listed() -> None:
    """A file that newer ones have replaced altogether should leave the list, too."""
    for machine in MACHINES:
        assert files_in_use(machine) == list(machine.files), machine.title
