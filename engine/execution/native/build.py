"""Compiles the C++ decoder for this CPU on first use, and caches the library on disk."""

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
#: No -ffast-math: arithmetic stays as written. The exceptions, errno and floating-point traps, are never read here.
OPTIONS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
COMPILE_SECONDS = 120
"""Timeout of a compiler call; after it, :class:`NotCompiled` is raised."""


class NotCompiled(Exception):
    """The C++ code cannot be compiled here; the message says why."""


@cache
def load_library() -> ctypes.CDLL:
    """Returns the compiled decoder. Takes ten seconds the first time on a machine, then loads it from the cache.

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
    """Whether :func:`load_library` finds the decoder compiled in the cache.

    Raises:
        NotCompiled: no compiler was found, it does not report its target, or the cache folder cannot be read.
    """
    place = _library_path(find_compiler())
    try:
        return place.exists()
    except OSError as error:
        raise NotCompiled(f"{place.parent} cannot be used: {first_line(error)}") from error


def find_compiler() -> str:
    """Returns the path of a C++ compiler: the one that ``CXX`` names, otherwise the first of :data:`COMPILERS`.

    Raises:
        NotCompiled: none was found.
    """
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise NotCompiled(f"CXX names {chosen}, which was not found" if chosen else "no C++ compiler was found (g++)")


def cache_folder() -> Path:
    """Returns the cache folder for compiled code, by the XDG Base Directory Specification.

    Raises:
        NotCompiled: there is none: the process's user has no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deskmate" / "native"
    except RuntimeError as error:
        raise NotCompiled(f"{first_line(error)} Set XDG_CACHE_HOME to a folder for compiled code.") from error


def _library_path(compiler: str) -> Path:
    return cache_folder() / f"decoder-{_cache_key(compiler)}.so"


def _cache_key(compiler: str) -> str:
    """Returns a hash of everything that the machine code depends on: the sources, the compiler, the CPU."""
    version = _run([compiler, "--version"])
    target = _run([compiler, "-march=native", "-Q", "--help=target"]) if "clang" not in version else _flags()
    sources = [source.read_text(encoding="utf-8") for source in SOURCES]
    parts = (*sources, " ".join(OPTIONS), version, target)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _flags() -> str:
    """Returns the CPU's feature flags from /proc/cpuinfo; empty on systems without it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, target: Path) -> None:
    """Compiles to ``target``, which appears complete or not at all."""
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
