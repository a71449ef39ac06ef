"""``--svg FILE``: the grid as a picture, beside what a command prints."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from ..core.call import Call
from ..core.draw.svg import MAX_RANKS, draw_svg
from ..core.errors import SpecError, told
from ..core.layout import Layout
from ..core.seats import Ints


def add_svg(parser: ArgumentParser) -> None:
    """Give a parser the option ``--svg``."""
    text = "also draw the grid into this file, for a browser: axes are colours, nodes are boxes"
    parser.add_argument("--svg", metavar="FILE", help=text)


def draw_into(path: str | None, layout: Layout, nodes: Ints | None, call: Call) -> None:
    """Draw the grid into a file, which is replaced; nothing where there is no path.

    Args:
        path: as typed, or None.
        layout: the grid.
        nodes: as for :func:`meshkit.core.draw.svg.draw_svg`.
        call: the command, for errors.

    Raises:
        SpecError: for a file that cannot be written; for more ranks than a picture has, before a
            file is touched.
    """
    if path is None:
        return
    if layout.num_ranks > MAX_RANKS:
        line = f"{call}: {layout.num_ranks} ranks are too many for a picture."
        raise SpecError(told(line, f"Up to {MAX_RANKS} are drawn.", fix=f"{call.but(svg=None)}."))
    if path in ("", "-"):
        line = f"{call}: the picture goes into a file, and there is no name of one."
        raise SpecError(told(line, fix=f"{call.but(svg='grid.svg')}, say."))
    text = draw_svg(layout, nodes)
    try:
        Path(path).write_text(text, encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        line = f"{call}: the picture cannot be written: {reason}."
        raise SpecError(
            told(line, fix="a file in a folder that exists and may be written.")
        ) from error
