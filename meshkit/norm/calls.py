"""The comparison of the calls of all ranks, so that unequal ones are refused.

Each rank states rows, and ranks of one class must have equal ones::

    call                     max_norm          1.0
    layout                   layers.0.weight   o/tp i        a side, of those who have the name
    sum over dp at tp=0      layers.0.bias     (16)          the ranks that take part in a sum

Ranks compare the first call with some names, layout and options, and calls in which a rank refuses
its arguments, or whose max_norm is not that of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ..data.checks import gather_conflicting
from ..data.conflicts import Holdings, Row, find_conflicts
from ..groups.registry import MeshGroups
from ..layout.axes import has_pipeline
from ..redistribute.pattern import first_match
from ..text import format_sizes
from .copies import Copy
from .shares import NormLayout, unequal_error

CALL = "call"  # the class of all ranks


class NormCall(NamedTuple):
    """The options of a call."""

    order: float
    max_norm: float | None  # None if nothing is scaled
    raises: bool  # an error for a norm that is not finite

    @property
    def kind(self) -> object:
        """The options that seldom change in a program, as those of a log and of a clipping."""
        return self.order, self.max_norm is None, self.raises


def state_call(
    mesh: MeshGroups,
    call: NormCall,
    layout: NormLayout,
    names: Mapping[str, str],
    pending: Sequence[Copy],
    meshes: Sequence[Sequence[int]],
) -> Holdings:
    """Return the rows of the call of this rank. Local.

    ``names`` has the name by which the layout knows each parameter, by its first name. ``pending``
    are the parts of sums, and ``meshes`` the ranks of the DeviceMesh of each DTensor.
    """
    at = mesh.plan.layout.coordinate(mesh.rank)
    options = {"norm_type": call.order, "max_norm": call.max_norm}
    options["error_if_nonfinite"] = call.raises
    rows = [Row(CALL, name, str(value)) for name, value in options.items()]
    stage = format_sizes({axis: n for axis, n in at.items() if has_pipeline([axis])})
    for name, known_as in names.items():
        side = first_match(layout.sides, known_as)
        rows.append(Row(f"layout {stage}", name, "no layout" if side is None else str(side)))
    for copy in pending:
        shape = f"{tuple(copy.local.shape)}{' complex' * copy.local.is_complex()}"
        axes, placements = copy.share.sums, copy.share.whole
        if axes:
            rows.append(Row(_class_of_sum(at, axes), copy.share.name, shape))
        if placements:
            members = copy.share.place[0].mesh.flatten().tolist()
            rows.append(Row(_class_of_partial(members), copy.share.name, f"partial {shape}"))
    classes = [CALL, *(_class_of_sum(at, axes) for axes in layout.sums)]
    classes += [_class_of_partial(members) for members in meshes]
    return Holdings(tuple(rows), tuple(dict.fromkeys(classes)))


def compare_norm_calls(mesh: MeshGroups, own: Holdings, device: torch.device) -> None:
    """Raise if ranks call with other options, or one of them refuses its call. Collective.

    Raises:
        DisagreementError: on all ranks, but for one that refuses.
    """
    grid, held = mesh.plan.layout, gather_conflicting(mesh, own, device)
    for row, contents in find_conflicts(held).items():
        raise unequal_error(grid, row, contents)


def _class_of_sum(at: Mapping[str, int], axes: Sequence[str]) -> str:
    """Return the class of the ranks that add up one gradient."""
    others = format_sizes({axis: n for axis, n in at.items() if axis not in axes})
    return f"sum over {' '.join(axes)}{f' at {others}' * bool(others)}"


def _class_of_partial(members: Sequence[int]) -> str:
    """Return the class of the ranks of a DeviceMesh."""
    return f"sum over the DeviceMesh of ranks {' '.join(map(str, members))}"
