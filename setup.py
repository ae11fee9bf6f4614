"""The build hook: wheels carry the C++ decoder, compiled for each kind of processor. The rest is in pyproject.toml.

Without a compiler the wheel is built all the same, for any system: models then run in C++ where a compiler is found at
run time, elsewhere through transformers.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("engine/execution/native")

log = logging.getLogger(__name__)

# By its path: importing the package would need its dependencies, which a build does not have.
_spec = importlib.util.spec_from_file_location(
    "compiler", Path(__file__).with_name("engine") / "execution/native/compiler.py"
)
assert _spec is not None
assert _spec.loader is not None
compiler = importlib.util.module_from_spec(_spec)
sys.modules["compiler"] = compiler
_spec.loader.exec_module(compiler)


class Build(build_py):
    """Adds the compiled decoder. A source checkout compiles one on first use, so an editable install adds none."""

    has_decoder = False

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / NATIVE / "prebuilt"
        for stale in folder.glob("*"):  # build/ outlives a build
            stale.unlink()
        try:
            failures = compiler.compile_variants(folder)
        except compiler.NotCompiled as reason:
            log.warning("this wheel has no compiled C++ decoder: %s", reason)
            return
        for name, reason in failures.items():
            log.warning("this wheel has no C++ decoder for %s: %s", name, reason)
        self.has_decoder = True


class Wheel(bdist_wheel):
    """Names the platform, but no version of Python, in the file name of a wheel that has compiled code."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.get_finalized_command("build_py").has_decoder
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel})
