"""Lets a caller change the engine's model, with the application's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Conflict, EngineUnavailable, ModelUnusable, NotSupported
from engine import ChatEngine, EngineBusyError, EngineError, ModelHost, ModelLoadError


@contextmanager
def hosted_model(engine: ChatEngine) -> Iterator[ModelHost]:
    """Yields the engine if it hosts a model itself, and converts its errors to the application's.

    Raises:
        NotSupported: the model runs on another server.
        Conflict: the model is being changed already.
        ModelUnusable: a model or an adapter cannot be loaded; the text says why.
        EngineUnavailable: the engine is not started, or asleep.
    """
    if not isinstance(engine, ModelHost):
        raise NotSupported("The model runs on another server. Change it there.")
    try:
        yield engine
    except EngineBusyError as error:
        raise Conflict(str(error)) from error
    except ModelLoadError as error:
        raise ModelUnusable(str(error)) from error
    except EngineError as error:
        raise EngineUnavailable(str(error)) from error
