"""Wheels: built with a compiler they carry the C++ decoder, without one they are for any system."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.execution.native.compiler import SOURCES, VARIANTS, variant_file
from testing.native import needs_compiler

ROOT = Path(__file__).parents[1]
#: What a wheel is made of.
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "app", "engine")
NATIVE = "engine/execution/native"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, for a build leaves files in their folder."""
    for name in FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    shutil.rmtree(tmp_path / NATIVE / "prebuilt", ignore_errors=True)
    return tmp_path


def build(checkout: Path, **environment: str) -> tuple[Path, str]:
    """Builds a wheel as pip does; returns it and what the build said."""
    code = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name != "CXX"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (wheel,) = (checkout / "dist").glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.mark.slow
def test_without_a_compiler_a_wheel_is_for_any_system(checkout: Path) -> None:
    left = checkout / "build/lib" / NATIVE / "prebuilt/decoder-of-an-earlier-build.so"
    left.parent.mkdir(parents=True)
    left.touch()
    wheel, said = build(checkout, CXX="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "this wheel has no compiled C++ decoder: CXX names no-such-compiler, which was not found" in said
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".so")]
    assert {f"{NATIVE}/{source.relative_to(SOURCES[0].parent)}" for source in SOURCES} <= {*names}


@pytest.mark.full
@pytest.mark.timeout(900)
@needs_compiler
@pytest.mark.skipif(platform.system() != "Linux", reason="variants are made for Linux")
def test_with_a_compiler_a_wheel_has_a_decoder_for_every_processor(checkout: Path) -> None:
    wheel, said = build(checkout)
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    assert "no C++ decoder" not in said
    wanted = {variant_file(variant) for variant in VARIANTS if variant.machine == platform.machine()}
    with zipfile.ZipFile(wheel) as file:
        assert {Path(name).name for name in file.namelist() if name.endswith(".so")} == wanted
        file.extractall(checkout / "unpacked")
    (installed,) = (checkout / "unpacked").glob("*.data/purelib")  # what pip moves to site-packages
    code = (
        f"import logging, sys; sys.path.insert(0, {str(installed)!r})\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from engine.execution.native import build; print(build.__file__); build.load_library()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=installed,
        env={**environment, "PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stdout
    assert "the C++ decoder is the prebuilt one for" in done.stderr
