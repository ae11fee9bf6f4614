"""Stops Gradio from writing type stubs for editors (``.pyi``) on import, which takes half of its import time.

Gradio reads, parses and prints the source of each component on every import and has no setting to turn this off.
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
    """Disable stub generation for this process. Has no effect once Gradio is imported."""
    if _WRITER not in sys.modules:
        sys.meta_path.insert(0, _Finder())
