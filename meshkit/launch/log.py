"""The log of meshkit: one line of rank 0 when a job is joined, and one when a mesh is built.

The logger is ``logging.getLogger("meshkit")``, and a program configures it as any other.
``init(verbose=True)`` or MESHKIT_LOG=info shows its lines on stderr without a configuration.

An uncaught error of meshkit is also written to the error file of torchrun, whose summary shows it.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

from ..errors import MeshkitError, format_error

LOGGER = logging.getLogger("meshkit")
VARIABLE = "MESHKIT_LOG"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class Startup(NamedTuple):
    """The seconds of this rank's start by phase, in the order of the phases.

    Attributes:
        phases: phase to seconds. ``"store"`` reaches the store and takes the rank, ``"arrival"``
            waits for all ranks, ``"default group"`` creates it. ``"agreement"`` compares the
            requests of a mesh, ``"groups"`` creates its groups, and ``"end"`` waits until all
            ranks have done so. A phase that the mesh did not need is missing.

    Example:
        >>> print(Startup({"store": 0.25, "arrival": 1.5}))
        store 0.25 s, arrival 1.5 s
    """

    phases: Mapping[str, float] = {}

    @property
    def seconds(self) -> float:
        """The seconds of all phases together."""
        return sum(self.phases.values())

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.3g} s" for phase, seconds in self.phases.items())


def show_log(level: int = logging.INFO) -> None:
    """Show lines of a level and above, on stderr if the program has configured no logging."""
    LOGGER.setLevel(level)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)


def log_line(text: str, *values: object) -> None:
    """Log a line. Rank 0 of the job calls it. Local."""
    requested = os.environ.get(VARIABLE, "")
    if requested.lower() in LEVELS:
        show_log(LEVELS[requested.lower()])
    elif requested:
        line = format_error(f"{VARIABLE}={requested!r} is no level.", fix=f"export {VARIABLE}=info")
        warnings.warn(line, RuntimeWarning, stacklevel=2)
    LOGGER.info(text, *values)


@cache
def report_uncaught_error() -> None:
    """Write torchrun's error file at the end of this process, if an error of meshkit ends it."""
    if os.environ.get(ERROR_FILE):
        atexit.register(_write_last_error, os.environ[ERROR_FILE], os.getpid())


def _write_last_error(path: str, pid: int) -> None:
    """Write the error that ended the program, unless torch's ``record`` has written it."""
    error = getattr(sys, "last_value", None)  # set by the interpreter for an uncaught error
    if not isinstance(error, MeshkitError) or pid != os.getpid() or Path(path).exists():
        return
    # here, since the parent of spawned ranks does without torch
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    try:
        raise error  # torch writes the traceback of the error that is handled
    except MeshkitError:
        with suppress(OSError):
            ErrorHandler().record_exception(error)


LOG_INTERVAL = 30.0  # seconds between two lines in a log
REDRAW_INTERVAL = 0.5  # seconds between two states of the line on a terminal
TICK = 0.05  # seconds that the thread sleeps at least
CLEAR = "\r\x1b[K"  # to the first column, then erase the line


def shows_colors(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether text may be bold: not with NO_COLOR, and in a pipe with FORCE_COLOR."""
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    is_shown = forced or (is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb"))
    return is_shown and not environ.get("NO_COLOR")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is an open terminal."""
    return stream is not None and not stream.closed and stream.isatty()


class Progress:
    """The progress of one task under a title. A failure to write, or no stream, never stops it."""

    def __init__(
        self, title: str, stream: TextIO | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._stream, self._clock = title, stream, clock
        self._is_terminal, self._lock = is_terminal(stream), threading.Lock()
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
