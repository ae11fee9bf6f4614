"""Prints who imports whom: the rooms of engine/ and app/, the floors they stand on, and the imports that point upwards.

    .venv/bin/python scripts/import_picture.py             # this tree
    .venv/bin/python scripts/import_picture.py FOLDER      # another checkout, for a comparison

A room is a folder or a module directly inside a house. A room's floor is the length of the longest chain of rooms
below it. Where rooms import each other in a circle, the arrow with the fewest imports counts as the upward one.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("engine", "app")
Arrows = dict[tuple[str, str], list[str]]
"""The imports, as ``module -> module``, from one room to another."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT)
    folder: Path = parser.parse_args().folder.resolve()
    sys.path.insert(0, str(folder))
    for house in HOUSES:
        print(picture(house))


def picture(house: str) -> str:
    """Returns the picture of one house as text."""
    graph = grimp.build_graph(house, cache_dir=None)
    modules = sorted(graph.modules - {house})
    sizes: dict[str, int] = defaultdict(int)
    arrows: Arrows = defaultdict(list)
    for module in modules:
        room = _room(module)
        sizes[room] += 1
        for imported in sorted(graph.find_modules_directly_imported_by(module) - {house}):
            if _room(imported) != room:
                arrows[room, _room(imported)].append(f"{module} -> {imported}")
    upward = _upward(sizes, arrows)
    floors = _floors(sizes, [pair for pair in arrows if pair not in upward])
    lines = [f"{house}: {len(modules)} modules in {len(sizes)} rooms on {max(floors.values()) + 1} floors"]
    for floor in sorted(set(floors.values()), reverse=True):
        rooms = [f"{name} {sizes[name]}" for name in sorted(floors) if floors[name] == floor]
        lines.append(f"{floor:4}  {', '.join(rooms)}")
    imports = [text for pair in upward for text in arrows[pair]]
    lines.append(f"{len(imports)} imports point upwards{':' if imports else '.'}")
    return "\n".join([*lines, *(f"      {text}" for text in imports)]) + "\n"


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _upward(rooms: dict[str, int], arrows: Arrows) -> list[tuple[str, str]]:
    upward: list[tuple[str, str]] = []
    while True:
        try:
            _floors(rooms, [pair for pair in arrows if pair not in upward])
        except CycleError as error:
            cycle: list[str] = error.args[1]  # each is imported by the next one; the last is the first
            circle = [(importer, imported) for imported, importer in pairwise(cycle)]
            upward.append(min(circle, key=lambda pair: len(arrows[pair])))
        else:
            return upward


def _floors(rooms: dict[str, int], pairs: list[tuple[str, str]]) -> dict[str, int]:
    below: dict[str, set[str]] = {room: set() for room in rooms}
    for importer, imported in pairs:
        below[importer].add(imported)
    floors: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        floors[room] = 1 + max((floors[other] for other in below[room]), default=-1)
    return floors


if __name__ == "__main__":
    main()
