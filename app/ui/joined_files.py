"""Joins the chat page's modules into one script, and its stylesheets into one: two requests instead of 150.

A request costs a kilobyte of headers beside the file, and small files hardly compress. The sources stay modules, which
other pages, other Gradio apps and tests load one by one. In the joined script each of them is a function that returns
what the module exports; those that it imports come before it::

    const $module3 = (() => {
    const { make } = $module1;
    …
    return { get renderMarkdown() { return renderMarkdown; } };
    })();

Comments on lines of their own are left out: of the chat page's scripts they are a quarter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_FROM = re.compile(
    r"""^(?P<kind>import|export)\b\s*(?P<default>[\w$]+)?[\s,]*(?:\{(?P<names>[^}]*)\})?\s*(?:from\s*)?"(?P<path>\.[^"]+)";""",
    re.MULTILINE,
)
_LIST = re.compile(r"\bexport\s*\{(?P<names>[^}]*)\};?\s*(?://# sourceMappingURL=\S+\s*)?\Z")
_DECLARATION = re.compile(r"^export (?P<rest>(?:(?:async )?function\*? ?|class |const )(?P<name>[\w$]+))", re.MULTILINE)
_COMMENT_LINES = re.compile(r"^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE)
_LICENSE = re.compile(r"license|copyright", re.IGNORECASE)
_COMMENTS = re.compile(r"/\*.*?\*/")
_STYLE_COMMENTS = re.compile(r"/\*.*?\*/\s*", re.DOTALL)
_OTHER = re.compile(r"""^(?:import|export)\b.*|\bimport\(\s*["'`]\..*""", re.MULTILINE)


def find_modules(root: Path, entries: Iterable[str]) -> list[str]:
    """Return these modules and those that they import, directly or not, each after those that it imports.

    Args:
        entries: paths relative to ``root``, as those of the result are.

    Raises:
        ValueError: modules import each other in a circle, so none of them can come first.
    """
    found: dict[str, None] = {}
    open_modules: list[str] = []

    def add(name: str) -> None:
        if name in found:
            return
        if name in open_modules:
            raise ValueError(f"These modules import each other: {', '.join([*open_modules, name])}.")
        open_modules.append(name)
        for statement in _FROM.finditer((root / name).read_text("utf-8")):
            add(_resolve(root, name, statement["path"]))
        open_modules.pop()
        found[name] = None

    for entry in entries:
        add(entry)
    return list(found)


def _resolve(root: Path, importer: str, path: str) -> str:
    return (root / importer).parent.joinpath(path).resolve().relative_to(root.resolve()).as_posix()


def join_modules(root: Path, entries: Sequence[str]) -> str:
    """Return a module whose export ``modules`` has the namespace of each entry by its path.

    It must be served from ``root``: a module finds files beside itself through ``import.meta.url``.

    Raises:
        ValueError: a module imports or exports in a way that this does not know, or in a circle.
    """
    names = find_modules(root, entries)
    variables = {name: f"$module{number}" for number, name in enumerate(names)}
    known: dict[str, dict[str, str]] = {}  # what each module exports
    parts = [f"const {variables[name]} = {_as_function(root, name, variables, known)};" for name in names]
    exported = ", ".join(f"{json.dumps(name)}: {variables[name]}" for name in entries)
    return "\n".join([*parts, f"export const modules = {{ {exported} }};\n"])


def _as_function(root: Path, name: str, variables: dict[str, str], known: dict[str, dict[str, str]]) -> str:
    source = without_comments((root / name).read_text("utf-8"))
    exports = known[name] = {}  # what it is inside, by its name outside

    def replace_from(statement: re.Match[str]) -> str:
        path = _resolve(root, name, statement["path"])
        module = variables[path]
        pairs = _pairs(statement["names"] or "")
        for inside in [inside for inside, _ in pairs] + ["default"] * bool(statement["default"]):
            if inside not in known[path]:
                raise ValueError(f"{name} takes {inside} from {path}, which exports no such name in a known way.")
        if statement["kind"] == "export":
            exports.update((outside, f"{module}.{inside}") for inside, outside in pairs)
            return ""
        if statement["default"]:
            pairs = [("default", statement["default"]), *pairs]
        taken = ", ".join(inside if inside == outside else f"{inside}: {outside}" for inside, outside in pairs)
        return f"const {{ {taken} }} = {module};" if pairs else ""

    def replace_list(statement: re.Match[str]) -> str:
        exports.update((outside, inside) for inside, outside in _pairs(statement["names"]))
        return ""

    def replace_declaration(statement: re.Match[str]) -> str:
        exports[statement["name"]] = statement["name"]
        return statement["rest"]

    source = _FROM.sub(replace_from, source)
    source = _LIST.sub(replace_list, source)
    source = _DECLARATION.sub(replace_declaration, source)
    if unknown := _OTHER.search(_COMMENTS.sub("", source)):  # a type in a comment may be an import, too
        raise ValueError(f"{name} has a statement that cannot be joined: {unknown[0]}")
    source = source.replace("import.meta.url", f"new URL({json.dumps(name)}, import.meta.url).href")
    getters = ", ".join(f"get {outside}() {{ return {inside}; }}" for outside, inside in exports.items())
    return f"(() => {{\n{source}\nreturn {{ {getters} }};\n}})()"


def _pairs(names: str) -> list[tuple[str, str]]:
    """The two names of each part of ``{ a, b as c }``: ``("a", "a"), ("b", "c")``."""
    parts = [part.split() for part in names.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def without_comments(script: str) -> str:
    """Return a script without the comments that have lines of their own, except licenses.

    A template literal must have no line that begins as a comment does; a test looks at all scripts for that.
    """
    return _COMMENT_LINES.sub(lambda found: found[0] if _LICENSE.search(found[0]) else "", script)


def join_styles(root: Path, names: Iterable[str]) -> str:
    """Return these stylesheets as one without comments, in their order. It must be served from ``root``."""
    return "".join(_moved(name, _STYLE_COMMENTS.sub("", (root / name).read_text("utf-8"))) for name in names)


def _moved(name: str, style: str) -> str:
    """The style with its relative URLs as they are from the root."""
    folder = name.rpartition("/")[0]
    return re.sub(r"""url\((["']?)(?!["']|[a-z]+:|/|#)""", rf"url(\g<1>{folder}/", style)


@dataclass(frozen=True)
class Joined:
    """What the joined file is now, and its ETag."""

    content: bytes
    etag: str


class JoinedFile:
    """A file that is made of others, and made anew once one of them has changed."""

    def __init__(
        self, media_type: str, root: Path, names: Callable[[], Iterable[str]], join: Callable[[], str]
    ) -> None:
        """Args:
        names: of the files, relative to ``root``.
        """
        self.media_type = media_type
        self._root = root
        self._names = names
        self._join = join
        self._made: tuple[list[tuple[str, int, int]], Joined] | None = None

    def read(self) -> Joined:
        """Return the file as it is now. Reads the disk.

        Raises:
            ValueError: the files cannot be joined.
        """
        made = self._made
        if made is None or not self._is_current(made[0]):
            state = self._state(self._names())  # before the files are read: one that changes now is read again
            content = self._join().encode()
            digest = hashlib.sha256(content).hexdigest()[:32]
            self._made = made = state, Joined(content, f'"{digest}"')
        return made[1]

    def _is_current(self, state: list[tuple[str, int, int]]) -> bool:
        try:
            return state == self._state(name for name, _, _ in state)
        except FileNotFoundError:
            return False

    def _state(self, names: Iterable[str]) -> list[tuple[str, int, int]]:
        stats = [(name, (self._root / name).stat()) for name in names]
        return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
