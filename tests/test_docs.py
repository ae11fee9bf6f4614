"""The documents: what is written from the code is up to date, and every link and every file that is named exists."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from engine import PARAMETERS

ROOT = Path(__file__).parents[1]
#: Folders with files that are not part of the project.
FOREIGN = frozenset({".git", ".venv", "node_modules", "build", "data", "vendor", "results", "__pycache__"})
#: Besides them, hidden folders are caches, but for these.
HIDDEN = frozenset({".ci", ".github"})
#: Suffixes of the files that may name a page.
TEXT = frozenset(
    ["", ".py", ".js", ".ts", ".css", ".html", ".cpp", ".h", ".sh", ".yml", ".yaml", ".toml", ".example", ".md"]
)


def files_of(suffixes: frozenset[str]) -> list[Path]:
    """The project's files with these suffixes, those not yet in git too."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        kept = [name for name in folders if name not in FOREIGN or folder.endswith("models/guide")]
        folders[:] = [name for name in kept if not name.startswith(".") or name in HIDDEN]
        found += [Path(folder, name) for name in names if Path(name).suffix in suffixes]
    return sorted(path for path in found if path.is_file())


PAGES = files_of(frozenset({".md"}))


@pytest.fixture(scope="module")
def docs_tables() -> Any:
    spec = spec_from_file_location("docs_tables", ROOT / "scripts" / "docs_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["docs_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_code(docs_tables: Any) -> None:
    for page, text in docs_tables.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run make docs"


def test_every_marker_belongs_to_a_table(docs_tables: Any) -> None:
    """A table whose name was mistyped would never be written again."""
    for page in PAGES:
        begun = set(re.findall(r"<!-- begin (.*?) -->", page.read_text(encoding="utf-8")))
        written = set(docs_tables.TABLES.get(page.name, ())) if page.parent == ROOT / "docs" else set()
        assert begun - written <= {"example"}, page  # of the sizing report, which test_sizing.py compares


def test_the_page_of_parameters_says_everything_of_each(docs_tables: Any) -> None:
    page = docs_tables.sampling_page()
    for name, parameter in PARAMETERS.items():
        section = page.split(f"### `{name}`\n")[1].split("\n#")[0]
        for text in (parameter.range, parameter.paper, parameter.config_name, *parameter.spellings.values()):
            assert text in section
        assert parameter.label in section or not parameter.in_chat


def test_every_table_says_something_about_everything(docs_tables: Any) -> None:
    for tables in docs_tables.TABLES.values():
        for name, build in tables.items():
            for row in build().splitlines()[2:]:
                assert not row.startswith("| ") or row.split(" | ")[-1].strip(" |"), f"{name}: nothing about {row}"


def test_a_table_without_its_place_is_not_lost_silently(docs_tables: Any) -> None:
    with pytest.raises(ValueError, match="no place for the table of routes"):
        docs_tables.with_tables("<!-- begin metrics --><!-- end metrics -->", {"metrics": str, "routes": str})


def test_the_page_on_mails_names_what_the_bridge_reads() -> None:
    program = (ROOT / "docs" / "examples" / "mail_bridge.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "mail-bridge.md").read_text(encoding="utf-8")
    names = re.compile(r"\b(?:DESKMATE|MAIL|IMAP|SMTP)_[A-Z]+\b")
    assert set(names.findall(page)) == {name for name in names.findall(program) if f'"{name}"' in program}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_pages_have_lower_case_names() -> None:
    assert [page.name for page in PAGES if page.parent.name == "docs" and page.name != page.name.lower()] == []


def prose(page: Path) -> str:
    """The text without code blocks, whose headings and links are none."""
    code_block = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
    return code_block.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def links_of(page: Path) -> Iterator[str]:
    """The targets of a page's links and pictures within the project."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"^\[[^\]]+\]: *(\S+)", text, re.MULTILINE):
        if not re.match(r"[a-z][a-z+.-]*:", target):
            yield target


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in links_of(page):
        path, _, anchor = unquote(target).partition("#")
        file = page if not path else (page.parent / path)
        is_there = file.exists() and not path.startswith("/")
        if not is_there or (anchor and (file.suffix != ".md" or anchor not in anchors_of(file))):
            broken.append(target)
    return broken


def test_the_pages_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "docs/api.md",
        "models/guide/README.md",
        "models/guide/data/README.md",
    } <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `thing`, and (two)\n```sh\n# no heading\n```\n## Twice\n## Twice\n")
    good = ["other.md#one-thing-and-two", "other.md#twice-1", "other.md", "#here", "https://example.com/x#y"]
    bad = ["other.md#no-heading", "other.md#twice-2", "Other.md", "#there", "/other.md", "other.md#Twice"]
    page = tmp_path / "page.md"
    page.write_text("# Here\n" + "\n".join(f"[text](<{target}>)" for target in good + bad) + "\n`[code](nothing.md)`\n")
    assert broken_links(page) == bad


def test_every_page_in_docs_is_reached_from_the_readme() -> None:
    reached, to_read = set(), [ROOT / "README.md"]
    while to_read:
        page = to_read.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        to_read += [(page.parent / target.partition("#")[0]).resolve() for target in links_of(page) if target[0] != "#"]
    assert [page for page in PAGES if page.parent == ROOT / "docs" and page not in reached] == []


#: Files of the project as text names them: below a top folder, with a suffix or a slash at the end.
_NAMED = re.compile(
    r"(?<![\w./-])(?:app|engine|tests|testing|benchmarks|scripts|docs|deploy|migrations|models|prompts)/[\w./*-]*(?:\.[a-z]+|/)"
    r"(?![\w*-])"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {name.rstrip(".") for span in re.findall(r"`([^`\n]+)`", prose(page)) for name in _NAMED.findall(span)}
    named = {name for name in named if "NAME" not in name}
    assert [name for name in sorted(named) if not any(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("package", ["app", "engine"])
def test_the_page_on_architecture_lists_every_floor(package: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split(f"| `{package}/`, top floor first |")[1].split("\n\n")[0]
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in table} == set()


def test_every_page_that_the_code_names_exists() -> None:
    names = re.compile(r"(?<![\w./-])docs/[\w-]+\.(?:md|png|json)|(?<![\w./-])(?:CONTRIBUTING|CHANGELOG|SECURITY)\.md")
    lost = {
        (str(file.relative_to(ROOT)), name)
        for file in files_of(TEXT)
        for name in names.findall(file.read_text(encoding="utf-8", errors="replace"))
        if not (ROOT / name).exists()
    }
    assert lost == set()
