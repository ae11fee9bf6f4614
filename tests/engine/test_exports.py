"""What ``engine`` exports can be imported, also the names that are imported on first use."""

from __future__ import annotations

import engine


def test_every_exported_name_can_be_imported() -> None:
    assert [name for name in engine.__all__ if not hasattr(engine, name)] == []
    assert set(engine._MODULES) <= set(engine.__all__)


def test_another_name_is_an_attribute_error() -> None:
    assert not hasattr(engine, "Motor")
