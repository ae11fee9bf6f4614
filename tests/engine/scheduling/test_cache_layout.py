"""How the layers of a model share block tables."""

from __future__ import annotations

from engine.scheduling.cache_layout import MAX_GROUPS, CacheLayout, LayerShape


def shapes(*windows: int | None) -> list[LayerShape]:
    return [LayerShape(num_kv_heads=2, head_dim=8, value_head_dim=8, sliding_window=window) for window in windows]


def test_groups_are_of_equal_size_and_no_more_than_allowed() -> None:
    layout = CacheLayout.of(shapes(*[64] * 20, *[None] * 3))
    assert len(layout.groups) <= MAX_GROUPS
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(23))


def test_more_windows_than_groups_are_only_masked() -> None:
    layout = CacheLayout.of(shapes(*range(16, 16 + MAX_GROUPS + 1)))
    assert [group.window for group in layout.groups] == [None]
    assert layout.num_tensors == MAX_GROUPS + 1
