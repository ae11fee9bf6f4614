"""The decoder in C++, compiled for this very processor the first time it is wanted, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from filelock import FileLock

from engine.errors import first_line

SOURCE = Path(__file__).with_name("decoder.cpp")
SOURCES = (SOURCE, *sorted(SOURCE.parent.glob("*.h")))
COMPILERS = ("g++", "c++", "clang++")
#: Arithmetic stays as it is written, but for what nothing here looks at: errno and floating-point traps.
OPTIONS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
COMPILE_SECONDS = 120


class NotCompiled(Exception):
    """There is no machine code, and why."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled decoder; ten seconds the first time on a machine, then read from the cache.

    Raises:
        NotCompiled: no compiler was found, or it failed.
    """
    compiler = find_compiler()
    built = _library_path(compiler)
    folder = built.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(built.with_suffix(".lock")):
            if not built.exists():
                _compile(compiler, built)
        code = ctypes.CDLL(str(built))
        code.deskmate_has_amx.restype = ctypes.c_bool
        return code
    except OSError as error:
        raise NotCompiled(f"{folder} cannot be used: {first_line(error)}") from error


def is_compiled() -> bool:
    """Whether :func:`load_library` finds what it needs.

    Raises:
        NotCompiled: no compiler was found, it does not say for what it compiles, or nothing can be looked for.
    """
    place = _library_path(find_compiler())
    try:
        return place.exists()
    except OSError as error:
        raise NotCompiled(f"{place.parent} cannot be used: {first_line(error)}") from error


def find_compiler() -> str:
    """The path of a C++ compiler: the one that ``CXX`` names, or a usual one.

    Raises:
        NotCompiled: none was found.
    """
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise NotCompiled(f"CXX names {chosen}, which is not there" if chosen else "no C++ compiler was found (g++)")


def cache_folder() -> Path:
    """Where compiled code is kept, as the XDG Base Directory Specification has it.

    Raises:
        NotCompiled: nowhere; whoever runs this has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deskmate" / "native"
    except RuntimeError as error:
        raise NotCompiled(f"{first_line(error)} XDG_CACHE_HOME may name a folder to keep it in.") from error


def _library_path(compiler: str) -> Path:
    return cache_folder() / f"decoder-{_cache_key(compiler)}.so"


def _cache_key(compiler: str) -> str:
    """Changes with all that machine code depends on: the source, the compiler, the processor."""
    version = _run([compiler, "--version"])
    target = _run([compiler, "-march=native", "-Q", "--help=target"]) if "clang" not in version else _flags()
    sources = [source.read_text(encoding="utf-8") for source in SOURCES]
    parts = (*sources, " ".join(OPTIONS), version, target)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _flags() -> str:
    """What the processor can do, where Linux tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, target: Path) -> None:
    """Appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        _run([compiler, *OPTIONS, str(SOURCE), "-o", str(made)])
        made.replace(target)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{command[0]} failed: {first_line(error)}") from error
    if done.returncode != 0:
        raise NotCompiled(f"{command[0]} failed: {done.stderr.strip().partition(chr(10))[0]}")
    return done.stdout
