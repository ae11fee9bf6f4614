"""Reports the size of the source by folder: files, and lines of code, docstrings, comments and blank lines.

    .venv/bin/python scripts/sizes.py            # each top folder and the folders in it, then each language
    .venv/bin/python scripts/sizes.py --depth 4  # every folder

A line that holds code counts as code, also if a comment ends it. Counts the files that git tracks, without those of
other projects (``vendor/``).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent

LANGUAGES = {
    ".py": "Python", ".js": "JavaScript", ".mjs": "JavaScript", ".cpp": "C++", ".h": "C++", ".css": "CSS",
}  # fmt: skip

_NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)

_STRINGS = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
_BLOCK_COMMENT = r"(?P<comment>/\*.*?(?:\*/|\Z)"
#: What may hold the beginning of a comment without being one, and comments. A regular expression of JavaScript is told
#: from a division by what stands before it.
_TOKENS = {
    "CSS": re.compile(rf"{_STRINGS}|{_BLOCK_COMMENT})", re.DOTALL),
    "C++": re.compile(rf'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|{_STRINGS}|{_BLOCK_COMMENT}|//[^\n]*)', re.DOTALL),
    "JavaScript": re.compile(
        rf"{_STRINGS}|`(?:\\.|[^`\\])*`|{_BLOCK_COMMENT}|//[^\n]*)"
        r"|(?:(?<=[(,=:\[!&|?{};>])|(?<=return))[ \t]*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/",
        re.DOTALL,
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Counts of one file or of several; all but ``files`` in lines."""

    files: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def size_of(text: str, language: str) -> Size:
    """Returns the size of one file.

    Raises:
        SyntaxError: ``text`` is no Python.
    """
    code, docstrings, comments = _python_lines(text) if language == "Python" else _other_lines(text, language)
    docstrings -= code
    comments -= code | docstrings
    counted = len(code) + len(docstrings) + len(comments)
    return Size(1, len(code), len(docstrings), len(comments), len(_lines(text)) - counted)


def _python_lines(text: str) -> tuple[set[int], set[int], set[int]]:
    """Returns the numbers of the lines with code, docstrings and comments. Docstrings of attributes count."""
    docstrings: set[int] = set()
    begins: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and node.end_lineno is not None
        ):
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
            begins.add((node.lineno, node.col_offset))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE and token.start not in begins:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code, docstrings, comments


def _other_lines(text: str, language: str) -> tuple[set[int], set[int], set[int]]:
    """As :func:`_python_lines`, for the languages of :data:`_TOKENS`, which have no docstrings."""

    def masked(found: re.Match[str]) -> str:
        mark = "\0" if found.group("comment") is not None else "x"
        return "".join(char if char.isspace() and mark == "\0" else "\n" if char == "\n" else mark for char in found[0])

    lines = _lines(_TOKENS[language].sub(masked, text))
    code = {number for number, line in enumerate(lines, start=1) if line.replace("\0", "").strip()}
    comments = {number for number, line in enumerate(lines, start=1) if "\0" in line}
    return code, set(), comments


def _lines(text: str) -> list[str]:
    """Splits at line feeds alone, as tokenize does."""
    return text.removesuffix("\n").split("\n") if text else []


def tracked_files(root: Path) -> list[PurePosixPath]:
    """Returns the paths of the source files that git tracks below ``root``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [PurePosixPath(name) for name in listed.split("\0") if name]
    return [path for path in paths if path.suffix in LANGUAGES and "vendor" not in path.parts]


def folder_sizes(sizes: Mapping[PurePosixPath, Size], depth: int) -> dict[PurePosixPath, Size]:
    """Returns the sum of each folder down to ``depth``, with the files of all folders below it."""
    sums: dict[PurePosixPath, Size] = {}
    for path, size in sizes.items():
        for level in range(1, min(depth, len(path.parts) - 1) + 1):
            folder = PurePosixPath(*path.parts[:level])
            sums[folder] = sums.get(folder, Size()) + size
    return dict(sorted(sums.items(), key=lambda item: item[0].parts))


def format_sizes(title: str, rows: Iterable[tuple[str, Size]]) -> list[str]:
    """Formats a table, one row for each name."""
    columns = [field.name for field in fields(Size)]
    lines = [f"{title:<36}" + "".join(f"{column:>12}" for column in columns)]
    return lines + [f"{name:<36}" + "".join(f"{count:>12,}" for count in astuple(size)) for name, size in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=2, help="levels of folders (2: top folders and those in them)")
    depth = parser.parse_args(arguments).depth
    sizes = {
        path: size_of((ROOT / path).read_text(encoding="utf-8"), LANGUAGES[path.suffix])
        for path in tracked_files(ROOT)
        if (ROOT / path).exists()  # deleted, and not yet committed
    }
    folders = [
        ("  " * (len(folder.parts) - 1) + folder.name, size) for folder, size in folder_sizes(sizes, depth).items()
    ]
    languages = [
        (language, sum((size for path, size in sizes.items() if LANGUAGES[path.suffix] == language), Size()))
        for language in dict.fromkeys(LANGUAGES.values())
    ]
    lines = [
        *format_sizes("Folder", [*folders, ("all", sum(sizes.values(), Size()))]),
        "",
        *format_sizes("Language", languages),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
