"""The abilities of a stream as the environment describes them: a terminal, and its colors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO


def shows_colors(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether text on a stream may be bold.

    NO_COLOR forbids them (https://no-color.org), and FORCE_COLOR allows them in a pipe.
    """
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    is_shown = forced or (is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb"))
    return is_shown and not environ.get("NO_COLOR")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is shown on a terminal. A closed stream is not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
