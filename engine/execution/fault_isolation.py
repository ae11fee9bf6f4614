"""Finds the requests whose own parameters make a step fail, so that only they end and the step continues."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from engine.errors import InvalidRequestError, LogitsError, first_line

log = logging.getLogger(__name__)


def find_failing_rows(error: Exception, logits: Tensor, sample: Callable[[int], object]) -> dict[int, Exception]:
    """Samples each row by itself, after all rows together failed with ``error``.

    Args:
        logits: ``[n, vocab_size]``, at least one row.
        sample: samples the row of this index alone.

    Returns:
        The error of each row that fails alone, by index. Rows with unusable logits (``LogitsError``) are left out.

    Raises:
        Exception: ``error`` itself if memory ran out or no row fails alone, or the device's own error if the device
            is lost: then no request is to blame.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        raise error
    logits[0, 0].item()  # raises if the device is lost, which would make every row fail
    failing: dict[int, Exception] = {}
    for index in range(len(logits)):
        try:
            sample(index)
        except LogitsError:
            continue
        except Exception as alone:
            failing[index] = alone
    if not failing:
        raise error
    return failing


def as_request_error(request_id: str, error: Exception) -> InvalidRequestError:
    """Returns the error to show when a request's own parameters failed, and logs the traceback."""
    log.error("request %s failed by its own parameters", request_id, exc_info=error)
    reason = first_line(error).rstrip(".") or type(error).__name__
    return InvalidRequestError(
        f"The parameters of this request cannot be computed ({reason}). Change them and send the message again."
    )
