"""The abilities of a stream as the environment describes them: its colors, and completion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

MAX_COLORS = 2**24


def num_colors(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> int:
    """Return the colors that text on a stream may use: 0, 256 or 2**24.

    NO_COLOR forbids them (https://no-color.org), and FORCE_COLOR allows them in a pipe.
    """
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    is_shown = forced or (is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb"))
    if environ.get("NO_COLOR") or not is_shown:
        return 0
    return MAX_COLORS if environ.get("COLORTERM", "") in ("truecolor", "24bit") else 256


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is shown on a terminal. A closed stream is not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def completes_words(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a shell asks for the words that may follow on the command line."""
    return "_ARGCOMPLETE" in environ
