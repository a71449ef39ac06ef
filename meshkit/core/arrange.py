"""Where the cell of each rank stands on a page: cells side by side in a box a node.

::

    +---------+ +---------+      a box has room for the fullest node,
    | 0  1  2 | | 3  4  5 |      and its cells are in the order of the grid
    +---------+ +---------+
    +---------+ +---------+
    | 6  7  8 | | 9 10    |
    +---------+ +---------+
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .seats import Ints

PAGE = 1.6  # width to height of a page
BOX = 6.0  # and of one box of several
UNEVEN = 0.7  # what a last row that is not full counts, in powers of e of the wanted shape
ACROSS = 0.6  # what a row that cuts through the innermost axis counts


@dataclass(frozen=True)
class Room:
    """What a cell and what is around it take, in pixels.

    Attributes:
        width: of a cell.
        height: of a cell.
        gap: between cells.
        pad: from a box to its cells.
        head: above the cells of a box, for its name.
        apart: between boxes.
    """

    width: int
    height: int
    gap: int
    pad: int
    head: int
    apart: int


@dataclass(frozen=True)
class Arrangement:
    """Where all stands, in pixels from the upper left corner.

    Attributes:
        cells: int64 (num_ranks, 2), the left and upper edge of each cell, by position in the grid.
        boxes: int64 (num_nodes, 2), the same of each box, by ascending node.
        nodes: int64 (num_nodes,), which node each box is.
        box: width and height of a box.
        size: width and height of it all.
    """

    cells: Ints
    boxes: Ints
    nodes: Ints
    box: tuple[int, int]
    size: tuple[int, int]


def arranged(nodes: Ints, room: Room, inner: int) -> Arrangement:
    """Boxes in rows on a page, cells in rows in a box. O(num_ranks).

    Args:
        nodes: int64 (num_ranks,), the node of each rank, by position in the grid.
        room: what a cell and a box take.
        inner: the size of the innermost axis, which rows should not cut.

    Example:
        >>> room = Room(width=10, height=10, gap=0, pad=0, head=0, apart=0)
        >>> arranged(np.array([0, 0, 1, 1]), room, 2).cells.tolist()
        [[0, 0], [10, 0], [0, 10], [10, 10]]
    """
    names, box_of, held = np.unique(nodes, return_inverse=True, return_counts=True)
    fullest, step = int(held.max()), (room.width + room.gap, room.height + room.gap)
    across = columns(fullest, step, BOX if len(names) > 1 else PAGE, inner)
    around = 2 * room.pad - room.gap
    box = (
        across * step[0] + around,
        -(-fullest // across) * step[1] + around + room.head,
    )
    stride = box[0] + room.apart, box[1] + room.apart
    wide = columns(len(names), stride, PAGE, 1)
    boxes = _in_rows(np.arange(len(names)), wide, stride)
    corner = np.array((room.pad, room.pad + room.head))
    cells = boxes[box_of] + corner + _in_rows(_slots(box_of, held), across, step)
    size = wide * stride[0] - room.apart, -(-len(names) // wide) * stride[1] - room.apart
    return Arrangement(cells, boxes, names, box, size)


def columns(number: int, step: tuple[int, int], shape: float, inner: int) -> int:
    """How many things to put in a row, so that all of them come near a shape.

    Args:
        number: how many there are.
        step: width and height of one.
        shape: the wanted width to height.
        inner: rows that hold a multiple of it, or divide it, are preferred.

    Example:
        >>> columns(64, (1, 1), 1.0, 1), columns(64, (1, 1), 1.0, 32), columns(7, (1, 1), 6.0, 1)
        (8, 8, 7)
    """
    wide = np.arange(1, number + 1)
    tall = -(-number // wide)
    far = np.abs(np.log(wide * step[0] / (tall * step[1]) / shape))
    cuts = (wide % inner != 0) & (inner % wide != 0)
    return int(wide[np.argmin(far + UNEVEN * (number % wide != 0) + ACROSS * cuts)])


def _slots(box_of: Ints, held: Ints) -> Ints:
    """The place of each rank in its box, by position in the grid: int64 (num_ranks,)."""
    slots = np.empty_like(box_of)
    starts = np.cumsum(held) - held
    order = np.argsort(box_of, kind="stable")
    slots[order] = np.arange(len(box_of)) - np.repeat(starts, held)
    return slots


def _in_rows(places: Ints, wide: int, step: tuple[int, int]) -> Ints:
    """Left and upper edge of things in rows: int64 (len(places), 2)."""
    corners: Ints = np.stack((places % wide, places // wide), axis=-1) * np.array(step)
    return corners
