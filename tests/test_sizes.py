"""The report of sizes tells code from docstrings and comments, also where a string looks like a comment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from scripts.sizes import Size, folder_sizes, size_of

ROOT = Path(__file__).parents[1]

PYTHON = '''\
"""A module.

Its docstring has three lines."""

import os  # code with a comment

# A comment.
LIMIT = 3
"""An attribute's docstring."""
TEXT = """# not a comment

"not a docstring" """


class Thing:
    """A docstring."""; count = 1

    def name(self) -> str:
        \'\'\'Another.\'\'\'
        # a comment
        return "# no comment"
'''


def test_python() -> None:
    size = size_of(PYTHON, "Python")
    assert size == Size(1, code=9, docstrings=5, comments=2, blank=5)
    assert size.code + size.docstrings + size.comments + size.blank == PYTHON.count("\n")


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("C++", '// one\nint a; // code\n/* two\n\n   three */ int b;\nauto u = "http://x";\n', (3, 2, 1)),
        ("C++", 'auto raw = R"x(\n// text\n)x";\n#include <a>\n', (4, 0, 0)),
        ("CSS", "/* one\n   two */\n\na { background: url('/*'); }\nb {} /* c */\n", (2, 2, 1)),
        ("JavaScript", "const u = `http://x\n// text\n`; // code\n\n/** doc\n * doc\n */\n", (3, 3, 1)),
        ("JavaScript", "x = y.split(/[/*'\"]\\/\\//); \n// comment\nz = a / b; // c / d\n", (2, 1, 0)),
        ("JavaScript", "const quote = 'it\\'s // text';\n// it's\nf();", (2, 1, 0)),
        ("CSS", "", (0, 0, 0)),
    ],
)
def test_other_languages(language: str, text: str, expected: tuple[int, int, int]) -> None:
    size = size_of(text, language)
    assert (size.code, size.comments, size.blank) == expected


def test_a_folder_has_the_files_below_it_and_no_others() -> None:
    sizes = {PurePosixPath(name): Size(1, 10) for name in ("a/x.py", "a/b/y.py", "a/b/c/z.py", "ab/w.py", "top.py")}
    assert {str(folder): size.files for folder, size in folder_sizes(sizes, 2).items()} == {"a": 3, "a/b": 2, "ab": 1}


@pytest.mark.full
@pytest.mark.slow
def test_every_line_of_this_tree_is_counted_once() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "sizes.py"], capture_output=True, text=True, check=True
    ).stdout
    totals = [line.split()[1:] for line in printed.splitlines() if line.startswith(("all ", "Python ", "JavaScript "))]
    files, *lines = (int(number.replace(",", "")) for number in totals[0])
    assert files > 500
    assert min(lines) > 1000
    assert "  scheduling" in printed
