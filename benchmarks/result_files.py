"""Writes what a benchmark measured to ``benchmarks/results``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def write_result(result: Mapping[str, object], name: str, output: Path | None = None) -> Path:
    """Writes a result as JSON; returns the file.

    Args:
        output: the file, or a folder in which it is ``DATE-NAME.json``; None is ``benchmarks/results``.
    """
    output = output or RESULTS
    file = output / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json" if output.is_dir() else output
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {file}")
    return file
