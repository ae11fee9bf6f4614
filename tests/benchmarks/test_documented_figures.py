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

from app.knowledge.reranking import LIKELIHOOD_WEIGHT
from app.settings import AppSettings
from benchmarks.documented import (
    DELAY,
    DESK,
    MACHINES,
    PRODUCT,
    WORKS,
    Comparison,
    MachineRuns,
    Work,
    compare,
    comparisons,
    day,
    days,
    files_in_use,
    is_ahead,
    kind,
    result,
    run_letters,
)
from benchmarks.documented_recall import HALVES, RECALL, RERANK
from benchmarks.product import MIN_ENGINE_SHARE, TARGET_ENGINE_SHARE
from benchmarks.result_files import RESULTS

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


def found(machine: MachineRuns, work: Work) -> Comparison:
    comparison = compare(machine.files, work)
    assert comparison is not None, (machine.title, work)
    return comparison


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def test_every_result_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(20\d\d-\d\d-\d\d-[\w-]+)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not (RESULTS / f"{name}.json").exists()] == []


def test_the_files_of_the_product_and_of_the_desk_are_named() -> None:
    for first, second in (*(run.values() for run in PRODUCT), DESK.values()):
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
    small = "prompt of 128, 8 bits"
    assert behind == {("Xeon with AMX", title) for title in titles} | {("EPYC with AVX2", small)}
    amx, epyc, avx2 = MACHINES
    works = {work.title: work for work in WORKS}
    short, long, beside = (found(amx, works[title]) for title in titles)
    assert {short.peer_name, long.peer_name, beside.peer_name} == {"vLLM"}
    in_8_bits = found(avx2, works[small])
    assert in_8_bits.peer_name == "CTranslate2"
    says(f"of a prompt of 128 takes {in_8_bits.own:.0f} ms, CTranslate2's {in_8_bits.peer:.0f};")
    assert long.own == pytest.approx(long.peer, rel=0.004)
    gaps, gaps_there = (found(machine, Work(DELAY, "", "a prompt of 4,000 comes", "gap")) for machine in (amx, epyc))
    says(
        f"The first token of a prompt of 1,024 takes {short.own:.0f} ms, vLLM's {short.peer:.0f}; "
        "that of 3,900 takes as long as vLLM's.",
        f"first token after {beside.own / 1000:.1f} s, vLLM's after {beside.peer / 1000:.1f}.",
        f"is {gaps.peer:,.0f} ms, with Deskmate {gaps.own:.0f} "
        f"(on the EPYC {gaps_there.peer:,.0f} and {gaps_there.own:.0f})",
    )


def repetitions(file: str, engine: str, work: str, figure: str, number_format: str = "bf16") -> list[float]:
    """An engine's figures of a work in all repetitions that count."""
    wanted = (engine, work, number_format)
    (row,) = [row for row in result(file)["rows"] if (row["engine"], row["work"], row["format"]) == wanted]
    return [one[figure] for one in row["repetitions"] if one["counts"]]


def spread(values: list[float]) -> float:
    return max(values) / min(values) - 1


def test_the_spread_of_the_repetitions_is_said() -> None:
    repeated = [
        cell
        for _, cells in comparisons()
        for cell in cells
        if cell is not None and result(cell.file)["machine"]["repeats"] > 1
    ]
    spreads = [cell.spread for cell in repeated]
    says(f"differ by {percent(median(spreads))} in the middle row and {percent(max(spreads))} at most")


def test_each_machine_is_of_one_kind() -> None:
    for machine in MACHINES:
        assert {kind(result(file)) for file in machine.files} == {machine.title}


def test_deskmate_is_ahead_of_llama_cpp_where_it_took_part() -> None:
    compared = 0
    for work, cells in comparisons():
        for cell in cells:
            if cell is None:
                continue
            key = (work.model, work.name, work.number_format)
            rows = [row for row in result(cell.file)["rows"] if (row["model"], row["work"], row["format"]) == key]
            for row in rows:
                theirs = row["figures"].get(work.figure)
                if row["engine"] in ("llama.cpp", "llama-server") and theirs and not row["disturbed"]:
                    assert cell.own > theirs if work.metric.higher_is_better else cell.own < theirs
                    compared += 1
    assert compared > 0
    says("Deskmate is ahead of it in every row above in which it took part")


def test_the_other_runs_are_quoted() -> None:
    slow, works, engines = (
        "2026-11-28-bench-amx-packing",
        ("prompt of 1,024", "a prompt of 4,000 comes"),
        ("vllm", "deskmate"),
    )
    ratios = []
    for work in works:
        peer, own = (figures(slow, engine, work)["ttft"] for engine in engines)
        ratios.append(f"{peer / own:.2f}")
    says(f"the ratios of the prompts of 1,024 and 4,000 were {ratios[0]} and {ratios[1]} the next day")
    short, long = ([percent(spread(repetitions(slow, engine, work, "ttft"))) for engine in engines] for work in works)
    says(
        f"two repetitions of 1,024 differed by {short[0]} with vLLM and {short[1]} with Deskmate, "
        f"those of 4,000 by {long[0].removesuffix(' %')} and {long[1]}"
    )
    before, now = "2026-11-27-bench-epyc", "2026-11-29-bench-epyc"
    ratio = {}
    for run in (before, now):
        for file, number_format in ((f"{run}-bf16", "bf16"), (f"{run}-int", "int8")):
            rates = [figures(file, name, "1 chat", "M", number_format)["decode"] for name in ("deskmate", "llama.cpp")]
            ratio[run, number_format] = f"{rates[0] / rates[1]:.2f}"
    assert {result(f"{before}-{part}")["machine"]["repeats"] for part in ("bf16", "int")} == {2}
    says(
        f"was {ratio[before, 'bf16']} for one chat there, now {ratio[now, 'bf16']}, "
        f"and in 8 bits {ratio[before, 'int8']}, now {ratio[now, 'int8']}"
    )
    int8 = [figures(f"{now}-int", name, "1 chat", "M", "int8")["decode"] for name in ("ctranslate2", "deskmate")]
    letter = run_letters()[f"{now}-int"]
    says(f"decodes one chat there at {int8[0]:.1f} tokens per second, Deskmate at {int8[1]:.1f} (run {letter})")
    older = "2026-11-26-bench-amx-bf16"
    own_decode = figures(older, "deskmate", "1 chat")["decode"]
    peer_figures = figures(older, "llama.cpp", "1 chat")
    says(
        f"decoded one chat at {peer_figures['decode']:.1f} tokens per second beside Deskmate's {own_decode:.1f}",
        f"first token of a prompt of 128 came after {peer_figures['ttft']:,.0f} ms",
    )


def test_the_other_models_and_starts() -> None:
    names = ("deskmate", "transformers")
    plain = {
        model: [figures("2026-11-21-bench-small", name, "1 chat", model)["decode"] for name in names]
        for model in ("S", "guide")
    }
    says(
        f"model S had {plain['S'][0]:.1f} tokens per second beside {plain['S'][1]:.1f}, "
        f"with the guide {plain['guide'][0]:.0f} beside {plain['guide'][1]:.0f}"
    )
    rows = [row for row in result("2026-11-22-bench-small")["rows"] if (row["model"], row["work"]) == ("S", "1 chat")]
    first, *later = sorted((row["figures"]["ttft"], row["engine"]) for row in rows)
    assert later[-1][1] == "deskmate"
    says(f"after {later[-1][0]:.0f} ms, later than with each of three peers ({first[0]:.0f} to {later[-2][0]:.0f})")
    quick = "2026-11-22-bench-quick"
    own, batching = (figures(quick, name, "1 chat")["decode"] for name in ("deskmate", "batching"))
    assert figures(quick, "transformers", "1 chat")["decode"] < batching
    assert (result(quick)["machine"]["quick"], result(quick)["machine"]["repeats"]) == (True, 1)
    says(f"{batching:.1f} tokens per second for one chat, batched continuously, Deskmate {own:.1f}")
    guide = repetitions("2026-11-29-bench-epyc-guide", "deskmate", "1 chat", "decode")
    says(f"Its repetitions on the EPYC differ by {percent(spread(guide))}.")
    twice = [result(file) for file in ("2026-11-25-bench-gguf-M-G", "2026-11-25-bench-G")]
    assert [run["machine"]["repeats"] for run in twice] == [3, 5]
    slower, faster = (run["read_bandwidth_gb_s"]["1024 MiB"] for run in twice)
    says(f"in the second run ({slower:.0f} and {faster:.0f} GB/s)")
    own, other = (
        figures("2026-11-22-bench-amx-start", name, "second start")["seconds"] for name in ("deskmate", "vllm")
    )
    says(f"first token after {own:.1f} s with model M, vLLM's after {other:.0f}")
    start = result("2026-11-24-startup")["medians"]["this checkout"]
    says(
        f"the page answers after {start['page answers, s']:.1f} s, "
        f"and the first token comes after {start['first token, s']:.1f} s"
    )
    mixed, before = (
        {row["beside"]: percent(row["ratio"]) for row in result(f"2026-11-{date}-mixed-rows")["rows"]}
        for date in (29, 26)
    )
    says(
        f"31 plain chats keep {mixed['penalties']} of their speed beside one with penalties, "
        f"{mixed['log-probabilities']} with log-probabilities, {mixed['schema']} with a schema, "
        f"{mixed['adapter']} with an adapter",
        f"it was {before['penalties']}, {before['log-probabilities']}, {before['schema']} and {before['adapter']}",
    )


def test_long_contexts_and_structured_output() -> None:
    kept = [percent(row["speed"]) for row in result("2026-11-25-context-speed")["rows"][1::2]]
    says(
        f"one chat keeps {kept[0]} of the speed it has after 128, and {kept[2]} with a cache in 8 bits. "
        f"Three chats keep {kept[1].removesuffix(' %')} and {kept[3]}"
    )
    many, few = result("2026-11-25-structured-32"), result("2026-11-25-structured")
    (free,), (dictated,) = many["speed"], many["speed_dictated"]
    one, eight, _ = few["speed_dictated"]
    compiling = many["compiling"]
    says(
        f"32 chats keep {percent(free['ratio'], 1)} of their speed with free strings, "
        f"and {percent(dictated['ratio'], 1)} with records",
        f"one chat is {one['ratio']:.1f} times as fast as without a schema, and eight are {eight['ratio']:.1f} times",
        f"takes {compiling['p50_ms']:.1f} ms, p95 {compiling['p95_ms']:.1f}",
    )


def test_the_whole_product() -> None:
    """The table has the figures; here is what is said of them."""
    shares = [{name: result(file)["share_of_engine"] for name, file in run.items()} for run in PRODUCT]
    assert all(MIN_ENGINE_SHARE <= run["SQLite"] < TARGET_ENGINE_SHARE for run in shares)
    assert [run["PostgreSQL"] >= MIN_ENGINE_SHARE for run in shares] == [True, False, False]
    says(
        f"Both miss the aim of {percent(TARGET_ENGINE_SHARE)}; PostgreSQL reaches the goal of "
        f"{percent(MIN_ENGINE_SHARE)} in the newest run only"
    )
    before = [result(f"2026-11-29-product-{name}")["share_of_engine"] for name in ("sqlite", "postgresql")]
    says(f"SQLite had kept {before[0]:.1%} and PostgreSQL {before[1]:.1%} before".replace("%", " %"))
    runs = [result(file) for run in PRODUCT for file in run.values()]
    ((people, seconds, repeats),) = {
        (*(run["asked"][key] for key in ("people", "seconds", "repeats")),) for run in runs
    }
    says(f"{people} users with accounts", f"`--seconds {seconds:.0f} --repeats {repeats}`")
    made = [one for run in runs for series in run["repetitions"].values() for one in series]
    assert all(one["counts"] for one in made)
    says(f"none of the {len(made)} repetitions was dropped")
    newest = result(PRODUCT[0]["PostgreSQL"])["repetitions"]["the whole product"]
    medians = [one["first_text_p50_ms"] for one in newest]
    says(f"the first text's median is {min(medians):.0f} to {max(medians):.0f} ms")


def test_load_over_http() -> None:
    rates = result("2026-11-22-serve")["rates"]
    slow, fast, much = (rates[rate]["ttft_ms"] for rate in ("5", "15", "30"))
    says(
        f"the first text comes after {slow['p50']:.0f} ms, p95 {slow['p95']:.0f}; "
        f"at 15 after {fast['p50']:.0f}, p95 {fast['p95']:.0f}",
        f"`benchmarks.serve --url http://127.0.0.1:7860/v1 --rate {' '.join(rates)}`",
        f"it manages {rates['30']['requests_per_s']:.0f},",
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
        f"Alone it takes {alone['median']:.0f} ms (longest {alone['max'] / 1000:.2f} s), with one other user {one} "
        f"(longest {one_longest}), with ten {ten} (longest {ten_longest})"
    )
    in_order = sorted(one["ttft_ms"]["median"] / 1000 for one in attacks["10 as one user"])
    says(f"In order of arrival it would take {in_order[0]:.1f} to {in_order[-1]:.0f} s")
    busy = [one["others_share_of_cpu"] for group in attacks.values() for one in group]
    says(f"of which other programs used {100 * min(busy):.0f} to {percent(max(busy))}")

    structured = result("2026-11-25-abuse-structured")["attacks"]
    gaps = {kind: [one["gap_ms"][kind]["p95"] for one in structured] for kind in ("attack", "control")}
    longest = {
        kind: {one["attack"]: 1000 * max(part["max"] for part in one["rounds"][kind]) for one in structured}
        for kind in ("attack", "control")
    }
    worst, second, *_ = sorted(longest["attack"], key=lambda attack: -longest["attack"][attack])
    says(
        f"have a p95 of {min(gaps['attack']):.0f} to {max(gaps['attack']):.0f} ms, beside as many plain chats "
        f"{min(gaps['control']):.0f} to {max(gaps['control']):.0f}.",
        f"The longest gap was {longest['attack'][worst]:.0f} ms beside {worst} and "
        f"{longest['attack'][second]:.0f} beside {second}; "
        f"beside plain chats it was {max(longest['control'].values()):.0f}.",
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
    loss = result("2026-11-29-knowledge-ingest")["parsing_loss"]
    says(
        f"while {loss['chunks_meanwhile']:,} chunks are read and stored "
        f"({loss['tokens_per_second_meanwhile']:.1f} tokens per second meanwhile, "
        f"{loss['tokens_per_second']:.1f} without"
    )
    encoding = result("2026-11-25-knowledge")["encoding"]
    says(f"{encoding['chunks_per_second']:.1f} chunks per second, a query in {encoding['query_p95_ms']:.1f} ms (p95)")
    answers = result("2026-11-26-knowledge-answers")
    without, cold, warm = (answers[name]["first_token_p50_ms"] for name in ("without", "cold", "warm"))
    says(
        f"comes after {without:.0f} ms without sources, after {cold / 1000:.1f} s with "
        f"{answers['cold']['prompt_tokens']:,.0f} tokens of new ones, and after {warm:.0f} ms with the same ones again"
    )


def test_what_is_cited() -> None:
    found = result("2026-11-30-knowledge-citations")
    says(
        f"of {found['questions']} questions with an answer among the first three passages found, "
        f"{found['replies_that_cite']} have replies that cite, and {percent(found['precision'], 1)} of their "
        f"{found['citations']} citations name a passage that answers; "
        f"always citing the first passage would be right for {percent(found['first_passage'], 1)}"
    )
    assert AppSettings().knowledge_min_parameters == 10**9
    says("below a billion parameters")


def test_what_a_search_finds() -> None:
    run = result(RECALL)

    mpnet = run["held-out"]["all-mpnet-base-v2"]["fused"]["recall_at_3"]
    says(f"With all-mpnet-base-v2, both answer {percent(mpnet, 1)} of the held-out ones")
    tried = run["tried_on_tuning_recall_at_3_fused_minilm"]
    merged = max(tried["minus_mean_share_0.6"], tried["calibrated_from_50th_share_0.5_power_2"])
    says(
        f"merge ({percent(merged, 1)} at the best)",
        f"One of each section had {percent(tried['one_per_section'], 1)} there, and less than now on the held-out half",
    )
    worse = ("plus_0.05_heading", "plus_0.05_neighbours", "one_per_page")
    assert max(tried[name] for name in worse) <= run["tuning"]["all-MiniLM-L6-v2"]["fused"]["recall_at_3"]
    assert tried["one_per_section_held_out"] < run["held-out"]["all-MiniLM-L6-v2"]["fused"]["recall_at_3"]


def test_what_reranking_brings() -> None:
    run = result(RERANK)
    fewer = [run["tuning"]["fused"][count]["recall_at_3"] for count in ("12", "20")]
    assert max(fewer) < run["tuning"]["fused"]["0"]["recall_at_3"]
    for half in HALVES.values():
        for counts in run[half].values():
            assert all(
                counts[count][name] > counts["0"][name] for count in ("12", "20") for name in ("recall_at_1", "mrr")
            )
    weights = run["weights_on_tuning"]
    best = max(weights["fused"], key=lambda weight: weights["fused"][weight]["mrr"] + weights["text"][weight]["mrr"])
    assert float(best) == run["weight"] == LIKELIHOOD_WEIGHT
    costs = [run["a_search"][count] for count in ("12", "20")]
    processor, clock = ([f"{one[name]:.1f}" for one in costs] for name in ("processor_seconds_p50", "seconds_p50"))
    says(
        f"The weight, {best} of a score for one nat",
        f"Sorting 12 passages takes {processor[0]} s of processor time, 20 take {processor[1]},",
        f"{' and '.join(clock)} s by the clock",
    )
    both, words = (run["held-out"][way] for way in ("fused", "text"))
    knowledge = " ".join((ROOT / "docs" / "knowledge.md").read_text(encoding="utf-8").split())
    for sentence in (
        "the first passage answers {} instead of {} of the held-out questions merged with MiniLM".format(
            *(percent(both[count]["recall_at_1"]) for count in ("12", "0"))
        ),
        "and {} instead of {} by words".format(*(percent(words[count]["recall_at_1"]) for count in ("12", "0"))),
        f"{processor[0]} seconds of processor time with that model",
    ):
        assert sentence in knowledge, sentence


def test_the_desk() -> None:
    runs = [result(file) for file in DESK.values()]
    assert max(run["first_word"]["p95_ms"] for run in runs) <= 2000
    assert max(run["agent"]["any"]["p95_ms"] for run in runs) <= 300
    assert [run["errors"] for run in runs] == [{}, {}]
    assert [run["messages_to_people"] for run in runs] == [0, 2]
    says(
        f"on PostgreSQL, two of {runs[1]['messages']:,} went to people",
        f"used {runs[0]['server_cores']:.2f} and {runs[1]['server_cores']:.2f} of a core, PostgreSQL's own",
    )
    older = result("2026-11-26-desk")
    written = older["runs"]["1 per second, the model writes"]["first_word"]
    busy, slower = (older["runs"][f"{rate} per second"] for rate in (20, 8))
    first_word_s = busy["first_word"]["p50_ms"] / 1000, slower["first_word"]["p95_ms"] / 1000
    says(
        f"other programs used {percent(busy['others_share_of_cpu'])} of it",
        f"{busy['messages_per_s']:.1f} of the 20 messages per second were answered, "
        f"with the first word after {first_word_s[0]:.0f} s",
        f"an agent's wait was still {busy['agent']['any']['p95_ms']:.0f} ms at p95",
        "At 8 per second both goals held.",
        f"the first word came after {written['p50_ms']:.0f} ms, p95 {written['p95_ms']:.0f}",
    )
    assert max(first_word_s[1] / 2, slower["agent"]["any"]["p95_ms"] / 300) <= 1
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
    begin, minute, half = (
        next(one["memory_mib"] for one in soak["samples"] if one["seconds"] >= at) for at in (0, 60, 1800)
    )
    says(
        f"{visits:,} visits",
        f"from {begin:.0f} MiB after ten seconds to {minute:.0f} after a minute and {half:.0f} after half an hour, "
        f"and then by {grown:.1f}",
    )
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
