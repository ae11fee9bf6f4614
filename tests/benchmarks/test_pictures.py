"""The pictures of the benchmarks are those of the result files, and show who is ahead."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks import documented, pictures
from benchmarks.documented import DELAY, RATE, MachineRuns, Work, compare, engine_table, format_ratio, is_ahead
from benchmarks.pictures import PICTURES, main

DOCS = Path(__file__).parents[2] / "docs"
DECODE, FIRST_TOKEN = Work(RATE, "one chat", "1 chat", "decode"), Work(DELAY, "a prompt", "1 chat", "ttft")


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_that_of_the_results(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PICTURES[name](), f"docs/{name}: run make docs"


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_lies_outside_of_the_picture(name: str) -> None:
    """Text is taken for 7 units a letter, which is wider than any of the fonts that are asked for."""
    root = ET.fromstring(PICTURES[name]())
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    assert (root.attrib["width"], width) == ("900", 900)
    for element in root.iter():
        if "y" in element.attrib:
            assert 0 < float(element.attrib["y"]) < height
        if element.tag.endswith("text"):
            length = 7 * len(element.text or "") * (1.3 if element.attrib.get("class") == "title" else 1)
            anchor = {"end": 1.0, "middle": 0.5}.get(element.attrib.get("text-anchor", ""), 0.0)
            left = float(element.attrib["x"]) - anchor * length
            assert left >= 0, element.text
            assert left + length <= width, element.text


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    whole = []
    for row in rows:
        once = [{"counts": True, **row["figures"]}]
        about = {"model": "M", "format": "bf16", "work": "1 chat", "disturbed": False, "repetitions": once}
        whole.append(about | row)
    result = {"machine": {"date": "2026-01-31T12:00:00+00:00"}, "rows": whole}
    (folder / f"{name}.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    documented.result.cache_clear()
    monkeypatch.setattr(documented, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def forget_results() -> Any:
    yield
    documented.result.cache_clear()


def test_the_first_file_with_a_peer_counts_and_the_best_peer_is_taken(folder: Path) -> None:
    own = {"engine": "deskmate", "figures": {"decode": 30.0, "ttft": 120.0}}
    write(folder, "alone", own)
    slow, fast = {"decode": 10.0, "ttft": 60.0}, {"decode": 20.0, "ttft": 240.0}
    write(folder, "both", own, {"engine": "vllm", "figures": slow}, {"engine": "llama.cpp", "figures": fast})
    write(folder, "later", own, {"engine": "vllm", "figures": {"decode": 90.0, "ttft": 1.0}})
    files = ("alone", "both", "later")
    decode, first_token = compare(files, DECODE), compare(files, FIRST_TOKEN)
    assert decode is not None
    assert (decode.peer_name, decode.peer, decode.ratio, decode.file) == ("llama.cpp", 20.0, 1.5, "both")
    assert first_token is not None
    assert (first_token.peer_name, first_token.peer, first_token.ratio) == ("vLLM", 60.0, 0.5)


def test_a_figure_that_was_disturbed_throughout_does_not_count(folder: Path) -> None:
    own = {"engine": "deskmate", "figures": {"decode": 30.0}}
    write(folder, "disturbed", own, {"engine": "vllm", "figures": {"decode": 10.0}, "disturbed": True})
    assert compare(("disturbed",), DECODE) is None


def test_who_is_not_ahead_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"engine": "deskmate", "figures": {"decode": 30.0, "ttft": 100.0}}
    write(folder, "run", own, {"engine": "vllm", "figures": {"decode": 20.0, "ttft": 50.0}})
    write(folder, "other", own, {"engine": "vllm", "figures": {"ttft": 50.0}})
    machines = (MachineRuns("one", ("run",)), MachineRuns("the other", ("other",)))
    for module in (documented, pictures):
        monkeypatch.setattr(module, "MACHINES", machines)
    monkeypatch.setattr(documented, "WORKS", (DECODE, FIRST_TOKEN))
    picture = pictures.engine_picture()
    assert re.findall(r'<rect [^>]*rx="2" class="(\w+)"', picture) == ["good", "bad", "bad"]
    assert "not measured" in picture
    assert engine_table().splitlines()[2:] == [
        "| one chat | 30.0 | vLLM 20.0 | 1.50 | a | – | – | – | – |",
        "| first token, a prompt | 100 | vLLM 50.0 | **0.50** | a | 100 | vLLM 50.0 | **0.50** | b |",
    ]
    assert "Tokens per second, one chat: 1.50 on one; " in picture
    assert "first token, a prompt: 0.50 on one, 0.50 on the other.</desc>" in picture


@pytest.mark.parametrize(("fastest_of_the_peer", "shown"), [(24.0, "1.50"), (31.0, "≈1.50")])
def test_a_lead_is_uncertain_where_repetitions_overlap(folder: Path, fastest_of_the_peer: float, shown: str) -> None:
    own = [{"counts": True, "decode": rate} for rate in (28.0, 32.0)] + [{"counts": False, "decode": 1.0}]
    peer = [{"counts": True, "decode": rate} for rate in (16.0, fastest_of_the_peer)]
    medians = {"deskmate": 30.0, "vllm": 20.0}
    rows = zip(medians.items(), (own, peer), strict=True)
    named = [{"engine": name, "figures": {"decode": rate}, "repetitions": all_} for (name, rate), all_ in rows]
    write(folder, "run", *named)
    found = compare(("run",), DECODE)
    assert found is not None
    assert format_ratio(found) == shown


def luminance(color: str) -> float:
    """The relative luminance as WCAG 2 defines it."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares]
    return sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_bars_stand_out_from_the_page(theme: str) -> None:
    light, dark = pictures.STYLE.split("@media")
    styles = light if theme == "light" else dark

    def color(style: str, attribute: str = "fill") -> str:
        (found,) = re.findall(rf"^{re.escape(style)} {{[^}}]*\b{attribute}: (#\w{{6}})", styles, re.MULTILINE)
        return str(found)

    page = color(".page")
    assert all(contrast(color(text), page) >= 4.5 for text in ("text", ".soft", ".bad"))
    assert contrast(color(".good"), page) >= 3
    assert contrast(color(".pale", "stroke"), page) >= 3
    assert color(".over", "stroke") == page


def test_a_ratio_that_rounds_to_one_is_not_ahead() -> None:
    assert [is_ahead(ratio) for ratio in (0.5, 1.0, 1.004, 1.006)] == [False, False, False, True]


def test_the_check_fails_for_a_picture_that_is_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    main([])
    main(["--check"])
    (tmp_path / "benchmarks-product.svg").write_text("<svg/>")
    with pytest.raises(SystemExit, match=r"benchmarks-product\.svg is out of date"):
        main(["--check"])
