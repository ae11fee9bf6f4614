"""The FlashAttention adapters against functions of the real signatures, and which kernel is chosen for whom.

Nothing here has run on a GPU: the functions are stand-ins that check their arguments as the real ones do.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable

import pytest
import torch

from engine import ModelLoadError
from engine.execution.attention.base import AttentionKernel
from engine.execution.attention.flash2 import Flash2Kernel
from engine.execution.attention.flash3 import Flash3Kernel
from engine.execution.attention.selection import KERNELS, select_kernel
from engine.execution.attention.varlen import VarlenKernel
from engine.model.attention_hook import AttentionNeeds
from testing import fake_flash
from testing.attention import make_case

FLASH_KERNELS = (Flash3Kernel, Flash2Kernel, VarlenKernel)
CUDA = torch.device("cuda")


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretends a machine with a GPU: what is installed there, and the card's compute capability."""
    find_spec = importlib.util.find_spec

    def pretend(*packages: str, capability: tuple[int, int] = (9, 0)) -> None:
        modules = {"flash_attn": fake_flash.flash_attn_2(), "flash_attn_interface": fake_flash.flash_attn_3()}
        for name, module in modules.items():
            if name in packages:
                monkeypatch.setitem(sys.modules, name, module)
            else:
                monkeypatch.delitem(sys.modules, name, raising=False)

        def find(name: str, package: str | None = None) -> object:
            if name in modules:
                return object() if name in packages else None
            return find_spec(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find)
        if "varlen" in packages:
            monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", fake_flash.varlen_attn)
        else:
            monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value: None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: capability)

    return pretend


@pytest.fixture(params=FLASH_KERNELS, ids=[kernel.name for kernel in FLASH_KERNELS])
def flash(request: pytest.FixtureRequest, install: Install) -> AttentionKernel:
    install("flash_attn", "flash_attn_interface", "varlen")
    return request.param()


@pytest.mark.parametrize("window", [None, 1, 5, 400])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seeds", [[0], pytest.param([1, 2], marks=pytest.mark.full)], ids=["one", "more"])
def test_matches_plain_attention(
    flash: AttentionKernel, window: int | None, softcap: float | None, dtype: torch.dtype, seeds: list[int]
) -> None:
    if softcap is not None and not flash.supports_softcap:
        assert flash.unsupported_reason(AttentionNeeds(softcap=True, dtype=dtype))
        return
    block_size = max(16, flash.page_multiple)
    lengths = [1, 3, block_size - 1, block_size, block_size + 1, 2 * block_size + 5]
    for seed in seeds:
        case = make_case(seed, block_size=block_size, lengths=lengths, dtype=dtype)
        expected = case.expected(window, softcap)
        for got in case.run(flash, window, softcap, num_layers=2):
            assert got.dtype is dtype
            assert (got.double() - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize("kernel", FLASH_KERNELS, ids=[kernel.name for kernel in FLASH_KERNELS])
@pytest.mark.parametrize(
    ("needs", "says"),
    [
        (AttentionNeeds(dtype=torch.float32), "float32"),
        (AttentionNeeds(dtype=torch.bfloat16, sinks=True), "sinks"),
        (AttentionNeeds(dtype=torch.bfloat16, head_dim=288, value_head_dim=288), "288"),
        (AttentionNeeds(dtype=torch.bfloat16, head_dim=192, value_head_dim=128), "differ"),
    ],
)
def test_what_flash_attention_cannot_do_is_said(
    kernel: type[AttentionKernel], needs: AttentionNeeds, says: str
) -> None:
    reason = kernel.unsupported_reason(needs)
    assert reason is not None
    assert says in reason


HALF = AttentionNeeds(dtype=torch.bfloat16)
CAPPED = AttentionNeeds(dtype=torch.bfloat16, softcap=True)


@pytest.mark.parametrize(
    ("installed", "capability", "needs", "block_size", "chosen"),
    [
        (("flash_attn", "flash_attn_interface", "varlen"), (9, 0), HALF, None, ("flash3", 16)),
        (("flash_attn", "flash_attn_interface", "varlen"), (8, 6), HALF, None, ("flash2", 256)),
        (("flash_attn", "flash_attn_interface", "varlen"), (12, 0), HALF, None, ("flash2", 256)),
        (("varlen",), (9, 0), HALF, None, ("varlen", 256)),
        (("varlen", "flash_attn"), (8, 0), CAPPED, 512, ("flash2", 512)),
        (("varlen",), (8, 0), CAPPED, None, "portable"),
        (("varlen", "flash_attn"), (7, 5), HALF, None, "portable"),
        (("varlen", "flash_attn"), (9, 0), HALF, 16, "portable"),
        ((), (9, 0), HALF, None, "portable"),
        (("varlen", "flash_attn"), (9, 0), AttentionNeeds(), None, "portable"),
    ],
)
def test_the_fastest_that_can_serve_is_chosen(
    install: Install,
    installed: tuple[str, ...],
    capability: tuple[int, int],
    needs: AttentionNeeds,
    block_size: int | None,
    chosen: tuple[str, int] | str,
) -> None:
    install(*installed, capability=capability)
    kernel, size = select_kernel("auto", needs, CUDA, block_size)
    if chosen == "portable":
        assert kernel.name not in [flash.name for flash in FLASH_KERNELS]
    else:
        assert (kernel.name, size) == chosen


def test_the_choice_is_one_line_that_says_why_not_the_others(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("varlen", capability=(8, 0))
    with caplog.at_level(logging.INFO, "engine"):
        select_kernel("auto", HALF, CUDA, None)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "attention: varlen, KV blocks of 256 tokens; not flash3: the package flash-attn-3 is not installed, "
        "not flash2: the package flash-attn is not installed"
    )


@pytest.mark.parametrize(
    ("choice", "needs", "block_size", "says"),
    [
        ("flash3", HALF, None, r"flash3: it runs on Hopper GPUs, compute capability 9\.0 \(found 8\.0\)"),
        ("flash2", HALF, 48, r"kv_block_size must be a multiple of 256 \(got 48\)"),
        ("flash2", AttentionNeeds(), None, "cannot compute in float32"),
        ("varlen", CAPPED, None, "soft-capping"),
        ("flash9", HALF, None, r"is unknown\. Choose auto or one of: flash3, flash2, varlen"),
    ],
)
def test_a_kernel_asked_for_by_name_is_taken_or_refused_with_the_reason(
    install: Install, choice: str, needs: AttentionNeeds, block_size: int | None, says: str
) -> None:
    install("flash_attn", "flash_attn_interface", "varlen", capability=(8, 0))
    with pytest.raises(ModelLoadError, match=says):
        select_kernel(choice, needs, CUDA, block_size)
    assert select_kernel("flash2", HALF, CUDA, None)[0].name == "flash2"


def test_an_empty_package_of_the_same_name_is_no_flash_attention(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flash-attn-4 brings a folder flash_attn without the functions of version 2."""
    install("flash_attn")
    monkeypatch.delattr(sys.modules["flash_attn"], "flash_attn_varlen_func")
    assert Flash2Kernel.unavailable_reason(CUDA) == "the package flash-attn is not installed"


def test_a_processor_has_a_kernel_of_its_own() -> None:
    kernel, size = select_kernel("auto", AttentionNeeds(), torch.device("cpu"), None)
    assert (kernel.name, size) == ("cpu", 16)
    assert KERNELS[-1].name == "sdpa"
