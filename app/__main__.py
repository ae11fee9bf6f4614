"""Entry point of ``deskmate`` and ``python -m app``."""

from __future__ import annotations

import signal

from app.concurrency.garbage_collection import paused_gc


def main() -> None:
    """Imports the command line and runs it."""
    # During the import, Ctrl+C ends the process at once, instead of with a traceback from deep within a library.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    with paused_gc():
        from app.cli import main as cli

    signal.signal(signal.SIGINT, interrupt)
    cli.main()


if __name__ == "__main__":
    main()
