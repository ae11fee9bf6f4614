"""Progress display of long operations: the start, a backup, a copy, an export."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

#: Minimum seconds between two progress lines where there is no terminal.
_MIN_LOG_INTERVAL_SECONDS = 10.0


class StageProgress:
    """Shows each stage as a progress bar in a terminal; in a log as a line, and again with a percentage if it is long.

    Called, from any thread, as ``progress(stage, fraction)``.
    """

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console)
        self._stages: dict[str, TaskID | None] = {}
        self._printed = 0.0  # monotonic time of the last line
        self._stopped = False
        self._lock = threading.Lock()

    def __enter__(self) -> StageProgress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the display; later calls are ignored."""
        self._stopped = True
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, stage: str, fraction: float) -> None:
        """Reports that ``fraction`` (0 to 1) of ``stage`` is done."""
        with self._lock:
            if self._stopped:
                return
            if stage not in self._stages:
                if self._console.is_terminal:
                    self._stages[stage] = self._bars.add_task(stage, total=1.0)
                else:
                    self._stages[stage] = None
                    self._print(f"{stage}...")
            task = self._stages[stage]
            if task is not None:
                self._bars.update(task, completed=fraction)
            elif time.monotonic() >= self._printed + _MIN_LOG_INTERVAL_SECONDS:
                self._print(f"{stage}: {fraction:.0%}")

    def note(self, line: str) -> None:
        """Prints a line of its own."""
        with self._lock:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False)
        self._printed = time.monotonic()
