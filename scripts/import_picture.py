"""Prints which package imports which in engine/ and app/: their floors, and the imports that point upwards.

    .venv/bin/python scripts/import_picture.py             # this tree
    .venv/bin/python scripts/import_picture.py FOLDER      # another checkout, for a comparison

A package is a folder or a module directly inside engine/ or app/. Its floor is the length of the longest chain of
packages below it. Where packages import each other in a circle, the arrow with the fewest imports points upwards.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp

PROJECT = Path(__file__).resolve().parent.parent
ROOTS = ("engine", "app")
Arrows = dict[tuple[str, str], list[str]]
"""The imports, as ``module -> module``, from one package to another."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=PROJECT)
    folder: Path = parser.parse_args().folder.resolve()
    sys.path.insert(0, str(folder))
    for root in ROOTS:
        print(picture(root))


def picture(root: str) -> str:
    """Returns the picture of one of the two as text."""
    graph = grimp.build_graph(root, cache_dir=None)
    modules = sorted(graph.modules - {root})
    sizes: dict[str, int] = defaultdict(int)
    arrows: Arrows = defaultdict(list)
    for module in modules:
        package = _package(module)
        sizes[package] += 1
        for imported in sorted(graph.find_modules_directly_imported_by(module) - {root}):
            if _package(imported) != package:
                arrows[package, _package(imported)].append(f"{module} -> {imported}")
    upward = _upward(sizes, arrows)
    floors = _floors(sizes, [pair for pair in arrows if pair not in upward])
    lines = [f"{root}: {len(modules)} modules in {len(sizes)} packages on {max(floors.values()) + 1} floors"]
    for floor in sorted(set(floors.values()), reverse=True):
        packages = [f"{name} {sizes[name]}" for name in sorted(floors) if floors[name] == floor]
        lines.append(f"{floor:4}  {', '.join(packages)}")
    imports = [text for pair in upward for text in arrows[pair]]
    count = "1 import" if len(imports) == 1 else f"{len(imports)} imports"
    lines.append(f"{count} pointing upwards{':' if imports else '.'}")
    return "\n".join([*lines, *(f"      {text}" for text in imports)]) + "\n"


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _upward(packages: dict[str, int], arrows: Arrows) -> list[tuple[str, str]]:
    upward: list[tuple[str, str]] = []
    while True:
        try:
            _floors(packages, [pair for pair in arrows if pair not in upward])
        except CycleError as error:
            cycle: list[str] = error.args[1]  # each is imported by the next one; the last is the first
            circle = [(importer, imported) for imported, importer in pairwise(cycle)]
            upward.append(min(circle, key=lambda pair: len(arrows[pair])))
        else:
            return upward


def _floors(packages: dict[str, int], pairs: list[tuple[str, str]]) -> dict[str, int]:
    below: dict[str, set[str]] = {package: set() for package in packages}
    for importer, imported in pairs:
        below[importer].add(imported)
    floors: dict[str, int] = {}
    for package in TopologicalSorter(below).static_order():
        floors[package] = 1 + max((floors[other] for other in below[package]), default=-1)
    return floors


if __name__ == "__main__":
    main()
