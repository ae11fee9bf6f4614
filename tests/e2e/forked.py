"""``deskmate`` that has imported everything, which takes seconds: each of the tests' servers is a fork of it."""

from __future__ import annotations

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


def _run(arguments: list[str]) -> None:
    deskmate(arguments)


if __name__ == "__main__":
    serve_orders(_run)
