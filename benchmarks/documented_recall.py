"""What docs/benchmarks.md shows of how well a search finds answers: the result files, and the tables made of them."""

from __future__ import annotations

from benchmarks.documented import result, table

RECALL = "2026-11-27-knowledge-recall"
RERANK = "2026-11-29-knowledge-rerank"
HALVES = {"the 77 held out": "held-out", "the 78 by which it was tuned": "tuning"}
"""Of the questions about this project's own pages."""


def recall_table() -> str:
    """Returns the share of the questions about the docs that the first three passages of a search answer."""
    run = result(RECALL)
    rows = []
    for title, half in HALVES.items():
        meaning = run[half]["all-MiniLM-L6-v2"]
        scores = (run[half]["text"], meaning["dense"], meaning["fused"])
        rows.append([title, *(f"{100 * one['recall_at_3']:.1f} %" for one in scores)])
    return table(["Questions", "by words", "by meaning, all-MiniLM-L6-v2", "by both"], rows)


def rerank_table() -> str:
    """Returns recall at 1 and 3 and the MRR, before and after the model has sorted the first passages."""
    run = result(RERANK)
    columns = {"0": "as found", "12": "12 sorted", "20": "20 sorted"}
    rows = []
    for title, half in HALVES.items():
        for search, way in (("words", "text"), ("both", "fused")):
            cells = []
            for count in columns:
                found = run[half][way][count]
                cells.append(
                    f"{100 * found['recall_at_1']:.1f} / {100 * found['recall_at_3']:.1f} / {found['mrr']:.3f}"
                )
            rows.append([title, search, *cells])
    return table(["Questions", "Search by", *columns.values()], rows, text_columns=2)


TABLES = {"recall": recall_table, "rerank": rerank_table}
"""Tables of docs/benchmarks.md by name."""
