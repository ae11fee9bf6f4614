"""Which compiled decoder is taken: the prebuilt one for this processor, the next best, or one compiled here."""

from __future__ import annotations

import logging
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.execution.native import build, compiler
from engine.execution.native.compiler import VARIANTS, Variant, variant_file
from testing.native import needs_compiler

#: What /proc/cpuinfo of these processors says, as far as variants depend on it.
_HASWELL = "fpu sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2 bmi2"
_SKYLAKE_SERVER = f"{_HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
_CASCADE_LAKE = f"{_SKYLAKE_SERVER} avx512_vnni"
_ZEN_4 = f"{_CASCADE_LAKE} avx512_bf16 avx512vbmi avx512_vbmi2 gfni"
_SAPPHIRE_RAPIDS = f"{_ZEN_4} avx_vnni amx_bf16 avx512_fp16 amx_tile amx_int8"
_CORTEX_A53 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_NEOVERSE_N1 = f"{_CORTEX_A53} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
_NEOVERSE_V1 = f"{_NEOVERSE_N1} sve svei8mm svebf16 i8mm bf16 dgh"


@pytest.mark.parametrize(
    ("machine", "features", "names"),
    [
        ("x86_64", "fpu sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt avx", []),
        ("x86_64", _HASWELL, ["v3"]),
        ("x86_64", _HASWELL.replace(" fma", ""), []),
        ("x86_64", _SKYLAKE_SERVER, ["v4", "v3"]),
        ("x86_64", _SKYLAKE_SERVER.replace(" avx512vl", ""), ["v3"]),
        ("x86_64", _CASCADE_LAKE, ["v4-vnni", "v4", "v3"]),
        ("x86_64", _ZEN_4, ["v4-bf16", "v4-vnni", "v4", "v3"]),
        ("x86_64", _SAPPHIRE_RAPIDS, ["amx", "v4-bf16", "v4-vnni", "v4", "v3-vnni", "v3"]),
        ("x86_64", _SAPPHIRE_RAPIDS.replace(" amx_tile", ""), ["v4-bf16", "v4-vnni", "v4", "v3-vnni", "v3"]),
        ("x86_64", f"{_HASWELL} avx_vnni", ["v3-vnni", "v3"]),
        ("aarch64", _CORTEX_A53, ["armv8"]),
        ("aarch64", _NEOVERSE_N1, ["armv8.2-dotprod", "armv8"]),
        ("aarch64", _NEOVERSE_V1, ["armv8.2-i8mm-bf16", "armv8.2-dotprod", "armv8"]),
        ("aarch64", _SAPPHIRE_RAPIDS, []),
        ("ppc64le", _HASWELL, []),
        ("x86_64", "", []),
    ],
)
def test_the_variants_of_a_processor(machine: str, features: str, names: list[str]) -> None:
    found = [variant.name for variant in build.usable_variants(machine, frozenset(features.split()))]
    assert [name.removeprefix("x86-64-") for name in found] == names


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n", {"fp", "asimd"}),
        ("processor: 0\n", set()),
        (None, set()),
    ],
)
def test_features_are_those_of_cpuinfo(
    text: str | None, features: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(build, "CPUINFO", tmp_path / "cpuinfo")
    assert build.cpu_features() == features


#: What the compiler defines for instruction sets, and their names in /proc/cpuinfo.
_MACROS = {
    "x86_64": {
        **{"__AVX2__": "avx2", "__FMA__": "fma", "__F16C__": "f16c", "__AVXVNNI__": "avx_vnni"},
        **{
            "__AVX512F__": "avx512f",
            "__AVX512BW__": "avx512bw",
            "__AVX512DQ__": "avx512dq",
            "__AVX512VL__": "avx512vl",
        },
        **{"__AVX512VNNI__": "avx512_vnni", "__AVX512BF16__": "avx512_bf16", "__AVX512VBMI__": "avx512vbmi"},
        **{"__AMX_TILE__": "amx_tile", "__AMX_INT8__": "amx_int8", "__AMX_BF16__": "amx_bf16"},
    },
    "aarch64": {
        **{"__ARM_NEON": "asimd", "__ARM_FEATURE_DOTPROD": "asimddp", "__ARM_FEATURE_MATMUL_INT8": "i8mm"},
        **{"__ARM_FEATURE_BF16_VECTOR_ARITHMETIC": "bf16", "__ARM_FEATURE_QRDMX": "asimdrdm"},
    },
}


@needs_compiler
def test_a_variant_uses_what_its_processors_have_and_no_more() -> None:
    macros = _MACROS[platform.machine()]
    for variant in (variant for variant in VARIANTS if variant.machine == platform.machine()):
        command = [compiler.find_compiler(), *variant.options, "-dM", "-E", "-x", "c++", "/dev/null"]
        defined = {line.split()[1] for line in compiler.run_compiler(command).splitlines()}
        enabled = {feature for macro, feature in macros.items() if macro in defined}
        assert enabled == variant.features & {*macros.values()}, variant.name


def test_whatever_kernels_ask_for_a_variant_has() -> None:
    """Otherwise a decoder compiled on first use would be faster than the prebuilt one."""
    conditions = [
        line
        for source in compiler.SOURCES
        for line in source.read_text(encoding="utf-8").splitlines()
        if line.startswith(("#if", "#elif"))
    ]
    asked = set(re.findall(r"__A(?:VX|MX)\w+__|__F(?:MA|16C)__|__ARM_\w+", "\n".join(conditions)))
    assert len(asked) > 3
    for machine, macros in _MACROS.items():
        features = {feature for macro, feature in macros.items() if macro in asked}
        had = [variant.features for variant in VARIANTS if variant.machine == machine]
        assert features <= frozenset.union(*had)
    assert asked <= {macro for macros in _MACROS.values() for macro in macros}


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that loads anywhere, compiled in no time: the decoder's one entry point that loading needs."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "decoder.cpp").write_text('extern "C" bool deskmate_has_fast_prefill() { return false; }\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "SOURCE", folder / "decoder.cpp")
        compiler.compile_library(compiler.find_compiler(), (), folder / "decoder.so")
    return folder / "decoder.so"


@pytest.fixture
def two_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Variant]]:
    """Nothing is prebuilt, this processor can run the variants "best" and "next", and there is no compiler or cache."""
    variants = [Variant(name, platform.machine(), (), frozenset()) for name in ("best", "next")]
    newest = Variant("newest", platform.machine(), (), frozenset({"not-invented-yet"}))
    monkeypatch.setattr(build, "VARIANTS", (newest, *variants))
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    (tmp_path / "prebuilt").mkdir()
    monkeypatch.setattr(compiler, "COMPILERS", ())
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.load_library.cache_clear()
    yield [newest, *variants]
    build.load_library.cache_clear()


def _put(library: Path, variant: Variant) -> Path:
    """Places a library as the prebuilt one of a variant."""
    return Path(shutil.copy(library, build.PREBUILT / variant_file(variant)))


def _loaded() -> str:
    """The name of the file that is loaded."""
    assert build.is_compiled()
    return Path(build.load_library()._name).name


@needs_compiler
def test_the_best_variant_is_taken_and_named(
    library: Path, two_variants: list[Variant], caplog: pytest.LogCaptureFixture
) -> None:
    for variant in two_variants:
        _put(library, variant)
    with caplog.at_level(logging.INFO, logger="engine"):
        assert _loaded() == variant_file(two_variants[1])
    assert "the C++ decoder is the prebuilt one for best" in caplog.text
    assert build.describe_native_decoder() == "prebuilt for best"


@needs_compiler
def test_a_missing_variant_gives_way_to_the_next(library: Path, two_variants: list[Variant]) -> None:
    _put(library, two_variants[2])
    assert _loaded() == variant_file(two_variants[2])


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "unreadable", "of another system"])
def test_a_damaged_variant_gives_way_to_the_next(
    library: Path, two_variants: list[Variant], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = library.read_bytes()
    best = _put(library, two_variants[1])
    _put(library, two_variants[2])
    if damage == "unreadable":
        best.unlink()
        best.mkdir()
    elif damage == "of another system":
        foreign = b"\x7fELF" + bytes(100)
        best.write_bytes(foreign + compiler.digest(foreign))
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        best.write_bytes({"empty": b"", "cut": content[:middle], "changed": changed}[damage])
    assert _loaded() == variant_file(two_variants[2])
    assert best.name in caplog.text or "best cannot be used" in caplog.text


@needs_compiler
def test_changed_sources_make_prebuilt_variants_stale(
    library: Path, two_variants: list[Variant], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(library, two_variants[1])
    copy = tmp_path / "native"
    shutil.copytree(compiler.SOURCE.parent, copy, ignore=shutil.ignore_patterns("*.py", "prebuilt", "__pycache__"))
    monkeypatch.setattr(compiler, "SOURCE", copy / "decoder.cpp")
    monkeypatch.setattr(compiler, "SOURCES", (copy / "decoder.cpp", *sorted(copy.rglob("*.h"))))
    assert build.is_compiled(), "the same sources elsewhere"
    with (copy / "step.h").open("a") as header:
        header.write("// changed\n")
    with pytest.raises(build.NotCompiled, match="no C\\+\\+ compiler was found"):
        build.load_library()


@needs_compiler
def test_prebuilt_it_needs_neither_a_home_nor_a_place_to_write(
    library: Path, two_variants: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    file = _put(library, two_variants[1])
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(Path, "mkdir", read_only)
    file.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert _loaded() == file.name
    finally:
        file.parent.chmod(stat.S_IRWXU)


@pytest.mark.usefixtures("two_variants")
def test_without_variants_and_without_a_compiler() -> None:
    assert build.describe_native_decoder().startswith("none, so models run through transformers, more slowly: no C++")
    for call in (build.load_library, build.is_compiled):
        with pytest.raises(build.NotCompiled, match="no C\\+\\+ compiler was found"):
            call()


@needs_compiler
def test_a_named_compiler_is_used_in_any_case(
    library: Path, two_variants: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(library, two_variants[1])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.NotCompiled, match="CXX names no-such-compiler"):
        build.load_library()


@needs_compiler
@pytest.mark.usefixtures("two_variants")
def test_a_damaged_library_in_the_cache_is_compiled_again(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "decoder.so"
    cached.write_bytes(library.read_bytes()[:1000])
    monkeypatch.setattr(build, "_native_file", lambda _compiler: cached)
    monkeypatch.setattr(build, "find_compiler", lambda: "g++")
    monkeypatch.setattr(build, "compile_library", lambda _compiler, _options, target: shutil.copy(library, target))
    assert build.describe_native_decoder().endswith("for this processor by g++")
    assert build.load_library()
    assert cached.read_bytes() == library.read_bytes()


@needs_compiler
def test_it_brings_no_openmp_runtime_of_its_own(library: Path) -> None:
    """Its threads are PyTorch's: those of a second runtime would compete with them for the cores."""
    source = library.with_name("threads.cpp")
    source.write_text('extern "C" int f() { int n = 0;\n#pragma omp parallel reduction(+:n)\nn += 1;\nreturn n; }\n')
    if shutil.which("g++") is None:
        pytest.skip("GCC's runtime alone has a name of its own in PyTorch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "SOURCE", source)
        compiler.compile_library("g++", (), library.with_name("threads.so"))
    assert b"libgomp" not in library.with_name("threads.so").read_bytes()
    code = (
        "import ctypes, re, sys, torch\n"
        "from engine.execution.native import build\n"
        "ctypes.CDLL(build._openmp_runtime(), mode=ctypes.RTLD_GLOBAL)\n"
        "torch.set_num_threads(3)\n"
        "assert ctypes.CDLL(sys.argv[1]).f() == 3\n"
        "print(len(set(re.findall(r'/\\S*lib(?:g|i|)omp\\S*', open('/proc/self/maps').read()))))\n"
    )
    command = [sys.executable, "-c", code, str(library.with_name("threads.so"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


# ---- Wheels ----------------------------------------------------------------------------------------------------------
