"""Ctrl-C sets a flag instead of raising, so that all ranks stop after the same measurement.

A rank that stopped alone would leave its peers waiting in a collective. The signal therefore only
sets a flag. Ranks exchange their flags between measurements, and stop together. If one process has
started the ranks and it alone gets the signal, a file passes the flag to them.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

SAME_SIGNAL = 1.0  # seconds: a launcher forwards the signal that the terminal has already sent


class Interruption:
    """Whether the user has pressed Ctrl-C. A context manager for the main thread: it holds SIGINT.

    A second signal, more than a second after the first, raises KeyboardInterrupt as usual.
    """

    def __init__(self, file: str | None = None) -> None:
        self._file = None if file is None else Path(file)
        self._since: float | None = None

    def __enter__(self) -> Interruption:
        self._previous = signal.signal(signal.SIGINT, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def __bool__(self) -> bool:
        return self._since is not None or (self._file is not None and self._file.exists())

    def _set(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._since is not None and now - self._since > SAME_SIGNAL:
            raise KeyboardInterrupt
        self._since = now if self._since is None else self._since
        if self._file is not None:
            self._file.touch()
