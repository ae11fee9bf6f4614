"""Sizes of models in words."""

from __future__ import annotations


def parameters_text(parameters: int) -> str:
    """Returns a number of parameters with three digits, such as "1.5 billion"."""
    for unit, word in ((10**9, " billion"), (10**6, " million")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{word}" if parameters < 1000 * unit else f"{parameters / unit:,.0f}{word}"
    return f"{parameters:,}"
