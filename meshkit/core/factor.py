"""Factor a number of ranks into named axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .axes import VIEWS, check_count, check_sizes, infer
from .call import Call, given
from .errors import SpecError, told
from .hybrid import check_alone, hybrid
from .integers import integer
from .layout import Layout
from .order import nest
from .words import article


def factor_world(
    world_size: int,
    *,
    order: str | Iterable[str] | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
    **sizes: int,
) -> Layout:
    """Factor a number of ranks into a layout. Pure arithmetic: no torch, no processes. O(axes).

    Args:
        world_size: how many ranks there are.
        order: axis names from the outside in. None is the standard order ``pp dp ep cp sp tp``,
            whatever the order of the arguments.
        **sizes: axis name to size; one may be -1. ``dp`` is inferred where it is left out, unless
            ``order`` leaves it out too.
        within: instead of ``sizes``: axis to its size on one node. Their product is the number of
            ranks that a node holds, of consecutive ranks.
        across: axis to its size over nodes; an axis may have both, and is ``across * within``
            then, its coordinate ``outer * within + inner``. Where nothing gives ``dp``, it is
            inferred across nodes. These are the ``mesh_shape`` and ``dcn_mesh_shape`` of JAX's
            ``create_hybrid_device_mesh``, the ``ici_`` and ``dcn_`` sizes of MaxText.

    Raises:
        SpecError: where names, sizes, order and world size do not fit together.
        SpecError: if an axis has no standard position and ``order`` is None.

    Example:
        >>> factor_world(64, tp=8, sp=2)
        Layout(dp=4, sp=2, tp=8)
        >>> factor_world(8, order="tp dp", tp=2)
        Layout(tp=2, dp=4)
        >>> mixed = factor_world(8, within={"dp": 2, "tp": 2}, across={"pp": 2})
        >>> mixed, factor_world(8, within={"pp": 2, "tp": 2}, across={"dp": 2}).grid.tolist()
        (Layout(pp=2, dp=2, tp=2), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
    """
    parts = given(within=within, across=across)
    call = Call("factor_world", (world_size,), {**sizes, **given(order=order), **parts})
    num_ranks = integer(world_size)
    if num_ranks is None or num_ranks < 1:
        text = told(f"{call}: a world of {world_size!r} ranks.", fix="an int of 1 or more.")
        raise SpecError(text, sizes=dict(sizes))
    check_count(call, num_ranks, sizes)
    if parts:
        check_alone(call, sizes)
        return hybrid(call, num_ranks, within, across, order)
    nested = nested_sizes(call, sizes, order)
    return Layout(ranks=None, **infer(call, nested, num_ranks, f"world_size = {num_ranks}"))


def nested_sizes(
    call: Call, sizes: Mapping[str, object], order: str | Iterable[str] | None
) -> dict[str, int]:
    """The sizes checked and nested from the outside in, with dp, before the -1 is inferred.

    Raises:
        SpecError: as :func:`factor_world`, for all that can be known without a world size.
    """
    # no sizes at all ask for dp alone
    return nest(call, check_sizes(call, sizes) if sizes else {}, order)


def merged_sizes(call: Call, sizes: object, axes: Mapping[str, object]) -> Mapping[str, object]:
    """Sizes given as a mapping, as from a config, and by keyword, together.

    Raises:
        SpecError: for sizes that are no mapping, and for an axis that is given twice.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        text = told(
            f"{call}: sizes is {article(type(sizes).__name__)}.",
            fix=f"{call.name}({'dp=-1' if call.name in VIEWS else 'dp=4, sp=2, tp=1'}), or the same"
            " as a dict.",
        )
        raise SpecError(text)
    mapped: Mapping[str, object] = sizes or {}
    both = sorted(mapped.keys() & axes.keys())
    if both:
        raise SpecError(told(f"{call} gives {both[0]} twice.", fix=f"give {both[0]} once."))
    return {**mapped, **axes}
