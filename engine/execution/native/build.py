"""Loads the C++ decoder: the prebuilt variant for this processor, otherwise one compiled here on first use.

Wheels and images carry a variant for each kind of processor (:mod:`engine.execution.native.compiler`). Where none is of
exactly these sources, as in a source checkout, the decoder is compiled for this very processor and cached on disk.
``CXX``, in the environment, names a compiler to be used in any case.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from filelock import FileLock

from engine.errors import first_line
from engine.execution.native.compiler import (
    NATIVE,
    OPTIONS,
    SOURCE,
    VARIANTS,
    NotCompiled,
    Variant,
    compile_library,
    find_compiler,
    is_whole,
    run_compiler,
    sources_digest,
    variant_file,
)

__all__ = [
    "OPTIONS",
    "SOURCE",
    "NotCompiled",
    "describe_native_decoder",
    "find_compiler",
    "is_compiled",
    "load_library",
]

log = logging.getLogger(__name__)

PREBUILT = Path(__file__).with_name("prebuilt")
"""Folder of the variants that were compiled for a wheel or an image."""
CPUINFO = Path("/proc/cpuinfo")


@cache
def load_library() -> ctypes.CDLL:
    """Returns the compiled decoder. Where it must be compiled first, that takes about twenty seconds.

    Raises:
        NotCompiled: no variant is prebuilt for this processor, and no compiler was found, or it failed.
    """
    for variant, file in _prebuilt_files():
        try:
            code = _open(file)
        except OSError as error:
            log.warning("the C++ decoder for %s cannot be used: %s", variant.name, first_line(error))
            continue
        log.info("the C++ decoder is the prebuilt one for %s", variant.name)
        return code
    compiler = find_compiler()
    built = _native_file(compiler)
    folder = built.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(built.with_suffix(".lock")):
            if not (built.exists() and is_whole(built)):
                compile_library(compiler, NATIVE, built)
        code = _open(built)
    except OSError as error:
        raise NotCompiled(f"{folder} cannot be used: {first_line(error)}") from error
    log.info("the C++ decoder was compiled for this processor by %s", compiler)
    return code


def is_compiled() -> bool:
    """Whether :func:`load_library` finds the decoder compiled: prebuilt, or in the cache.

    Raises:
        NotCompiled: it is not prebuilt, and no compiler was found, or the cache folder cannot be read.
    """
    if next(_prebuilt_files(), None) is not None:
        return True
    place = _native_file(find_compiler())
    try:
        return place.exists()
    except OSError as error:
        raise NotCompiled(f"{place.parent} cannot be used: {first_line(error)}") from error


def describe_native_decoder() -> str:
    """Says which decoder :func:`load_library` takes, or why none, without loading it or importing PyTorch."""
    for variant, _ in _prebuilt_files():
        return f"prebuilt for {variant.name}"
    try:
        compiler = find_compiler()
        return f"{'compiled' if is_compiled() else 'will be compiled'} for this processor by {compiler}"
    except NotCompiled as reason:
        return f"none, so models run through transformers, more slowly: {reason}"


def usable_variants(machine: str, features: frozenset[str]) -> list[Variant]:
    """Returns the variants that a processor can run, best first.

    Args:
        machine: architecture, of :func:`platform.machine`.
        features: instruction sets, as Linux names them.
    """
    return [variant for variant in VARIANTS if variant.machine == machine and variant.features <= features]


def cpu_features() -> frozenset[str]:
    """Returns what the processor can do and Linux allows, from /proc/cpuinfo; nothing on systems without it."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # Big and little cores list the same: Linux reports what all of them can do.
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.partition(":")[2].split())


def cache_folder() -> Path:
    """Returns the cache folder for compiled code, by the XDG Base Directory Specification.

    Raises:
        NotCompiled: there is none: the process's user has no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deskmate" / "native"
    except RuntimeError as error:
        raise NotCompiled(f"{first_line(error)} Set XDG_CACHE_HOME to a folder for compiled code.") from error


def _prebuilt_files() -> Iterator[tuple[Variant, Path]]:
    """Yields the prebuilt variants of these sources that this processor can run and whose files are whole, best first.

    Yields nothing where ``CXX`` is set.
    """
    if os.environ.get("CXX") or not PREBUILT.is_dir():
        return
    for variant in usable_variants(platform.machine(), cpu_features()):
        file = PREBUILT / variant_file(variant)
        try:
            if not file.exists():
                continue
            if is_whole(file):
                yield variant, file
            else:
                log.warning("%s is damaged: the next best decoder is used", file)
        except OSError as error:
            log.warning("%s cannot be read: %s", file, first_line(error))


def _native_file(compiler: str) -> Path:
    """Returns the cached library's path. Its name has a hash of what it depends on: sources, compiler, processor."""
    version = run_compiler([compiler, "--version"])
    if "clang" in version:
        target = " ".join(sorted(cpu_features()))
    else:
        target = run_compiler([compiler, *NATIVE, "-Q", "--help=target"])
    parts = (sources_digest(), *NATIVE, version, target)
    return cache_folder() / f"decoder-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"


def _open(library: Path) -> ctypes.CDLL:
    """Loads a library. Its OpenMP runtime is PyTorch's: two in one process would each keep threads that spin."""
    ctypes.CDLL(_openmp_runtime(), mode=ctypes.RTLD_GLOBAL)
    code = ctypes.CDLL(str(library))
    code.deskmate_has_fast_prefill.restype = ctypes.c_bool
    return code


def _openmp_runtime() -> str:
    """Returns the path of the OpenMP runtime that PyTorch has loaded, or the system's name of GCC's."""
    import torch

    folder = Path(torch.__file__).parent
    bundled = [*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")]
    return str(bundled[0]) if bundled else "libgomp.so.1"
