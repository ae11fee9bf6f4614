"""``deskmate doctor --size``: the memory that a model needs for a number of users, and the GPUs that hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from textwrap import wrap

from engine import SERVER_WEIGHT_FORMATS, WEIGHT_FORMATS, ModelLoadError, ModelSize, WeightFormat

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


def sizing_report(size: ModelSize, context: int, users: int, kv_cache_dtype: str = "auto") -> Iterator[str]:
    """Yields the lines of the report.

    Args:
        context: tokens per conversation, including its reply.
        users: replies generated at the same time.
        kv_cache_dtype: of the engine's own cache. A model server's is in bf16.

    Raises:
        ModelLoadError: no attention kernel reads a cache of that dtype.
    """
    if kv_cache_dtype == "fp8":
        raise ModelLoadError("kv_cache_dtype=fp8 is not supported. Use auto, or int8 on a CPU.")
    is_int8 = kv_cache_dtype == "int8"
    each = size.cache(context, kv_cache_dtype)
    yield f"{size.name}: {size.parameters / 1e9:.3g} billion parameters, {len(size.layers)} layers."
    token_kib = size.cache_per_token(kv_cache_dtype) / 1024
    yield (
        f"KV cache in {'int8' if is_int8 else 'bf16'}: {token_kib:,.0f} KiB for a token, {_gb(each)} GB for a "
        f"conversation of {context:,} tokens, {_gb(users * each)} GB for {users}."
    )
    if size.stored is not None:
        yield from wrap(size.stored, WIDTH)
    if size.window is not None and size.window < context:
        yield f"Layers with a sliding window keep at most {size.window:,} tokens of a conversation."
    yield ""
    if is_int8:
        yield "Deskmate's engine, on a CPU with that much memory:"
    else:
        yield "Deskmate's engine, on one GPU, or on a CPU with that much memory:"
    yield from _table(size, _formats_here(size, is_int8), users, each, "card", _on_one_card)
    yield ""
    yield "A model server with several GPUs, such as vLLM (ENGINE_REMOTE_URL):"
    yield from _table(size, SERVER_WEIGHT_FORMATS, users, size.cache(context), "cards", _on_cards)
    yield ""
    yield "Under the cards: how many are needed, where it may be several, and how many such users they hold."
    assumed = (
        f"Assumed: GB are 10^9 bytes; {USABLE:.0%} of a card is used, {WORK_GB:g} GB of that for the computation and "
        f"the runtime; several cards (2, 4 or {MAX_GPUS}) share weights and cache evenly; every user has a reply in "
        "flight and a full context at the same time, and no two share a prefix; embeddings stay bf16. Deskmate's "
        "engine reads the bf16 weights first, so a card must hold those too; on a CPU, a model that runs in C++ takes "
        "its weights about twice."
    )
    yield from wrap(assumed, WIDTH)


def _formats_here(size: ModelSize, is_cpu_only: bool) -> Mapping[str, WeightFormat]:
    """Returns the formats that the engine runs the model in: a quantized file in its own and in bf16."""
    formats = dict(WEIGHT_FORMATS)
    if size.stored_format is not None:
        own = WeightFormat(size.stored_bytes / size.parameters, frozenset({"cpu"}))
        formats = {size.stored_format: own, "bf16": WEIGHT_FORMATS["bf16"]}
    if not is_cpu_only:
        return formats
    return {name: replace(one, devices=frozenset({"cpu"})) for name, one in formats.items() if "cpu" in one.devices}


def _table(
    size: ModelSize,
    formats: Mapping[str, WeightFormat],
    users: int,
    each: int,
    card_column: str,
    cell: Callable[[ModelSize, WeightFormat, int, int, int], str],
) -> Iterator[str]:
    rows = [("weights", "weights GB", "+ cache GB", "= GB", *(f"{card} GB {card_column}" for card in CARDS))]
    for name, number_format in formats.items():
        weights = size.stored_bytes if name == size.stored_format else size.weights(number_format)
        cache = users * each
        cells = (cell(size, number_format, users, each, card) for card in CARDS)
        rows.append((name, _gb(weights), _gb(cache), _gb(weights + cache), *cells))
    yield from _aligned(rows)


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells)


def _on_one_card(size: ModelSize, number_format: WeightFormat, users: int, each: int, card: int) -> str:
    """Returns how many users the engine holds on one card."""
    if "cuda" not in number_format.devices:
        return "CPU only"
    usable = _usable(card)
    held = int((usable - size.weights(number_format)) // each)
    if held < 1 or size.weights(WEIGHT_FORMATS["bf16"]) > usable:
        return "no"
    return f"{held:,} users" if held >= users else f"{held:,} of {users:,}"


def _on_cards(size: ModelSize, number_format: WeightFormat, users: int, each: int, card: int) -> str:
    """Returns how many cards a model server needs, and how many users they hold."""
    count = 1
    while count <= MAX_GPUS:
        held = int((count * _usable(card) - size.weights(number_format)) // each)
        if held >= users:
            return f"{count}: {held:,} users"
        count *= 2
    return "more"


def _usable(card: int) -> float:
    """Returns the bytes of a card, given in GB, that weights and cache may take."""
    return (USABLE * card - WORK_GB) * GB


def _gb(size: float) -> str:
    """Formats bytes as GB, rounded up to two or three significant digits."""
    value = size / GB
    digits = 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{ceil(value * 10**digits) / 10**digits:,.{digits}f}"
