"""Tables as CSV files that spreadsheets open."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence

from fastapi.responses import StreamingResponse

#: At the beginning of a cell, spreadsheets take these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_response(name: str, header: Sequence[str], rows: AsyncIterator[Iterable[object]]) -> StreamingResponse:
    """The rows as a file of this name, sent as they come."""

    async def lines() -> AsyncIterator[str]:
        yield csv_line(header)
        async for row in rows:
            yield csv_line(row)

    disposition = f'attachment; filename="{name}"'
    return StreamingResponse(
        lines(), media_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition}
    )


def csv_line(cells: Iterable[object]) -> str:
    """One line, its end included. What people wrote begins no formula."""
    line = io.StringIO()
    csv.writer(line).writerow([_safe(cell) for cell in cells])
    return line.getvalue()


def _safe(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
