"""How a cell of a picture is drawn: the more ranks, the smaller, and the less is written in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .draw.svg_layout import Spacing

FEW, MANY = 128, 2048  # ranks up to which coordinates, and numbers, are written
CHARACTER = 0.61  # width of one to the size of its font, which is monospaced
LONGEST = 12  # characters of a label; longer ones lose their beginning


@dataclass(frozen=True)
class Cells:
    """The measures of a cell, in pixels; a font of size 0 is not written.

    Attributes:
        width: of a cell.
        height: of a cell.
        top: from the upper edge to the first band.
        band: height of a band.
        inset: from the left and right edge to a band.
        number: font of the rank.
        label: font of a coordinate.
        name: font of the name of a node.
        pad: from a box to its cells.
        gap: between cells.
        round: radius of the corners of a box.
    """

    width: int
    height: int
    top: int
    band: int
    inset: int
    number: int
    label: int
    name: int
    pad: int
    gap: int
    round: int

    def room(self, *, named: bool) -> Spacing:
        """What a cell takes in a box, with a line for the name of the node or without."""
        head = self.name + 2 if named else 0
        return Spacing(self.width, self.height, self.gap, self.pad, head, 2 * self.pad)

    def cut(self, label: str) -> str:
        """The end of a label that is too long: that is where the number stands.

        Example:
            >>> detail([("replicate_outer", 2)], 2, 1).cut("replicate_outer=1")
            '~cate_outer=1'
        """
        fits = int((self.width - 2 * self.inset) / (self.label * CHARACTER))
        return label if len(label) <= fits else "~" + label[1 - fits :]

    def prefix(self, node: int, width: int) -> str | None:
        """What stands before the number of a node in a box of a width; None where none fits."""
        room = (width - self.pad) / (self.name * CHARACTER)
        return next((p for p in ("node ", "") if len(f"{p}{node}") <= room), None)


def detail(axes: Sequence[tuple[str, int]], num_ranks: int, largest: int) -> Cells:
    """The cells of a picture.

    Args:
        axes: name and size of the axes that are longer than 1.
        num_ranks: how many cells there are.
        largest: the rank with the longest number.
    """
    bands, digits = len(axes), len(str(largest))
    if num_ranks <= FEW:
        label = max((len(f"{axis}={size - 1}") for axis, size in axes), default=0)
        wide = max(48, _wide(digits, 15) + 12, _wide(min(label, LONGEST), 11) + 14)
        return Cells(wide, 26 + 16 * bands, 23, 16, 3, 15, 11, 12, 8, 6, 6)
    if num_ranks <= MANY:
        wide = max(24, _wide(digits, 10) + 6)
        return Cells(wide, 15 + 6 * bands, 14, 6, 1, 10, 0, 10, 5, 3, 4)
    return Cells(9, max(9, 4 * bands), 0, 4, 0, 0, 0, 8, 3, 1, 2)


def _wide(characters: int, font: int) -> int:
    return math.ceil(characters * font * CHARACTER)
