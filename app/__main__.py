"""The program: ``deskmate``, or ``python -m app``."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the rest, which takes seconds, and run it."""
    # Until then Ctrl+C ends the process at once, instead of in a traceback from deep within a library.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.cli import main as cli

    signal.signal(signal.SIGINT, interrupt)
    cli.main()


if __name__ == "__main__":
    main()
