"""Choose the ranks of a rehearsal that stand for all others, and compare others with them.

Along each axis the first rank, the second and the last are played, since these differ in programs:
the first one logs and saves, the last one has the end of a pipeline or of the data. The second one
stands for all between them::

    dp=8    0 1 . . . . . 7        0, 1 and 7 are played; 1 stands for 2 to 6
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from .axes import data_axes
from .layout import Layout
from .rehearsal import ANY, GroupRecord, Names, Operation, Trace


def uneven_data(traces: Mapping[int, Trace], names: Names) -> list[str]:
    """Return a line for ranks that differ along data axes only and run other numbers of operations.

    Such ranks may read different numbers of samples without communicating over the data axes.
    """
    if not names.layouts:
        return []
    data = data_axes(names.layouts[0].sizes)
    classes: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, trace in traces.items():
        coordinate = names.coordinate(rank)
        if trace.has_ended and coordinate:
            key = tuple(index for axis, index in coordinate.items() if axis not in data)
            classes[key].append(rank)
    lines = []
    for ranks in classes.values():
        counts = {rank: _counts(traces[rank], names) for rank in ranks}
        for rank in ranks[1:]:
            first = counts[ranks[0]]
            axes = [a for a in {**first, **counts[rank]} if first[a] != counts[rank][a]]
            if axes:
                over = ", ".join(
                    f"{counts[rank][a]} and {first[a]} over {a or 'other groups'}" for a in axes
                )
                lines.append(
                    f"{names.rank(rank)} and {names.rank(ranks[0])} differ along "
                    f"{' and '.join(data)} only and run other numbers of operations: {over}."
                )
                break
    return lines


def _counts(trace: Trace, names: Names) -> Counter[str]:
    axes = [names.group(group.members).name for group in trace.groups]
    return Counter(axes[op.group] for op in trace.operations if op.name != "new_group")


def differs_from(trace: Trace, corner: Trace, names: Names) -> str:
    """Return the first operation in which a rank differs from the one that stands for it."""
    for number, (own, other) in enumerate(
        zip_longest(_relative(trace, names), _relative(corner, names))
    ):
        if own != other:
            ops = [t.operations[number : number + 1] for t in (trace, corner)]
            texts = [f"{op[0]}{_peer_of(op[0])} ({op[0].line})" if op else "nothing" for op in ops]
            return f"operation {number} is {texts[0]}, and there {texts[1]}"
    return ""


def _peer_of(operation: Operation) -> str:
    words = {"send": " to rank", "recv": " from rank"}
    return f"{words[operation.name]} {operation.peer}" if operation.is_message else ""


def _relative(trace: Trace, names: Names) -> Iterable[tuple[object, ...]]:
    """Yield the operations of a rank with all ranks replaced by their places in groups."""
    groups = [names.group(group.members) for group in trace.groups]
    for op in trace.operations:
        group, root, peer = groups[op.group], op.root, op.peer
        if op.name == "new_group":
            yield op.name, group.axes
            continue
        if peer != ANY:
            peer = group.members.index(peer) - group.members.index(trace.rank)
        root = group.members.index(root) if root != ANY else ANY
        yield op.name, group.axes, op.dtype, op.numel, op.detail, root, peer % len(group.members)


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
