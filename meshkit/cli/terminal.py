"""The abilities of the terminal: its columns, its characters, its colors, its open streams."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from ..core.draw.colors import axis_hues, nearest_of_256
from ..launch.output.console import MAX_COLORS, num_colors

LINES = "┌─┐│└┘"  # all characters of pictures that are not ASCII
BOLD, RESET = "\x1b[1m", "\x1b[0m"
FIX = re.compile(r"^(  Fix:)", re.MULTILINE)


def get_width() -> int:
    """Return the columns of the terminal, or of ``COLUMNS`` if set; 80 if unknown."""
    return shutil.get_terminal_size((80, 24)).columns


def get_line_characters() -> str:
    """Return the line-drawing characters that stdout can encode: all of them, or none."""
    try:
        LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ""
    return LINES


def paint(text: str, axes: Sequence[str], name: str) -> str:
    """Return a text with each axis in its color of the pictures, if the stream shows colors."""
    colors = num_colors(getattr(sys, name))
    if not colors or not text:
        return text
    text = FIX.sub(rf"{BOLD}\1{RESET}", text)
    if not axes:
        return text
    hues = axis_hues(axes)
    codes = {axis: _color_code(hue, colors) for axis, hue in hues.items()}
    names = "|".join(map(re.escape, sorted(axes, key=len, reverse=True)))
    pattern = rf"(?<![\w-])({names})(=-?\d+|=\.\.\.)?(?![\w=])"
    return re.sub(pattern, lambda match: f"{codes[match[1]]}{match[0]}{RESET}", text)


def _color_code(color: tuple[int, int, int], colors: int) -> str:
    if colors < MAX_COLORS:
        return f"\x1b[38;5;{nearest_of_256(color)}m"
    return "\x1b[38;2;{};{};{}m".format(*color)


def open_stream(name: str) -> bool:
    """Return whether a stream of this process is open, and replace a closed one by the null device.

    Python sets a stream to None that was closed at its start. Text for stderr would then go to
    stdout, and the next opened file or socket would get the number of the stream.
    """
    if getattr(sys, name) is not None:
        return True
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(null, null <= 2)  # child processes inherit it as their stream
    setattr(sys, name, os.fdopen(null, "w", closefd=False))
    return False


def write_stream(text: str, name: str) -> bool:
    """Write to a stream and flush it. Return False, and close the stream, if that fails."""
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe or a full disk; Python would report it again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
