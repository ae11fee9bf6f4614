"""Keeps Gradio from writing type stubs for editors (``.pyi``) when it is imported, which is half of what that takes.

For each component it reads, parses and prints its own sources, every time; there is no setting for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_WRITER = "gradio.component_meta"


class _WithoutStubs(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.create_or_modify_pyi = lambda *_: None  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _WRITER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithoutStubs(spec.loader.name, spec.loader.path)
        return spec


def disable_type_stubs() -> None:
    """From now on; Gradio is not imported yet."""
    if _WRITER not in sys.modules:
        sys.meta_path.insert(0, _Finder())
