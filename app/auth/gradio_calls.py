"""Calls of Gradio endpoints (``queue/join`` and ``run/predict``), checked before Gradio reads them.

If a call names no endpoint, one that runs in the browser only, or too few values, Gradio answers 500 and logs a
traceback. Any user could fill the log with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.auth.refusals import RequestRefused


def check_call(fields: Mapping[str, Any], endpoints: Mapping[int, int]) -> None:
    """Refuses a call that no endpoint takes.

    Args:
        fields: the call's body.
        endpoints: ``fn_index`` → the number of values that the endpoint takes. Gradio drops further ones.

    Raises:
        RequestRefused: 404 if there is no such endpoint, 422 if its values are missing.
    """
    named = fields.get("fn_index")
    # By type: Gradio also reads true, "1" and 1.0 as 1. Without one, it looks for the name in the address instead.
    if type(named) is not int or named not in endpoints:
        raise RequestRefused(404, "not_found", "The page has no such event. Reload it.")
    expected, data = endpoints[named], fields.get("data")
    if not isinstance(data, list) or len(data) < expected:
        values = "1 value" if expected == 1 else f"{expected} values"
        raise RequestRefused(422, "invalid_input", f"The field 'data' must be a list of {values}.")
