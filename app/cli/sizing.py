"""``deskmate doctor --size``: the memory that a model needs for a number of users, and the GPUs that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from textwrap import wrap

from engine import BYTES_PER_WEIGHT, ModelSize

CARDS = (24, 48, 80, 141)
"""Memory of common GPUs in GB: RTX 4090 and L4, L40S and A6000, A100 and H100, H200."""
USABLE = 0.9
"""Share of a GPU's memory that is used."""
WORK_GB = 2.0
"""Memory on each GPU for activations and the runtime."""
MAX_GPUS = 8
WIDTH = 100
"""Characters per line of the report's last paragraph."""
GB = 10**9


def sizing_report(size: ModelSize, context: int, users: int) -> Iterator[str]:
    """Yields the lines of the report.

    Args:
        context: tokens per conversation, including its reply.
        users: replies generated at the same time.
    """
    each = size.cache(context)
    yield f"{size.name}: {size.parameters / 1e9:.3g} billion parameters, {len(size.layers)} layers."
    yield (
        f"KV cache in bf16: {size.cache_per_token / 1024:,.0f} KiB for a token, {_gb(each)} GB for a conversation of "
        f"{context:,} tokens, {_gb(users * each)} GB for {users}."
    )
    if size.window is not None and size.window < context:
        yield f"Layers with a sliding window keep at most {size.window:,} tokens of a conversation."
    yield ""
    rows = [("weights", "weights GB", "+ cache GB", "= GB", *(f"{card} GB cards" for card in CARDS))]
    for dtype in BYTES_PER_WEIGHT:
        weights, cache = size.weights(dtype), users * each
        cards = (_cards(weights, users, each, card) for card in CARDS)
        rows.append((dtype, _gb(weights), _gb(cache), _gb(weights + cache), *cards))
    yield from _aligned(rows)
    yield ""
    yield "Under the cards: how many are needed, and how many such users they hold."
    assumed = (
        f"Assumed: GB are 10^9 bytes; {USABLE:.0%} of a card is used, {WORK_GB:g} GB of that for the computation and "
        f"the runtime; several cards (2, 4 or {MAX_GPUS}) share weights and cache evenly; every user has a reply in "
        "flight and a full context at the same time, and no two share a prefix; int8 and int4 are formats of the "
        "weights, embeddings and output layer stay bf16."
    )
    yield from wrap(assumed, WIDTH)


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells)


def _cards(weights: int, users: int, each: int, card: int) -> str:
    usable_gb = USABLE * card - WORK_GB
    count = 1
    while count <= MAX_GPUS:
        held = int((count * usable_gb * GB - weights) // each)
        if held >= users:
            return f"{count}: {held:,} users"
        count *= 2
    return "more"


def _gb(size: float) -> str:
    """Formats bytes as GB, rounded up to two or three significant digits."""
    value = size / GB
    digits = 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{ceil(value * 10**digits) / 10**digits:,.{digits}f}"
