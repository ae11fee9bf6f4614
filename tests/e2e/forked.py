"""``deskmate`` that has imported everything, which takes seconds: each of the tests' servers is a fork of it.

Its engine slows down where a reply is long: one that is there to be stopped must not end while
the browser stands still, and neither it nor its drawing takes the processor that other tests need.
"""

from __future__ import annotations

import time

from app.concurrency.garbage_collection import paused_gc
from tests.fork_server import serve_orders

with paused_gc():
    # What a server imports until it is ready.
    import uvloop  # noqa: F401

    import engine.engine
    import engine.execution.load
    import engine.execution.runner
    import engine.runtime.model_loading
    import engine.runtime.worker  # noqa: F401
    from app.cli.main import main as deskmate
    from engine.runtime.engine_core import EngineCore
    from engine.runtime.output_processor import StepOutput

LONG = 400  #: tokens, with the prompt
STEP_SECONDS = 0.05  #: at least, of a step with a long reply; models this small take up to four tokens in one


def _slow_down_long_replies() -> None:
    step = EngineCore.step

    def paced(core: EngineCore, output: StepOutput | None = None) -> StepOutput:
        if any(request.num_computed_tokens > LONG for request in core._scheduler.running):
            time.sleep(STEP_SECONDS)
        return step(core, output)

    EngineCore.step = paced  # type: ignore[assignment, method-assign]


def _run(arguments: list[str]) -> None:
    _slow_down_long_replies()
    deskmate(arguments)


if __name__ == "__main__":
    serve_orders(_run)
