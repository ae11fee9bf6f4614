"""What the only passage says that a desk's search finds (``search`` in conftest.py), and the citation of it."""

from __future__ import annotations

SECRET = "The code of the vault is 4711."
CITED = {
    "number": 1,
    "document_id": "document-1",
    "version": 1,
    "start": 10,
    "end": 10 + len(SECRET),
    "title": "Returns",
    "heading": "",
    "text": SECRET,
    "withheld": None,
    "listed": False,
}
