"""Parts of the C++ decoder in programs that check themselves: for every variant of it, some under QEMU."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.execution.native import build, compiler
from engine.execution.native.compiler import VARIANTS, Variant
from testing.native import needs_compiler

#: Programs that check themselves, and what they print an error for.
PROGRAMS = {
    "gemm_check.cpp": ["float32", "bfloat16", "int8", "int4"],
    "int8_attention_check.cpp": ["decode", "prefill", "bfloat16"],
    "team_barrier_check.cpp": ["1", "2", "3", "8", "one"],
}
#: With neither instruction sets nor all that this processor has; what lies between is for ``make test-full``.
ENDS = (
    Variant("baseline", platform.machine(), (), frozenset()),
    Variant("native", platform.machine(), compiler.NATIVE, frozenset()),
)
#: A processor of QEMU for each variant that it can run; it knows no AVX-512.
QEMU_CPUS = {
    "x86-64-v3": "Haswell",
    "armv8": "cortex-a53",
    "armv8.2-dotprod": "neoverse-n1",
    "armv8.2-i8mm-bf16": "max",
}


def _compile(cxx: str, options: tuple[str, ...], program: str, target: Path) -> None:
    """Compiles a program that checks itself, with nothing that it would load."""
    source = Path(__file__).with_name(program)
    shared = [option for option in compiler.OPTIONS if option not in ("-shared", "-fPIC")]
    include = f"-I{compiler.SOURCE.parent}"
    compiler.run_compiler([cxx, *shared, *options, "-static", "-Wno-psabi", include, str(source), "-o", str(target)])


def _check(program: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert [line.split()[0] for line in done.stdout.splitlines()] == PROGRAMS[program]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=variant.name, marks=() if variant in ENDS else pytest.mark.full)
        for variant in (*VARIANTS, *ENDS)
    ],
)
@pytest.mark.parametrize(
    "program", ["gemm_check.cpp", pytest.param("int8_attention_check.cpp", marks=pytest.mark.full)]
)
def test_programs_on_this_processor(program: str, variant: Variant, tmp_path: Path) -> None:
    if variant.machine != platform.machine() or not variant.features <= build.cpu_features():
        pytest.skip("this processor cannot run it")
    _compile(compiler.find_compiler(), variant.options, program, tmp_path / "check")
    _check(program, str(tmp_path / "check"))


@needs_compiler
def test_the_barrier_of_a_team_of_threads(tmp_path: Path) -> None:
    _compile(compiler.find_compiler(), compiler.NATIVE, "team_barrier_check.cpp", tmp_path / "check")
    _check("team_barrier_check.cpp", str(tmp_path / "check"))


@pytest.mark.full
@pytest.mark.parametrize(
    "variant", [variant for variant in VARIANTS if variant.name in QEMU_CPUS], ids=lambda variant: variant.name
)
@pytest.mark.parametrize("program", ["gemm_check.cpp", "int8_attention_check.cpp"])
def test_programs_on_other_processors(program: str, variant: Variant, tmp_path: Path) -> None:
    names = [f"{variant.machine}-linux-gnu-g++", *(["g++"] if variant.machine == platform.machine() else [])]
    cxx = next((name for name in names if shutil.which(name)), None)
    qemu = next(
        (name for name in (f"qemu-{variant.machine}-static", f"qemu-{variant.machine}") if shutil.which(name)), None
    )
    if cxx is None or qemu is None:
        pytest.skip(f"needs a compiler and QEMU for {variant.machine}: scripts/cross_tools.sh installs Debian's")
    _compile(cxx, variant.options, program, tmp_path / "check")
    _check(program, qemu, "-cpu", QEMU_CPUS[variant.name], str(tmp_path / "check"))


@pytest.mark.full
@pytest.mark.parametrize(
    "variant", [variant for variant in VARIANTS if variant.machine == "aarch64"], ids=lambda one: one.name
)
def test_the_whole_decoder_compiles_for_arm(variant: Variant, tmp_path: Path) -> None:
    cxx = "aarch64-linux-gnu-g++"
    if shutil.which(cxx) is None:
        pytest.skip(f"needs {cxx}: scripts/cross_tools.sh installs Debian's")
    compiler.compile_library(cxx, variant.options, tmp_path / "decoder.so")
    assert compiler.is_whole(tmp_path / "decoder.so")
