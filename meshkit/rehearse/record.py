"""The traces of a rehearsal: operations of played ranks, and the ranks that stand for all others.

A trace has the operations of a rank in the order of its program, each with its group, and the
moments at which the rank waits for one of them::

    rank 0   start 0: all_reduce over tp     wait 0     start 1: send to 4 over pp     wait 1
    rank 4   start 0: all_reduce over tp     wait 0     start 1: recv from 0 over pp   wait 1

Along each axis the first rank, the second and the last are played, since these differ in programs:
the first one logs and saves, the last one has the end of a pipeline or of the data. The second one
stands for all between them::

    dp=8    0 1 . . . . . 7        0, 1 and 7 are played; 1 stands for 2 to 6
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ..errors import CoordinateError
from ..layout.axes import data_axes
from ..layout.layout import Layout
from ..text import format_sizes

MAX_NAMED = 4  # ranks with one operation that a line names
ANY = -1  # the peer of a receive from whichever rank sends first; the size that may differ
MESSAGES = ("send", "recv")


# received values: made up, those of this rank until the next pass knows better, those of played
# ranks, which stand for the others of the group, or those of all its ranks
Source = Literal["made up", "own", "played", "all"]


class GroupRecord(NamedTuple):
    """A group that a rank has created."""

    members: tuple[int, ...]  # global ranks, in order
    serial: int  # how many groups of equal members the rank has created before
    description: str = ""

    @property
    def key(self) -> GroupRecord:
        """The same group without its description, which ranks may give differently."""
        return self._replace(description="")


class Operation(NamedTuple):
    """A collective or a message of one rank."""

    name: str  # ``"all_reduce"``, ``"send"``...
    group: int  # index into the groups of the trace
    dtype: str = ""  # ``"f32"``
    shape: tuple[int, ...] = ()  # of its first tensor
    numel: int = 0  # elements of all its tensors; ANY if they may differ between ranks
    detail: str = ""  # the reduction; for an agreement what is compared
    root: int = ANY  # global rank of the root
    peer: int = ANY  # global rank of the other end of a message
    tag: int = 0
    num_bytes: int = 0  # that the rank hands over
    line: str = ""  # of the program, ``"train.py:88"``

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.name in MESSAGES

    @property
    def content(self) -> tuple[object, ...]:
        """The parts that must be equal on all ranks of the group."""
        return self.name, self.dtype, self.numel, self.detail, self.root

    def __str__(self) -> str:
        if self.name in ("agree", "new_group"):
            return f"{self.name} {self.detail}".rstrip()
        words = [self.name, self.dtype, f"{[*self.shape]}" if self.dtype else "", self.detail]
        words += [f"root {self.root}"] * (self.root != ANY)
        words += [f"tag {self.tag}"] * (self.tag != 0)
        return " ".join(word for word in words if word)


@dataclass(eq=False)
class Trace:
    """The operations of one played rank."""

    rank: int
    groups: list[GroupRecord] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    # an index of an operation that begins, or -1 - index when the rank waits for its end
    events: list[int] = field(default_factory=list)
    layouts: list[dict[str, int]] = field(default_factory=list)  # sizes of the meshes it built
    memory: dict[str, int] = field(default_factory=dict)  # kind to bytes
    # the first read of received values from each source: operations before it, line of the program
    reads: dict[Source, tuple[int, str]] = field(default_factory=dict)
    num_names: int = 0  # groups that torch has counted on this rank, those of other ranks included
    has_ended: bool = True  # whether its program ended without an error


@dataclass(frozen=True)
class Group:
    """A group of ranks: its axes in the mesh, and its members. ``axes`` is empty if unknown."""

    axes: tuple[str, ...]
    members: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its axes as text, ``"dp sp"``."""
        return " ".join(self.axes)

    def __str__(self) -> str:
        shown = [*map(str, self.members)]
        if len(shown) > MAX_NAMED:
            shown = [*shown[:2], "...", shown[-1]]
        return f"{self.name} group [{', '.join(shown)}]".lstrip()


@dataclass(frozen=True)
class Mismatch:
    """Ranks whose operations do not match.

    Attributes:
        group: the group, with ``.axes`` and ``.members``.
        ranks: the ranks that differ from most others, or all if there is no majority.
        operation: the operation of the first of these ranks, with ``.name`` and ``.line``.
        text: all of it, with coordinates and lines.
        check: the check that failed: ``"collectives"``, ``"p2p"`` or ``"order"``.
        lines: the lines of the program that the text has.
        read: the line of the program at which a rank has read made-up values before; else empty.
    """

    group: Group
    ranks: tuple[int, ...]
    operation: Operation
    text: str
    check: str
    lines: tuple[str, ...]
    read: str = ""


@dataclass(frozen=True, eq=False)
class Names:
    """The names of ranks and groups, by the meshes of the program."""

    layouts: Sequence[Layout]  # the first one names ranks
    known: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank; empty if unknown."""
        layout = self.layouts[0] if self.layouts else None
        return layout.coordinate(rank) if layout is not None and rank in layout else {}

    def rank(self, rank: int) -> str:
        """Return a rank with its coordinate: ``rank 7 (dp=3 tp=1)``."""
        coordinate = format_sizes(self.coordinate(rank))
        return f"rank {rank} ({coordinate})" if coordinate else f"rank {rank}"

    def group(self, members: tuple[int, ...]) -> Group:
        """Return a group with its axes."""
        if members not in self.known:
            axes = (find_axes(layout, members) for layout in self.layouts)
            self.known[members] = next((names for names in axes if names), ())
        return Group(self.known[members], members)

    def within(self, group: Group, rank: int) -> str:
        """Return a rank by its indices in a group: ``pp=7``."""
        coordinate = self.coordinate(rank)
        is_named = group.axes and all(axis in coordinate for axis in group.axes)
        if is_named and len(group.axes) < len(coordinate):
            return format_sizes({axis: coordinate[axis] for axis in group.axes})
        return f"rank {rank}"


def find_axes(layout: Layout, members: Sequence[int]) -> tuple[str, ...]:
    """Return the axes of which some ranks are a group; empty if they are none."""
    try:
        coordinates = layout.coordinates(members)  # (num_members, num_axes)
    except CoordinateError:
        return ()
    varies = (coordinates != coordinates[0]).any(axis=0)
    axes = tuple(axis for axis, does in zip(layout.axes, varies, strict=True) if does)
    if not axes or layout.size(*axes) != len(members):
        return ()
    return axes if sorted(members) == sorted(layout.peers(members[0], *axes).tolist()) else ()


def corner_ranks(layout: Layout, most: int = 64) -> list[int]:
    """Return ranks that stand for all others: the first, second and last index along each axis.

    If these are more than ``most``, all first and last indices are kept, and a second index is
    combined with them along one axis at a time, or with the first ones only.
    """
    shape = layout.shape
    ends = _grid([{0, size - 1} for size in shape])
    ranks = _grid([{0, min(1, size - 1), size - 1} for size in shape])
    if len(ranks) > most:
        seconds = [(*c[:i], 1, *c[i + 1 :]) for i, n in enumerate(shape) if n > 2 for c in ends]
        first = (0,) * len(shape)
        few = [(*first[:i], 1, *first[i + 1 :]) for i, n in enumerate(shape) if n > 2]
        both = {*ends, *seconds}
        ranks = both if len(both) <= most else {*ends, *few}
    named = [dict(zip(layout.axes, coordinate, strict=True)) for coordinate in ranks]
    return sorted(layout.rank(**coordinate) for coordinate in named)


def _grid(choices: Sequence[set[int]]) -> set[tuple[int, ...]]:
    grids = np.meshgrid(*[sorted(choice) for choice in choices], indexing="ij")
    return set(zip(*(grid.ravel().tolist() for grid in grids), strict=True)) if choices else {()}


def standing_corner(
    layout: Layout, rank: int, corners: Iterable[int], stages: Collection[str] = ()
) -> int:
    """Return the corner that stands for a rank: first for first, last for last, second otherwise.

    If that corner was not played, the nearest one counts, with model axes first. Along the axes
    ``stages`` each index stands for itself alone.
    """
    data = data_axes(layout.sizes)
    own = layout.coordinate(rank)

    def distance(corner: int) -> tuple[int, int, int]:
        other = layout.coordinate(corner)
        wrong = [
            axis
            for axis, size in layout.sizes.items()
            if _kind(own[axis], size) != _kind(other[axis], size)
            or (axis in stages and own[axis] != other[axis])
        ]
        far = sum(abs(own[axis] - other[axis]) for axis in own)
        return sum(axis not in data for axis in wrong), len(wrong), far

    return min(corners, key=distance)


def _kind(index: int, size: int) -> int:
    return 0 if index == 0 else 2 if index == size - 1 else 1


def derive_layout(world_size: int, groups: Iterable[GroupRecord]) -> dict[str, int]:
    """Return sizes by the groups of rank 0 if the program has built no mesh of meshkit.

    The ranks of a group are a step apart. An axis begins at each step, and where a group ends.
    Groups that a DeviceMesh has made are described as ``mesh_dp`` or ``meshkit dp``. An axis
    without a description is named by its step: the ranks along ``stride8`` are 8 apart.
    """
    names: dict[tuple[int, int], str] = {}  # step and size of a group to its name
    for members, _, description in groups:
        size, step = len(members), members[1] - members[0] if len(members) > 1 else 1
        if description != "default_pg" and members == tuple(range(0, step * size, step)):
            names.setdefault((step, size), description.removeprefix("mesh_").split(" ")[-1])
    ends = sorted({end for step, size in names for end in (step, step * size)} | {world_size})
    sizes: dict[str, int] = {}
    step = 1
    for end in ends:
        if end > step and end % step == 0 and world_size % end == 0:
            name = names.get((step, end // step), "")
            is_name = name.isidentifier() and name != "undefined" and name not in sizes
            sizes[name if is_name else f"stride{step}"] = end // step
            step = end
    return {"rank": world_size} if [*sizes] == ["stride1"] else dict(reversed(sizes.items()))
