"""CSV downloads that are safe to open in spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence

from fastapi.responses import StreamingResponse

#: Spreadsheets treat a cell that starts with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_response(name: str, header: Sequence[str], rows: AsyncIterator[Iterable[object]]) -> StreamingResponse:
    """Streams the rows as a file named ``name``."""

    async def lines() -> AsyncIterator[str]:
        yield csv_line(header)
        async for row in rows:
            yield csv_line(row)

    disposition = f'attachment; filename="{name}"'
    return StreamingResponse(
        lines(), media_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition}
    )


def csv_line(cells: Iterable[object]) -> str:
    """Returns one line with its line break. Prefixes text that spreadsheets would treat as a formula with ``'``."""
    line = io.StringIO()
    csv.writer(line).writerow([_safe(cell) for cell in cells])
    return line.getvalue()


def _safe(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
