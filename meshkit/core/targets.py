"""What collectives are measured over: groups of one axis, of two, of all; and two axes at once.

::

    dp        the groups of an axis
    dp sp     the groups over two axes
    dp+sp     each rank in its group of dp and in that of sp at the same time
    world     the group of all ranks

In training the gradients of dp travel while the layers of tp, sp, cp and ep still talk, and pp
sends beside all of them. Those four wait for each other and do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from .axes import check_known
from .call import Call
from .errors import SpecError, told
from .layout import Layout
from .plan import Axes

WORLD = "world"  # all axes, where none is called that
INNER = frozenset({"ep", "cp", "sp", "tp"})  # one after the other inside a layer


@dataclass(frozen=True)
class Target:
    """Groups that a collective runs over.

    Attributes:
        groups: the axes of the groups; two entries where collectives run on both at once.
    """

    groups: tuple[Axes, ...]

    @property
    def name(self) -> str:
        """As it is typed: ``dp``, ``dp sp`` or ``dp+sp``."""
        return "+".join(" ".join(axes) for axes in self.groups)

    @property
    def span(self) -> Axes:
        """All axes; ranks that differ in no others depend on each other."""
        return tuple(axis for axes in self.groups for axis in axes)


def wide(layout: Layout) -> Axes:
    """The axes with more than one rank, from the outside in."""
    return tuple(axis for axis in layout.axes if layout.size(axis) > 1)


def every_target(layout: Layout) -> tuple[Target, ...]:
    """Each axis, each two axes, the world, and each two that overlap in training. Pure.

    Axes of one rank are left out. O(axes squared).

    Example:
        >>> [target.name for target in every_target(Layout(dp=2, sp=2, tp=2))]
        ['dp', 'sp', 'tp', 'dp sp', 'dp tp', 'sp tp', 'dp sp tp', 'dp+sp', 'dp+tp']
    """
    axes = wide(layout)
    two = list(combinations(axes, 2))
    sets = dict.fromkeys([*((axis,) for axis in axes), *two, *([axes] if axes else [])])
    both = [Target(((a,), (b,))) for a, b in two if not {a, b} <= INNER]
    return (*(Target((one,)) for one in sets), *both)


def typed_targets(
    layout: Layout, names: Sequence[str], call: Call | None = None
) -> tuple[Target, ...]:
    """Targets as they are typed, each once: sp+dp is dp+sp, world all axes. Pure.

    Args:
        layout: the grid.
        names: ``"dp"``, ``"dp sp"``, ``"dp+sp"`` or ``"world"``.
        call: what an error quotes; None is this one.

    Raises:
        UnknownAxisError: for an axis that the layout does not have.
        SpecError: for a name without axes, an axis that stands twice in one, more than two groups
            at once, or groups of one rank, in which nothing travels.

    Example:
        >>> typed_targets(Layout(dp=2, sp=2), ["dp+sp"])[0].span
        ('dp', 'sp')
    """
    quoted = Call("typed_targets", (layout, list(names))) if call is None else call
    found: dict[tuple[Axes, ...], Target] = {}
    for name in names:
        target = _typed(quoted, layout, name)
        found.setdefault(tuple(sorted(target.groups)), target)
    return tuple(found.values())


def _typed(call: Call, layout: Layout, name: str) -> Target:
    whole = name.strip() == WORLD and WORLD not in layout.axes
    words = " ".join(wide(layout) or layout.axes) if whole else name
    target = Target(tuple(tuple(part.split()) for part in words.split("+")))
    check_known(call, target.span, layout.axes)
    fix = "axes such as dp, 'dp sp' for groups over both, or dp+sp for both at once."
    if not all(target.groups) or len(target.groups) > 2:
        line = f"{call}: {name!r} does not name axes, two groups of them at once at most."
        raise SpecError(told(line, fix=fix))
    for axes in target.groups:
        if layout.size(*axes) == 1:
            line = f"{call}: a group over {' '.join(axes)} has 1 rank: nothing travels in it."
            raise SpecError(told(line, fix="an axis with 2 ranks or more."))
    return target
