"""Ctrl-C, noted rather than raised, so that all ranks leave a measurement at the same call.

A rank that left alone would keep its peers in a collective. So a signal only sets a mark; ranks
tell each other their marks between measurements, and leave together. Where one process has started
the ranks and it alone gets the signal, a file stands for the mark.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType, TracebackType

AGAIN = 1.0  # seconds: a launcher passes on what the terminal has sent already


class Interruption:
    """Whether somebody has asked to stop. In ``with``, in the main thread: it holds SIGINT.

    A second signal, a second or more after the first, is a KeyboardInterrupt as ever.

    Args:
        file: what stands for the mark of all processes on this machine; None where there is none.
    """

    def __init__(self, file: str | None = None) -> None:
        self._file = None if file is None else Path(file)
        self._since: float | None = None

    def __enter__(self) -> Interruption:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __bool__(self) -> bool:
        return self._since is not None or (self._file is not None and self._file.exists())

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._since is not None and now - self._since > AGAIN:
            raise KeyboardInterrupt
        self._since = now if self._since is None else self._since
        if self._file is not None:
            self._file.touch()
