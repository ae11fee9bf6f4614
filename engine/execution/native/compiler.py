"""Compiles the C++ decoder: for one processor, or in variants for all, as wheels and images carry them.

Imports the standard library only: wheel and image builds run this file before anything is installed.

    python engine/execution/native/compiler.py FOLDER    # compiles every variant for this machine's architecture
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("decoder.cpp")
SOURCES = (SOURCE, *sorted(SOURCE.parent.rglob("*.h")))
COMPILERS = ("g++", "c++", "clang++")
#: No -ffast-math and no contraction: arithmetic stays as written (simd.h has multiply_add). The exceptions, errno and
#: floating-point traps, are never read here.
OPTIONS = (
    *("-std=c++17", "-O3", "-fopenmp"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
NATIVE = ("-march=native",)
COMPILE_SECONDS = 300
"""Timeout of a compiler call; after it, :class:`NotCompiled` is raised."""
DIGEST_BYTES = 32
"""Length of the SHA-256 at a library's end, after what the loader reads."""


class NotCompiled(Exception):
    """The C++ code cannot be compiled here; the message says why."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The decoder for processors with certain instruction sets."""

    name: str
    machine: str  #: of :func:`platform.machine`
    options: tuple[str, ...]  #: of GCC
    features: frozenset[str]  #: what its code may use, as Linux names it in /proc/cpuinfo


# x86-64 psABI, section 3.1.1; /proc/cpuinfo calls LZCNT abm, and SSE3 pni.
_X86_64_V3 = frozenset(
    {
        *("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
        *("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    }
)
_X86_64_V4 = _X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

VARIANTS = (
    Variant(
        "x86-64-amx",
        "x86_64",
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _X86_64_V4 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    Variant(
        "x86-64-v4-bf16",
        "x86_64",
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
        _X86_64_V4 | {"avx512_vnni", "avx512_bf16"},
    ),
    Variant("x86-64-v4-vnni", "x86_64", ("-march=x86-64-v4", "-mavx512vnni"), _X86_64_V4 | {"avx512_vnni"}),
    Variant("x86-64-v4", "x86_64", ("-march=x86-64-v4",), _X86_64_V4),
    # Processors for laptops and desktops since 2021 (Alder Lake) multiply bytes like servers, but have no AVX-512.
    Variant("x86-64-v3-vnni", "x86_64", ("-march=x86-64-v3", "-mavxvnni"), _X86_64_V3 | {"avx_vnni"}),
    Variant("x86-64-v3", "x86_64", ("-march=x86-64-v3",), _X86_64_V3),
    Variant(
        "armv8.2-i8mm-bf16",
        "aarch64",
        ("-march=armv8.2-a+dotprod+i8mm+bf16",),
        frozenset({"asimd", "atomics", "asimdrdm", "asimddp", "i8mm", "bf16"}),
    ),
    Variant(
        "armv8.2-dotprod",
        "aarch64",
        ("-march=armv8.2-a+dotprod",),
        frozenset({"asimd", "atomics", "asimdrdm", "asimddp"}),
    ),
    Variant("armv8", "aarch64", ("-march=armv8-a",), frozenset({"asimd"})),
)
"""Best first, for each architecture."""


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


def sources_digest() -> str:
    """Returns a hash of the sources and of the options that every compilation has."""
    root = SOURCE.parent
    named = [f"{source.relative_to(root).as_posix()}\0{source.read_text(encoding='utf-8')}" for source in SOURCES]
    return hashlib.sha256("\0".join((*named, *OPTIONS)).encode()).hexdigest()[:16]


def variant_file(variant: Variant) -> str:
    """Returns the file name of a variant of these sources: a library of other sources has another name."""
    return f"decoder-{variant.name}-{sources_digest()}.so"


def compile_library(compiler: str, options: Sequence[str], target: Path) -> None:
    """Compiles to ``target``, which appears complete or not at all.

    GCC's OpenMP runtime is not linked: the decoder takes the one that PyTorch has loaded, under whatever name.

    Raises:
        NotCompiled: the compiler failed.
        OSError: the target's folder cannot be written.
    """
    is_clang = "clang" in run_compiler([compiler, "--version"])
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, linked = Path(folder) / "decoder.o", Path(folder) / target.name
        run_compiler([compiler, *OPTIONS, *options, "-c", str(SOURCE), "-o", str(compiled)])
        openmp = ["-fopenmp"] if is_clang else []
        run_compiler([compiler, "-shared", *openmp, str(compiled), "-o", str(linked)])
        with linked.open("ab") as library:
            library.write(digest(linked.read_bytes()))
        linked.replace(target)


def digest(content: bytes) -> bytes:
    """Returns what stands at the end of a library with this content."""
    return hashlib.sha256(content).digest()


def is_whole(library: Path) -> bool:
    """Whether a library is as :func:`compile_library` wrote it: loading half of one may kill the process."""
    content = library.read_bytes()
    return digest(content[:-DIGEST_BYTES]) == content[-DIGEST_BYTES:]


def compile_variants(folder: Path) -> dict[str, str]:
    """Compiles every variant for this machine's architecture into ``folder``.

    Returns:
        For each variant that the compiler cannot make, why: old ones do not know the newest instructions.

    Raises:
        NotCompiled: no compiler was found, or it can make none of the variants.
    """
    compiler = find_compiler()
    variants = [variant for variant in VARIANTS if variant.machine == platform.machine()]
    failures = {}
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        calls = {
            variant: pool.submit(compile_library, compiler, variant.options, folder / variant_file(variant))
            for variant in variants
        }
        for variant, call in calls.items():
            try:
                call.result()
            except NotCompiled as reason:
                failures[variant.name] = str(reason)
    if len(failures) == len(variants):
        raise NotCompiled(next(iter(failures.values()), f"there is no variant for {platform.machine()}"))
    return failures


def run_compiler(command: list[str]) -> str:
    """Returns the output of a compiler call.

    Raises:
        NotCompiled: it failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{command[0]} failed: {' '.join(str(error).split())}") from error
    if done.returncode != 0:
        raise NotCompiled(f"{command[0]} failed: {done.stderr.strip().partition(chr(10))[0]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles the C++ decoder for every processor of this architecture.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    try:
        failures = compile_variants(folder)
    except (NotCompiled, OSError) as reason:
        sys.stderr.write(f"The C++ decoder was not compiled: {reason}.\n")
        return 1
    for name, failure in failures.items():
        sys.stderr.write(f"The C++ decoder was not compiled for {name}: {failure}.\n")
    sys.stdout.writelines(f"{file.name}\n" for file in sorted(folder.glob("*.so")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
