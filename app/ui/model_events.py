"""What the model panel's events do: ordinary listeners in Python.

The guard lets every signed-in user call every listener of the page, with any data: so each checks the role itself, as
the guard does for ``POST /api/engine/*``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import gradio as gr
from pydantic import ValidationError

from app.api.errors import describe_invalid
from app.api.ops.engine import NewModel, UnloadOptions, load_model, view_engine
from app.auth.identity import identity_of
from app.domain.roles import UserRole
from app.errors import AppError
from app.services.hosted_model import hosted_model
from app.ui.client_events import call, on_client, on_server
from app.ui.components import Model
from engine import ModelHost

if TYPE_CHECKING:
    from app.services.container import Services

_log = logging.getLogger(__name__)


def serve_model(model: Model, services: Callable[[], Services]) -> None:
    """Adds the listeners of ``model`` to the Blocks that is being built.

    ``services`` is called per event. A load may take minutes, as long as its request is open; each ``refresh`` is a
    request of its own and shows the progress.
    """

    async def refresh() -> dict[str, Any]:
        return view_engine(services()).model_dump(mode="json")

    async def swap(event: gr.EventData, request: gr.Request) -> dict[str, Any]:
        async def load(_host: ModelHost, data: dict[str, Any]) -> None:
            await load_model(services(), NewModel.model_validate(data), identity_of(request).user_id)

        return await change(event, request, load)

    async def sleep(event: gr.EventData, request: gr.Request) -> dict[str, Any]:
        async def unload(host: ModelHost, data: dict[str, Any]) -> None:
            await host.sleep(UnloadOptions.model_validate(data).timeout)

        return await change(event, request, unload)

    async def wake(event: gr.EventData, request: gr.Request) -> dict[str, Any]:
        async def load(host: ModelHost, data: dict[str, Any]) -> None:  # noqa: ARG001 - there is nothing to choose
            await host.wake()

        return await change(event, request, load)

    async def change(
        event: gr.EventData, request: gr.Request, act: Callable[[ModelHost, dict[str, Any]], Awaitable[None]]
    ) -> dict[str, Any]:
        """Acts for an admin, and returns the state that results, with the error if it failed."""
        if identity_of(request).role is not UserRole.ADMIN:
            raise gr.Error("Only admins can do this. Ask an admin.", print_exception=False)
        data = dict(event._data) if isinstance(event._data, dict) else {}
        number = data.pop("request", None)
        error = None
        try:
            with hosted_model(services().engine) as host:
                await act(host, data)
        except ValidationError as invalid:
            error = describe_invalid(invalid.errors())[0]
        except AppError as failure:
            error = failure.message
        except Exception as failure:
            _log.exception("the model could not be changed")
            said = "An internal error occurred. The server's log has the details."
            raise gr.Error(said, print_exception=False) from failure
        return {
            **view_engine(services()).model_dump(mode="json"),
            "error": error,
            "request": number if isinstance(number, int) else None,
        }

    for event, listener in ((model.refresh, refresh), (model.swap, swap), (model.sleep, sleep), (model.wake, wake)):
        ran = on_server(event, listener, outputs=[model], trigger_mode="once")
        on_client(ran.failure, call("model", "failed"))
