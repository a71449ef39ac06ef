"""``--svg FILE``: the grid as a picture, beside what a command prints."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from ..core.errors import SpecError, told
from ..core.layout import Layout
from ..core.seats import Ints
from ..core.svg import svg


def add_svg(parser: ArgumentParser) -> None:
    """Give a parser the option ``--svg``."""
    text = "also draw the grid into this file, for a browser: axes are colours, nodes are boxes"
    parser.add_argument("--svg", metavar="FILE", help=text)


def draw_into(path: str | None, layout: Layout, nodes: Ints | None) -> None:
    """Draw the grid into a file, which is replaced; nothing where there is no path.

    Args:
        path: as typed, or None.
        layout: the grid.
        nodes: as for :func:`meshkit.core.svg.svg`.

    Raises:
        SpecError: for a file that cannot be written; and as ``svg``, before a file is touched.
    """
    if path is None:
        return
    text = svg(layout, nodes)
    try:
        Path(path).write_text(text, encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        line = f"--svg {path}: the picture cannot be written: {reason}."
        raise SpecError(
            told(line, fix="a file in a folder that exists and may be written.")
        ) from error
