"""The tables of README.md and docs/ are those of the code."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from engine import PARAMETERS

SCRIPT = Path(__file__).parents[2] / "scripts" / "readme_tables.py"


@pytest.fixture(scope="module")
def readme_tables() -> Any:
    spec = spec_from_file_location("readme_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["readme_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_code(readme_tables: Any) -> None:
    for page, text in readme_tables.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run make readme"


def test_the_page_of_parameters_says_everything_of_each(readme_tables: Any) -> None:
    page = readme_tables.sampling_page()
    for name, parameter in PARAMETERS.items():
        section = page.split(f"### `{name}`\n")[1].split("\n#")[0]
        for text in (parameter.range, parameter.paper, parameter.config_name, *parameter.spellings.values()):
            assert text in section
        assert parameter.label in section or not parameter.in_chat


def test_every_table_says_something_about_everything(readme_tables: Any) -> None:
    for name, build in readme_tables.TABLES.items():
        for row in build().splitlines()[2:]:
            assert row.split(" | ")[-1].strip(" |"), f"{name}: nothing said about {row}"


def test_a_table_without_its_place_is_not_lost_silently(readme_tables: Any) -> None:
    with pytest.raises(ValueError, match="no place for the table of routes"):
        readme_tables.with_tables(
            "<!-- begin application settings --><!-- end application settings -->"
            "<!-- begin engine settings --><!-- end engine settings -->"
        )
