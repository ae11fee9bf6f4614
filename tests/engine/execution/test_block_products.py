"""Products with weights in GGML's block formats, for each instruction set, against float64."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.execution.native import block_packing, build, compiler
from engine.execution.native import weights as packing
from engine.execution.native.block_packing import FORMATS, dequantize_panels, pack_panels, to_packable
from engine.execution.native.modules import UnsupportedModel
from engine.execution.native.structure import LANES
from engine.execution.native.weights import HugePageArena
from engine.model.tensors import BlockTensor
from testing.blocks import dequantize_blocks, make_blocks
from testing.native import needs_compiler

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).with_name("block_products.cpp")
GROUP = 32
#: Options of the compiler, and the processor's flags that they need.
INSTRUCTION_SETS = [
    pytest.param(("-march=native", ()), id="native"),
    pytest.param(("-march=x86-64-v3", ("avx2", "fma", "f16c")), id="avx2", marks=pytest.mark.full),
    pytest.param(("-march=x86-64-v3 -mavxvnni", ("avx2", "avx_vnni")), id="avx-vnni", marks=pytest.mark.full),
    pytest.param(("-march=x86-64-v4", ("avx512bw", "avx512vl")), id="avx512", marks=pytest.mark.full),
    pytest.param(("", ()), id="none", marks=pytest.mark.full),
]


class Code:
    """The test's own functions, compiled for an instruction set."""

    def __init__(self, options: str, folder: Path) -> None:
        library = folder / "block_products.so"
        options_of_build = [*compiler.OPTIONS, *options.split(), f"-I{compiler.SOURCE.parent}", "-shared"]
        command = [compiler.find_compiler(), *options_of_build, str(SOURCE), "-o", str(library)]
        subprocess.run(command, check=True, timeout=300)
        functions = ctypes.CDLL(str(library))
        size, address = ctypes.c_int64, ctypes.c_void_p
        self.pack, self.dequantize, self._multiply = functions.pack, functions.dequantize, functions.multiply
        self.pack.argtypes = [address, size, address, size, size, address, size]
        self.dequantize.argtypes = [address, size, size, size, address, size]
        self._multiply.argtypes = [address, address, address, size, size, size, size, address]

    def multiply(self, table: Tensor, rows: Tensor, bias: Tensor | None = None, threads: int = 1) -> Tensor:
        products = torch.empty(len(rows), len(table) * LANES)
        sizes = (*rows.shape, products.shape[1])
        self._multiply(
            *(table.data_ptr(), None if bias is None else bias.data_ptr(), rows.data_ptr()),
            *(*sizes, threads, products.data_ptr()),
        )
        return products


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Code]:
    options, flags = request.param
    if not set(flags) <= build.cpu_features():
        pytest.skip(f"this processor does not have {', '.join(flags)}")
    made = Code(options, tmp_path_factory.mktemp("blocks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_packing, "_functions", lambda: made)
        yield made


def make_rows(count: int, inputs: int, seed: int = 1) -> Tensor:
    """Returns rows whose groups of inputs differ in size, as activations do."""
    dice = torch.Generator().manual_seed(seed)
    sizes = torch.rand(count, inputs // GROUP, 1, generator=dice) ** 3 * 10
    return (torch.randn(count, inputs // GROUP, GROUP, generator=dice) * sizes).flatten(1)


def quantized(rows: Tensor) -> Tensor:
    """Returns what the decoder makes of rows, as float64."""
    groups = rows.unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(2, keepdim=True).clamp_min(1e-30)
    return ((groups * (127 / largest)).round().double() * (largest / 127)).flatten(1)


@needs_compiler
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("outputs", "blocks"), [(16, 1), (37, 3), (144, 5)])
def test_weights_have_the_values_of_the_file(code: Code, name: str, outputs: int, blocks: int) -> None:
    weight = make_blocks(name, outputs, blocks * FORMATS[name].inputs)
    arena = HugePageArena()
    table = pack_panels([weight], arena)
    torch.testing.assert_close(
        dequantize_panels(table, weight.inputs, 0, outputs), dequantize_blocks(weight), rtol=3e-7, atol=1e-7
    )
    padding = dequantize_panels(table, weight.inputs, outputs, len(table) * LANES)
    assert not padding.any()


@needs_compiler
def test_panels_outlive_the_slab_that_they_lie_in(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_SLAB_BYTES", 2**16)
    arena = HugePageArena()
    made = [make_blocks("Q4_1", 64, 1024, seed=seed) for seed in range(20)]
    for weight, table in [(weight, pack_panels([weight], arena)) for weight in made]:
        torch.testing.assert_close(
            dequantize_panels(table, 1024, 0, 64), dequantize_blocks(weight), rtol=3e-7, atol=1e-7
        )


@needs_compiler
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("outputs", "blocks"), [(48, 1), (176, 7)])
def test_products(code: Code, name: str, outputs: int, blocks: int) -> None:
    weight = make_blocks(name, outputs, blocks * FORMATS[name].inputs)
    arena = HugePageArena()
    table = pack_panels([weight], arena)
    rows = make_rows(70, weight.inputs)
    bias = torch.randn(outputs)
    exact = quantized(rows) @ dequantize_blocks(weight).double().T + bias
    scale = (quantized(rows).abs() @ dequantize_blocks(weight).double().abs().T).mean()
    found = code.multiply(table, rows, bias)
    assert float((found - exact).abs().max() / scale) < 2e-6
    unquantized = rows.double() @ dequantize_blocks(weight).double().T + bias
    assert float((found - unquantized).norm() / unquantized.norm()) < 0.01
    for count in (*range(1, 20), 31, 33):
        assert torch.equal(code.multiply(table, rows[:count].contiguous(), bias), found[:count])
    for threads in (2, 3):
        assert torch.equal(code.multiply(table, rows, bias, threads), found)


@needs_compiler
@pytest.mark.parametrize("name", FORMATS)
def test_not_a_number_stays_in_its_row(code: Code, name: str) -> None:
    weight = make_blocks(name, 32, 2 * FORMATS[name].inputs)
    arena = HugePageArena()
    table = pack_panels([weight], arena)
    rows = make_rows(9, weight.inputs)
    rows[6] = 0
    clean = code.multiply(table, rows)
    assert not clean[6].any()
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoilt = rows.clone()
        spoilt[4, 40] = bad
        found = code.multiply(table, spoilt)
        assert found[4].isnan().all()
        others = [row for row in range(9) if row != 4]
        assert torch.equal(found[others], clean[others])


@needs_compiler
def test_layers_of_several_formats_and_orders(code: Code) -> None:
    names = ["Q4_K", "Q6_K", "Q8_0", "Q5_0"]
    weights = [make_blocks(name, 32, 512, seed=seed) for seed, name in enumerate(names)]
    order = torch.randperm(32)
    weights[1] = BlockTensor("Q6_K", weights[1].blocks, 512, order)
    arena = HugePageArena()
    rows = make_rows(3, 512)
    joined = code.multiply(pack_panels(weights, arena), rows)
    each = [joined[:, at * 32 : (at + 1) * 32] for at in range(4)]
    exact = quantized(rows) @ torch.cat([dequantize_blocks(weight) for weight in weights]).double().T
    torch.testing.assert_close(joined.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().mean()))
    interleaved = code.multiply(pack_panels(weights, arena, interleaved=True), rows)
    expected = torch.stack([part.unflatten(1, (2, LANES)) for part in each], 2).flatten(1)
    assert torch.equal(interleaved, expected)


@needs_compiler
@pytest.mark.parametrize(("name", "largest"), [("Q2_K", 0.01), ("Q3_K", 0.01), ("IQ4_NL", 0.01), ("IQ4_XS", 0.01)])
def test_other_formats_are_repacked(name: str, largest: float) -> None:
    weight = make_blocks(name, 40, 512)
    repacked = to_packable(weight)
    assert repacked.format == "Q8_0"
    error = dequantize_blocks(repacked) - dequantize_blocks(weight)
    assert float(error.norm() / dequantize_blocks(weight).norm()) < largest


@pytest.mark.full
@pytest.mark.parametrize(("options", "cpu"), [("-march=armv8-a", "cortex-a53"), ("-march=armv8.2-a+dotprod", "max")])
def test_products_on_arm(options: str, cpu: str, tmp_path: Path) -> None:
    cxx, qemu = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    if cxx is None or qemu is None:
        pytest.skip("needs a compiler and QEMU for ARM, which scripts/cross_tools.sh installs")
    program = tmp_path / "block_products"
    include = f"-I{compiler.SOURCE.parent}"
    arguments = [one for one in compiler.OPTIONS if one not in ("-shared", "-fPIC")]
    subprocess.run([cxx, *arguments, *options.split(), "-static", include, str(SOURCE), "-o", program], check=True)
    for name, kind in FORMATS.items():
        weight, rows = make_blocks(name, 48, 3 * kind.inputs), make_rows(7, 3 * kind.inputs)
        sizes = (kind.number, LANES * kind.code_bytes, LANES * (kind.bytes - kind.code_bytes), 3, 48, *rows.shape)
        given = weight.blocks.numpy().tobytes() + rows.numpy().tobytes()
        command = [qemu, "-cpu", cpu, str(program), *map(str, sizes)]
        done = subprocess.run(command, input=given, capture_output=True, check=True)
        found = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)
        weights, products = found.split([48 * weight.inputs, 7 * 48])
        exact = dequantize_blocks(weight)
        torch.testing.assert_close(weights.view_as(exact), exact, rtol=3e-7, atol=1e-7)
        expected = quantized(rows) @ exact.double().T
        scale = (quantized(rows).abs() @ exact.double().abs().T).mean()
        assert float((products.view_as(expected) - expected).abs().max() / scale) < 2e-6, name


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (BlockTensor("Q4_K", torch.zeros(16, 144, dtype=torch.uint8), 288), "288, is not a multiple of 256"),
        (BlockTensor("Q4_0", torch.zeros(16, 17, dtype=torch.uint8), 32), "has 18 bytes, not 17"),
        (BlockTensor("TQ1_0", torch.zeros(16, 54, dtype=torch.uint8), 256), "does not compute TQ1_0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(weight: BlockTensor, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        pack_panels([weight], HugePageArena())
