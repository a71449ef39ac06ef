"""Sizes and positions of the SVG picture: how large a cell is, and its place in its node's box.

::

    +---------+ +---------+      every box is as large as the fullest node needs,
    | 0  1  2 | | 3  4  5 |      and cells are in the order of the grid
    +---------+ +---------+
    +---------+ +---------+
    | 6  7  8 | | 9 10    |
    +---------+ +---------+

All lengths are in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints

MAX_LABELED, MAX_NUMBERED = 128, 2048  # ranks up to which cells show coordinates, and ranks
CHARACTER_WIDTH = 0.61  # of a monospaced character, relative to the font size
MAX_LABEL = 12  # characters of a label; longer ones lose their beginning

PAGE_RATIO = 1.6  # preferred width to height of a page
BOX_RATIO = 6.0  # and of a box, if there are several
PARTIAL_ROW_COST = 0.7  # of a last row that is not full, in powers of e of the preferred ratio
CUT_AXIS_COST = 0.6  # of rows that cut through the innermost axis


@dataclass(frozen=True)
class CellStyle:
    """The measures of a cell. A font of size 0 means that the text is omitted."""

    width: int  # of a cell
    height: int  # of a cell
    top: int  # from the upper edge to the first band
    band: int  # height of a band
    inset: int  # from the left and right edge to a band
    number: int  # font size of the rank
    label: int  # font size of a coordinate
    title: int  # font size of a node's title
    pad: int  # between a box and its cells
    gap: int  # between cells
    radius: int  # of the corners of a box

    def cut(self, label: str) -> str:
        """Return the end of a long label; the number is at the end."""
        fits = int((self.width - 2 * self.inset) / (self.label * CHARACTER_WIDTH))
        return label if len(label) <= fits else "~" + label[1 - fits :]

    def title_prefix(self, node: int, width: int) -> str | None:
        """Return the text before a node number in a box title; None if the number does not fit."""
        fits = (width - self.pad) / (self.title * CHARACTER_WIDTH)
        return next((p for p in ("node ", "") if len(f"{p}{node}") <= fits), None)


def cell_style(axes: Sequence[tuple[str, int]], num_ranks: int, max_rank: int) -> CellStyle:
    """Return the measures of a cell; with more ranks, cells are smaller and show less text."""
    bands, digits = len(axes), len(str(max_rank))
    if num_ranks <= MAX_LABELED:
        label = max((len(f"{axis}={size - 1}") for axis, size in axes), default=0)
        width = max(48, _text_width(digits, 15) + 12, _text_width(min(label, MAX_LABEL), 11) + 14)
        return CellStyle(width, 26 + 16 * bands, 23, 16, 3, 15, 11, 12, 8, 6, 6)
    if num_ranks <= MAX_NUMBERED:
        width = max(24, _text_width(digits, 10) + 6)
        return CellStyle(width, 15 + 6 * bands, 14, 6, 1, 10, 0, 10, 5, 3, 4)
    return CellStyle(9, max(9, 4 * bands), 0, 4, 0, 0, 0, 8, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """The positions of cells and boxes."""

    cells: Ints  # int64 (num_ranks, 2), left and upper edge of each cell, by position in the grid
    boxes: Ints  # int64 (num_nodes, 2), left and upper edge of each box, by ascending node
    nodes: Ints  # int64 (num_nodes,), the node of each box
    box: tuple[int, int]  # width, height
    size: tuple[int, int]  # width, height of the whole picture


def arrange(nodes: Ints, style: CellStyle, inner_size: int, *, titled: bool) -> Arrangement:
    """Return the positions of boxes and cells in rows, which avoid cuts of the innermost axis."""
    head, margin = style.title + 2 if titled else 0, 2 * style.pad  # above cells, between boxes
    numbers, box_index, counts = np.unique(nodes, return_inverse=True, return_counts=True)
    fullest, step = int(counts.max()), (style.width + style.gap, style.height + style.gap)
    ratio = BOX_RATIO if len(numbers) > 1 else PAGE_RATIO
    across = num_columns(fullest, step, ratio, inner_size)
    padding = 2 * style.pad - style.gap
    box = (across * step[0] + padding, -(-fullest // across) * step[1] + padding + head)
    stride = box[0] + margin, box[1] + margin
    boxes_across = num_columns(len(numbers), stride, PAGE_RATIO, 1)
    boxes = _in_rows(np.arange(len(numbers)), boxes_across, stride)
    corner = np.array((style.pad, style.pad + head))
    cells = boxes[box_index] + corner + _in_rows(_slots(box_index, counts), across, step)
    boxes_down = -(-len(numbers) // boxes_across)
    size = boxes_across * stride[0] - margin, boxes_down * stride[1] - margin
    return Arrangement(cells, boxes, numbers, box, size)


def num_columns(count: int, step: tuple[int, int], ratio: float, inner_size: int) -> int:
    """Return how many elements to put in a row so that all rows together approach a ratio."""
    columns = np.arange(1, count + 1)
    rows = -(-count // columns)
    distance = np.abs(np.log(columns * step[0] / (rows * step[1]) / ratio))
    cuts = (columns % inner_size != 0) & (inner_size % columns != 0)
    partial = count % columns != 0
    return int(columns[np.argmin(distance + PARTIAL_ROW_COST * partial + CUT_AXIS_COST * cuts)])


def _slots(box_index: Ints, counts: Ints) -> Ints:
    """Return the index of each rank in its box, by position in the grid: int64 (num_ranks,)."""
    slots = np.empty_like(box_index)
    starts = np.cumsum(counts) - counts
    order = np.argsort(box_index, kind="stable")
    slots[order] = np.arange(len(box_index)) - np.repeat(starts, counts)
    return slots


def _in_rows(indices: Ints, columns: int, step: tuple[int, int]) -> Ints:
    """Return left and upper edge of elements in rows: int64 (len(indices), 2)."""
    corners: Ints = np.stack((indices % columns, indices // columns), axis=-1) * np.array(step)
    return corners


def _text_width(characters: int, font: int) -> int:
    return math.ceil(characters * font * CHARACTER_WIDTH)
