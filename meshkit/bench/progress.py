"""Progress of a sweep on stderr: a line at the start, then one every 10 seconds at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from ..core.grid.layout import Layout
from ..core.text import count_noun
from .results.measurement import Case
from .results.run import modes, total_passes

INTERVAL = 10.0  # seconds between lines


class Progress:
    """Writer of progress lines, on one rank."""

    def __init__(
        self,
        layout: Layout,
        cases: Sequence[Case],
        max_alone: int | None,
        calls: int,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream: TextIO | None = stream
        self._clock = clock
        self._written = -math.inf
        self._done, self._num_cases = 0, len(cases)
        rows = count_noun(sum(len(modes(layout, case.target)) for case in cases), "row")
        passes = count_noun(total_passes(layout, cases, max_alone), "pass")
        self._write(f"{rows} in {passes}, one after the other, each of up to {calls} calls\n")

    def __call__(self, case: Case) -> None:
        """Write a line after the first case, and then every ``INTERVAL`` seconds."""
        done, now = self._done, self._clock()
        self._done += 1
        if done and now - self._written >= INTERVAL:
            self._written = now
            self._write(f"{100 * done // self._num_cases} %: {case}\n")

    def _write(self, text: str) -> None:
        """Write, as long as the stream accepts it: a failure here must not cost the results."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._stream = None
