"""Progress of long work: one line that is redrawn on a terminal, a line every 30 s in a log."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

LOG_INTERVAL = 30.0  # seconds between two lines in a log
REDRAW_INTERVAL = 0.5  # seconds between two states of the line on a terminal
TICK = 0.05  # seconds that the thread sleeps at least
CLEAR = "\r\x1b[K"  # to the first column, then erase the line


def shows_colors(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether text on a stream may be bold.

    NO_COLOR forbids it (https://no-color.org), and FORCE_COLOR allows it in a pipe.
    """
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    is_shown = forced or (_is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb"))
    return is_shown and not environ.get("NO_COLOR")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


class Progress:
    """The progress of one task. A failure to write never stops the task.

    Args:
        title: the words before the state, for example ``"meshkit check"``.
        stream: usually stderr; None writes nothing.
        clock: seconds.
    """

    def __init__(
        self, title: str, stream: TextIO | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._stream, self._clock = title, stream, clock
        self._is_terminal, self._lock = _is_terminal(stream), threading.Lock()
        self.interval = REDRAW_INTERVAL if self._is_terminal else LOG_INTERVAL
        self._began = clock()
        # on a terminal the first state is shown at once
        self._written = -math.inf if self._is_terminal else self._began
        self._is_drawn = False
        self.state = ""

    @property
    def seconds_left(self) -> float:
        """The seconds until the next line is due; infinite if nothing is ever written."""
        due = self._written + self.interval - self._clock()
        return math.inf if self._stream is None else max(0.0, due)

    def show(self, state: str | None = None) -> None:
        """Set the state, and write it if the interval has passed. Any thread may call it."""
        with self._lock:
            self.state = self.state if state is None else state
            if not self.state or self.seconds_left:
                return
            self._written = self._clock()
            line = f"{self._title}: {self._written - self._began:.0f} s: {self.state}"
            if self._is_terminal:
                columns = shutil.get_terminal_size((80, 24)).columns
                line, self._is_drawn = f"{CLEAR}{line[: columns - 1]}", True
            self._write(line if self._is_terminal else f"{line}\n")

    def write_line(self, line: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._write(f"{line}\n")

    def close(self) -> None:
        """Erase the line from the terminal. Lines in a log stay."""
        with self._lock:
            self._write(CLEAR * self._is_drawn)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe or stream
            self._stream = None


@contextmanager
def show_progress(progress: Progress) -> Iterator[Progress]:
    """Show the progress from a thread while the body of the ``with`` statement works."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(min(max(progress.seconds_left, TICK), threading.TIMEOUT_MAX)):
            progress.show()

    thread = threading.Thread(target=repeat, name="meshkit-progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()
        progress.close()
